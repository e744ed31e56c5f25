"""Divergences from hidden states, without ever holding (N, V) logits.

Belongs here: the kernel behind the SDPO channel. Does not belong here: which tokens are
aligned and what their weights are.

How it works. Rows go through in chunks of a few tokens against the whole vocabulary. The
loss is linear in the per-token divergences with known weights, so the gradients of the
hidden states and of the head are known in the forward up to the scalar that arrives in the
backward: they are formed chunk by chunk, and the backward only scales them. Memory is
proportional to chunk·V, not N·V.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from composer_pipeline.losses.blocks import eopd_, jsd_, taid_
from composer_pipeline.losses.logits import (
    PLAIN,
    LogitTransform,
    add_product_,
    multiply_,
    project_,
    wide_dtype,
)

Kind = Literal["jsd", "taid", "eopd"]
#: Logits of a block and two buffers, to its divergences: ``losses.blocks``.
Block = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
#: Logits of one side that are held at a time, and those of a block on a CPU.
_CHUNK_ENTRIES, _BLOCK_ENTRIES = 2**25, 2**17


def fused_divergence(
    hidden: Tensor,
    head: Tensor,
    teacher_hidden: Tensor,
    teacher_head: Tensor,
    weights: Tensor,
    *,
    kind: Kind = "jsd",
    beta: float = 0.5,
    temperature: float = 1.0,
    token_clip: float | None = None,
    t: float = 0.4,
    tau: float = 0.8,
    alpha: float = 1.0,
    top_k: int = 16,
    transform: LogitTransform = PLAIN,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (Σ_i w_i·d_i, d): the weighted divergence and its per-token values.

    Args:
        hidden: (N, H), student states that predict the aligned tokens.
        head: (V, H), student output embedding; may need a gradient.
        teacher_hidden: (N, H_t); no gradient flows into it.
        teacher_head: (V, H_t); no gradient flows into it.
        weights: (N,), floating point: mask, normaliser and importance ratio.
        kind: ``jsd`` (beta, temperature, token_clip), ``taid`` (t) or ``eopd`` (tau,
            alpha, top_k), as in ``losses.divergence``.
        beta: weight of the teacher in the JSD's mixture.
        temperature: divides both logits.
        token_clip: upper bound of each vocabulary entry's contribution (``jsd``).
        t: TAID's position.
        tau: EOPD's entropy threshold in nats.
        alpha: EOPD's forward weight.
        top_k: EOPD's support.
        transform: what the model does to its logits; of student and teacher alike.
        chunk: tokens projected at a time; ``None``: as many as a few hundred megabytes hold.

    Returns:
        A scalar with a gradient, whose backward runs once, and (N,) values without one.

    Raises:
        TypeError: the weights are a mask of integers or booleans.
        ValueError: shapes disagree, or beta is outside [0, 1].
    """
    if not weights.is_floating_point():
        raise TypeError("weights must be floating point; turn a mask into mean_weights(mask)")
    rows = hidden.shape[0]
    if teacher_hidden.shape[0] != rows or weights.shape != (rows,):
        raise ValueError(
            f"{rows} student rows, {teacher_hidden.shape[0]} teacher rows, weights"
            f" {tuple(weights.shape)}"
        )
    if not 0.0 <= beta <= 1.0:
        raise ValueError(f"beta must be in [0, 1], got {beta}")
    if rows == 0:
        # A zero on the graph: ranks must agree on whether there is a backward.
        return hidden.sum() * 0, weights.new_zeros(0)
    # Only the JSD has a temperature.
    block, divisor = _block_of(kind, beta, token_clip, t, tau, alpha, top_k), 1.0
    if kind == "jsd":
        divisor = temperature
    teacher = (teacher_hidden.detach(), teacher_head.detach())
    loss, values = _Fused.apply(hidden, head, *teacher, weights, block, transform, divisor, chunk)
    return loss, values


def _block_of(
    kind: str, beta: float, clip: float | None, t: float, tau: float, alpha: float, top_k: int
) -> Block:
    if kind == "jsd":
        return partial(jsd_, beta=beta, clip=clip)
    if kind == "taid":
        return partial(taid_, t=t)
    if kind == "eopd":
        return partial(eopd_, tau=tau, alpha=alpha, top_k=top_k)
    raise ValueError(f"unknown divergence {kind!r}")


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        teacher_hidden: Tensor,
        teacher_head: Tensor,
        weights: Tensor,
        block: Block,
        transform: LogitTransform,
        temperature: float,
        chunk: int | None,
    ) -> tuple[Tensor, Tensor]:
        rows, vocabulary = hidden.shape[0], head.shape[0]
        wide, device = wide_dtype(hidden.dtype), hidden.device
        need_hidden, need_head = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        # Rounding the partial products to bf16 biases training: accumulate wide.
        grad_head = torch.zeros(head.shape, dtype=wide, device=device) if need_head else None
        values = torch.empty(rows, dtype=wide, device=device)
        w = weights.detach().to(wide)
        size = min(rows, chunk or _chunk(vocabulary))
        few = min(size, _block(vocabulary, device))
        student, teacher = (torch.empty(size, vocabulary, dtype=wide, device=device) for _ in "st")
        a, b = (torch.empty(few, vocabulary, dtype=wide, device=device) for _ in "ab")
        for start in range(0, rows, size):
            end = min(start + size, rows)
            project_(student[: end - start], hidden[start:end], head)
            project_(teacher[: end - start], teacher_hidden[start:end], teacher_head)
            for first in range(0, end - start, few):
                part = slice(first, min(first + few, end - start))
                z_s, z_t = transform.apply_(student[part]), transform.apply_(teacher[part])
                slope = transform.slope(z_s)
                if temperature != 1.0:
                    z_s.div_(temperature)
                    z_t.div_(temperature)
                at = slice(start + part.start, start + part.stop)
                count = part.stop - part.start
                values[at] = block(z_s, z_t, a[:count], b[:count])
                z_s.mul_((w[at] / temperature).unsqueeze(-1))
                if slope is not None:
                    z_s.mul_(slope)
                elif transform.scale != 1.0:
                    z_s.mul_(transform.scale)
            grad = student[: end - start]
            if grad_hidden is not None:
                multiply_(grad_hidden[start:end], grad, head)
            if grad_head is not None:
                add_product_(grad_head, grad, hidden[start:end])
        ctx.gradients, ctx.head_dtype = (grad_hidden, grad_head), head.dtype
        ctx.mark_non_differentiable(values)
        return (w * values).sum(), values

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("fused_divergence: a second backward through the same loss")
        # Scaled where they are: a copy of the head's is as large as the head.
        (grad_hidden, grad_head), ctx.gradients = ctx.gradients, None
        if grad_hidden is not None:
            grad_hidden.mul_(grads[0])
        if grad_head is not None:
            grad_head = grad_head.mul_(grads[0]).to(ctx.head_dtype)
        return grad_hidden, grad_head, None, None, None, None, None, None, None


def _chunk(vocabulary: int) -> int:
    """Return the rows that are projected at a time: more is faster, and takes more memory."""
    return max(16, min(256, _CHUNK_ENTRIES // vocabulary))


def _block(vocabulary: int, device: torch.device) -> int:
    """Return the rows of a block: on a CPU few enough that its buffers stay in the cache."""
    if device.type != "cpu":
        return 2**31
    threads: int = torch.get_num_threads()
    return max(threads, _BLOCK_ENTRIES // vocabulary)
