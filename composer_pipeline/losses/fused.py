"""Divergences from hidden states, without ever holding (N, V) logits.

Belongs here: the kernel behind the SDPO channel. Does not belong here: which tokens are
aligned and what their weights are.

How it works. Rows go through in chunks of a few tokens against the whole vocabulary. The
loss is linear in the per-token divergences with known weights, so the gradients of the
hidden states and of the head are known in the forward up to the scalar that arrives in the
backward: they are formed chunk by chunk, and the backward only scales them. Memory is
proportional to chunk·V, not N·V.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

Kind = Literal["jsd", "taid", "eopd"]


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
    chunk: int = 64,
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
        chunk: tokens projected at a time.

    Returns:
        A scalar with a gradient, and (N,) values without one.

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
    options: dict[str, Any] = {
        "kind": kind, "beta": beta, "temperature": temperature, "token_clip": token_clip,
        "t": t, "tau": tau, "alpha": alpha, "top_k": top_k,
    }  # fmt: skip
    loss, values = _Fused.apply(
        hidden, head, teacher_hidden.detach(), teacher_head.detach(), weights, options, chunk
    )
    return loss, values


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        teacher_hidden: Tensor,
        teacher_head: Tensor,
        weights: Tensor,
        options: dict[str, Any],
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        need_hidden, need_head = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        # Rounding the partial products to bf16 biases training: accumulate wide.
        grad_head = torch.zeros(head.shape, dtype=wide, device=head.device) if need_head else None
        values = torch.empty(hidden.shape[0], dtype=wide, device=hidden.device)
        w = weights.detach().to(wide)
        for start in range(0, hidden.shape[0], chunk):
            rows = slice(start, start + chunk)
            student = (hidden[rows] @ head.T).to(wide)
            teacher = (teacher_hidden[rows] @ teacher_head.T).to(wide)
            values[rows], g = _rows(student, teacher, options)
            if not (need_hidden or need_head):
                continue
            scale = 1.0 if options["kind"] != "jsd" else 1.0 / options["temperature"]
            g = (g * (w[rows] * scale).unsqueeze(-1)).to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = g @ head
            if grad_head is not None:
                grad_head += (g.T @ hidden[rows]).to(wide)
        ctx.save_for_backward(grad_hidden, grad_head)
        ctx.head_dtype = head.dtype
        ctx.mark_non_differentiable(values)
        return (w * values).sum(), values

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_head = ctx.saved_tensors
        upstream = grads[0]
        if grad_hidden is not None:
            grad_hidden = grad_hidden * upstream.to(grad_hidden.dtype)
        if grad_head is not None:
            grad_head = (grad_head * upstream).to(ctx.head_dtype)
        return grad_hidden, grad_head, None, None, None, None, None


def _rows(student: Tensor, teacher: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the divergences (C,) of a chunk and their gradients (C, V) by logits / T."""
    kind = options["kind"]
    if kind == "taid":
        return _taid(student, teacher, options["t"])
    if kind == "eopd":
        return _eopd(student, teacher, options)
    if kind == "jsd":
        student, teacher = student / options["temperature"], teacher / options["temperature"]
        log_s, log_t = student.log_softmax(-1), teacher.log_softmax(-1)
        return _jsd(log_s, log_t, options["beta"], options["token_clip"])
    raise ValueError(f"unknown divergence {kind!r}")


def _jsd(log_s: Tensor, log_t: Tensor, beta: float, clip: float | None) -> tuple[Tensor, Tensor]:
    p_s = log_s.exp()
    # by_logp is ∂c_v / ∂log p_s,v; the softmax turns it into by_logp - p_s·Σ by_logp.
    if beta == 0:
        p_t = log_t.exp()
        entries, by_logp = p_t * (log_t - log_s), -p_t
    elif beta == 1:
        entries = p_s * (log_s - log_t)
        by_logp = entries + p_s
    else:
        log_m = torch.logaddexp(log_s + math.log1p(-beta), log_t + math.log(beta))
        by_logp = (1 - beta) * p_s * (log_s - log_m)
        entries = by_logp + beta * log_t.exp() * (log_t - log_m)
    if clip is not None:
        by_logp = by_logp * (entries <= clip)
        entries = entries.clamp(max=clip)
    return entries.sum(-1), by_logp - p_s * by_logp.sum(-1, keepdim=True)


def _taid(student: Tensor, teacher: Tensor, t: float) -> tuple[Tensor, Tensor]:
    target = ((1 - t) * student + t * teacher).softmax(-1)
    log_s = student.log_softmax(-1)
    value = -(target * log_s.masked_fill(torch.isinf(student), 0.0)).sum(-1)
    return value, log_s.exp() - target


def _eopd(student: Tensor, teacher: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    log_s, log_t = student.log_softmax(-1), teacher.log_softmax(-1)
    p_s = log_s.exp()
    difference = log_s - log_t
    reverse = (p_s * difference).sum(-1)
    g = p_s * (difference - reverse.unsqueeze(-1))
    on = (-(log_t.exp() * log_t).sum(-1) > options["tau"]).to(log_s.dtype) * options["alpha"]
    best, index = log_t.topk(min(options["top_k"], log_t.shape[-1]), dim=-1)
    log_q = best.log_softmax(-1)
    q = log_q.exp()
    forward = (q * (log_q - log_s.gather(-1, index))).sum(-1)
    g = g + on.unsqueeze(-1) * p_s
    g.scatter_add_(-1, index, -on.unsqueeze(-1) * q)
    return reverse + on * forward, g
