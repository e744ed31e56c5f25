"""Log-probabilities of tokens from hidden states, without keeping logits for the backward.

Belongs here: the function and its gradient. Does not belong here: losses of sequences
(``composer_pipeline.losses.preference``).

With a frozen head the gradient of log p(y) with respect to its state, W[y] − p·W, is made in the
forward: the backward multiplies (N, H). With a trained head the backward makes each chunk's
logits again. Unlike ``trl.kernels.ChunkedLogProbFunction`` it keeps float64.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear


def logps_and_entropies(
    hidden: Tensor, head: Tensor, targets: Tensor, *, chunk: int = 128
) -> tuple[Tensor, Tensor]:
    """Return log p(target) and the entropy of each position at temperature 1, (N,) both.

    Args:
        hidden: (N, H), the states that predict the targets.
        head: (V, H), the output embedding.
        targets: (N,), token ids.
        chunk: positions projected at a time.

    The entropy, in nats, has no gradient. Both are float32 or wider.
    """
    if not len(hidden):
        nothing = hidden.sum() * 0 + hidden.new_zeros(0)
        return nothing, nothing.detach()
    out: tuple[Tensor, Tensor] = _LogProbs.apply(hidden, head, targets, chunk)
    return out


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor]:
        for_hidden, for_head = ctx.needs_input_grad[:2]
        logps, entropies, slopes = [], [], []
        for start in range(0, len(hidden), chunk):
            ids = targets[start : start + chunk]
            log_p = _log_softmax(hidden[start : start + chunk], head)
            logps.append(log_p.gather(-1, ids[:, None]).squeeze(-1))
            p = log_p.exp()
            entropies.append(-torch.linalg.vecdot(p, log_p))
            if for_hidden and not for_head:
                slopes.append(head[ids].to(p.dtype) - (p.to(head.dtype) @ head).to(p.dtype))
        ctx.chunk, ctx.ready = chunk, not for_head
        if for_head:
            ctx.save_for_backward(hidden, head, targets)
        elif for_hidden:
            ctx.save_for_backward(torch.cat(slopes))
        ctx.dtype = hidden.dtype
        entropy = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy)
        return torch.cat(logps), entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        if ctx.ready:
            (slopes,) = ctx.saved_tensors
            return (grad[:, None] * slopes).to(ctx.dtype), None, None, None
        hidden, head, targets = ctx.saved_tensors
        for_hidden = torch.empty_like(hidden)
        for_head = torch.zeros_like(head, dtype=torch.promote_types(head.dtype, torch.float32))
        for start in range(0, len(hidden), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            slope = _log_softmax(hidden[part], head).exp_().mul_(-grad[part, None])
            rows = torch.arange(len(slope), device=slope.device)
            slope[rows, targets[part]] += grad[part]
            for_hidden[part] = (slope @ head.to(slope.dtype)).to(ctx.dtype)
            for_head.addmm_(slope.T, hidden[part].to(slope.dtype))
        return for_hidden, for_head.to(head.dtype), None, None


def _log_softmax(hidden: Tensor, head: Tensor) -> Tensor:
    """Return log p (n, V), made in place of the logits where they are wide already."""
    logits = linear(hidden, head.to(hidden.dtype))
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    return logits.sub_(torch.logsumexp(logits, -1, keepdim=True))
