"""Log-probabilities of tokens from hidden states, without ever holding (N, V) logits.

Rows are projected in chunks against the whole vocabulary. The backward projects each chunk again
and turns its logits into their gradient in place, so that no chunk's logits are kept.
"""

from typing import Any

import torch
from torch import Tensor

from composer_pipeline.losses.divergence import (
    PLAIN,
    LogitTransform,
    add_product_,
    multiply_,
    project_,
    wide_dtype,
)

#: Positions that are projected at a time.
CHUNK = 256


def token_logps(
    hidden: Tensor,
    head: Tensor,
    targets: Tensor,
    *,
    transform: LogitTransform = PLAIN,
    chunk: int = CHUNK,
) -> Tensor:
    """Return log p(target) of each position at temperature 1.

    Args:
        hidden: (N, H), the states that predict the targets.
        head: (V, H), the output embedding.
        targets: (N,), token ids.
        transform: the model's transform of its logits.
        chunk: positions projected at a time.

    Returns:
        (N,), float32 or wider.
    """
    if not hidden.shape[0]:
        return hidden.sum() * 0 + hidden.new_zeros(0)
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        hidden, head = hidden.to(dtype), head.to(dtype)
    with torch.autocast(kind, enabled=False):
        logps: Tensor = _TokenLogps.apply(hidden, head, targets, transform, chunk)
    return logps


class _TokenLogps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, transform: LogitTransform,
        chunk: int,
    ) -> Tensor:  # fmt: skip
        rows, wide = hidden.shape[0], wide_dtype(hidden.dtype)
        logps = torch.empty(rows, dtype=wide, device=hidden.device)
        norms = torch.empty(rows, dtype=wide, device=hidden.device)
        buffer = logps.new_empty(min(rows, chunk), head.shape[0])
        for start in range(0, rows, chunk):
            at = slice(start, min(start + chunk, rows))
            logits = transform.apply_(project_(buffer[: at.stop - start], hidden[at], head))
            picked = logits.gather(-1, targets[at].unsqueeze(-1)).squeeze(-1)
            largest = logits.amax(-1, keepdim=True)
            norms[at] = logits.sub_(largest).exp_().sum(-1).log_().add_(largest.squeeze(-1))
            logps[at] = picked - norms[at]
        ctx.save_for_backward(hidden, head, targets, norms)
        ctx.transform, ctx.chunk = transform, chunk
        return logps

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        hidden, head, targets, norms = ctx.saved_tensors
        need_hidden, need_head = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_head = torch.zeros_like(head, dtype=norms.dtype) if need_head else None
        rows, transform = hidden.shape[0], ctx.transform
        buffer = norms.new_empty(min(rows, ctx.chunk), head.shape[0])
        for start in range(0, rows, ctx.chunk):
            at = slice(start, min(start + ctx.chunk, rows))
            logits = transform.apply_(project_(buffer[: at.stop - start], hidden[at], head))
            slope = transform.slope(logits)
            # ∂ log p(target) / ∂ logits = 1[v = target] - p_v
            logits.sub_(norms[at].unsqueeze(-1)).exp_().neg_()
            picked = targets[at].unsqueeze(-1)
            logits.scatter_add_(-1, picked, torch.ones_like(picked, dtype=logits.dtype))
            logits.mul_(grads[0][at].unsqueeze(-1)).mul_(
                transform.scale if slope is None else slope
            )
            if grad_hidden is not None:
                multiply_(grad_hidden[at], logits, head)
            if grad_head is not None:
                add_product_(grad_head, logits, hidden[at])
        if grad_head is not None:
            grad_head = grad_head.to(head.dtype)
        return grad_hidden, grad_head, None, None, None
