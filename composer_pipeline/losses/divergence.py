"""Divergences between a student's and a teacher's next-token distributions.

Each exists twice: from logits in plain differentiable torch, the readable definition, and fused
from hidden states (:func:`fused_divergence`), which never holds all logits.

Conventions. Logits are aligned: row i of the student, the teacher and the weights belongs to the
same token; nothing is shifted. The teacher never receives a gradient. Weights are floating-point
numbers that already contain mask and normaliser (:func:`mean_weights`); an integer 0/1 mask is
rejected, because upstream's ``labels != -100`` silently reads it as "keep everything". ``p_s`` and
``p_t`` are the softmax of logits / temperature.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, softmax


def mean_weights(mask: Tensor) -> Tensor:
    """Return weights that make a weighted sum the mean over the tokens of a 0/1 mask.

    Args:
        mask: any shape, non-zero where the token counts.

    Returns:
        Same shape, float64; all zero for an empty mask.
    """
    kept = (mask != 0).double()
    return kept / kept.sum().clamp(min=1.0)


def jsd_entries(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    beta: float = 0.5,
    temperature: float = 1.0,
    top_k: int | None = None,
) -> Tensor:
    """Return the contribution of each vocabulary entry to the generalised JSD.

    Formula (siyan-zhao/OPSD, TRL GKD; arXiv 2306.13649): with M = (1-β)·p_s + β·p_t,
    β·p_t·(log p_t - log M) + (1-β)·p_s·(log p_s - log M). β = 0 is the forward KL(p_t‖p_s)
    and β = 1 the reverse KL(p_s‖p_t). There is no T² factor.

    Args:
        student_logits: (..., V).
        teacher_logits: (..., V).
        beta: weight of the teacher in the mixture, in [0, 1].
        temperature: divides both logits.
        top_k: support of the teacher's k largest logits, both renormalised over it.

    Returns:
        (..., V), or (..., k) with ``top_k``.
    """
    _check_beta(beta)
    student, teacher = student_logits / temperature, teacher_logits.detach() / temperature
    if top_k is not None:
        teacher, index = teacher.topk(min(top_k, teacher.shape[-1]), dim=-1)
        student = student.gather(-1, index)
    return entries_from_logps(log_softmax(student, -1), log_softmax(teacher, -1), beta)


def entries_from_logps(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """Return the terms of :func:`jsd_entries` from log-probabilities; all are (..., V)."""
    if beta == 0:
        return teacher.exp() * (teacher - student)
    if beta == 1:
        return student.exp() * (student - teacher)
    mixture = torch.logaddexp(student + math.log1p(-beta), teacher + math.log(beta))
    from_teacher = teacher.exp() * (teacher - mixture)
    from_student = student.exp() * (student - mixture)
    return beta * from_teacher + (1 - beta) * from_student


def generalized_jsd(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    beta: float = 0.5,
    temperature: float = 1.0,
    top_k: int | None = None,
    token_clip: float | None = None,
) -> Tensor:
    """Return the generalised JSD of each token in nats, shape (...,).

    Args:
        student_logits: (..., V).
        teacher_logits: (..., V).
        beta: as in :func:`jsd_entries`.
        temperature: as in :func:`jsd_entries`.
        top_k: as in :func:`jsd_entries`.
        token_clip: each vocabulary entry's contribution is clamped from above to this
            value before the sum over the vocabulary (OPSD ``token_clip``).
    """
    entries = jsd_entries(
        student_logits, teacher_logits, beta=beta, temperature=temperature, top_k=top_k
    )
    if token_clip is not None:
        entries = entries.clamp(max=token_clip)
    return entries.sum(-1)


def taid(student_logits: Tensor, teacher_logits: Tensor, *, t: float) -> Tensor:
    """Return TAID's cross-entropy of each token against the moving target, shape (...,).

    Formula (SakanaAI/TAID, arXiv 2501.16937): p = softmax((1-t)·sg(z_s) + t·z_t),
    d = -Σ_v p·log p_s. At t = 0 the value is the student's entropy and the gradient zero.
    Entries with an infinite student logit contribute nothing.

    Args:
        student_logits: (..., V).
        teacher_logits: (..., V).
        t: position of the target between student (0) and teacher (1).
    """
    mixed = (1 - t) * student_logits.detach() + t * teacher_logits.detach()
    log_student = log_softmax(student_logits, -1)
    log_student = log_student.masked_fill(torch.isinf(student_logits), 0.0)
    return -(softmax(mixed, -1) * log_student).sum(-1)


def eopd(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    tau: float = 0.8,
    alpha: float = 1.0,
    top_k: int = 16,
) -> Tensor:
    """Return the entropy-aware on-policy distillation loss of each token, shape (...,).

    Formula (arXiv 2603.07079, equations 9 and 10, full-vocabulary form): KL(p_s‖p_t) +
    α·1[H(p_t) > τ]·Σ_{v in topk(p_t)} q_v·(log q_v - log p_s,v), q the teacher renormalised
    over its own top-k.

    Args:
        student_logits: (..., V).
        teacher_logits: (..., V).
        tau: entropy threshold in nats.
        alpha: weight of the forward term.
        top_k: support of the forward term.
    """
    student = log_softmax(student_logits, -1)
    teacher = log_softmax(teacher_logits.detach(), -1)
    reverse = (student.exp() * (student - teacher)).sum(-1)
    uncertain = (entropy(teacher) > tau).to(student.dtype)
    best, index = teacher.topk(min(top_k, teacher.shape[-1]), dim=-1)
    target = log_softmax(best, -1)
    forward = (target.exp() * (target - student.gather(-1, index))).sum(-1)
    return reverse + alpha * uncertain * forward


def entropy(logps: Tensor) -> Tensor:
    """Return the entropy in nats of log-probabilities (..., V), shape (...,)."""
    return -(logps.exp() * logps).sum(-1)


def _check_beta(beta: float) -> None:
    if not 0.0 <= beta <= 1.0:
        raise ValueError(f"beta must be in [0, 1], got {beta}")


#: Largest |log p_t - log p_s| of which the exponential is still finite.
_LARGEST = {torch.float32: 80.0, torch.float64: 700.0}


def jsd_(
    student: Tensor, teacher: Tensor, a: Tensor, b: Tensor, *, beta: float, clip: float | None
) -> Tensor:
    """Return :func:`generalized_jsd` of each row, (r,); the logits' gradient goes into ``student``.

    All four tensors are (r, V); ``a`` and ``b`` are buffers, and ``teacher`` is overwritten.
    """
    p_s, norm_s = _softmax(student, a)
    p_t, norm_t = _softmax(teacher, b)
    gap = teacher.sub_(student).add_(norm_s - norm_t)  # log p_t - log p_s
    largest = _LARGEST[gap.dtype]
    gap.clamp_(-largest, largest)
    if clip is not None:
        return _clipped_(student, gap, p_s, p_t, beta, clip)
    if beta == 0:
        torch.sub(p_s, p_t, out=student)
        return _dot(p_t, gap)
    if beta == 1:
        value = -_dot(p_s, gap)
        torch.add(gap, value.unsqueeze(-1), out=student).mul_(p_s).neg_()
        return value
    # log p_s - log M, exact also where both sides are almost equal.
    from_student = torch.expm1(gap, out=student).mul_(beta).log1p_().neg_()
    from_teacher = gap.add_(from_student)  # log p_t - log M
    mean = _dot(p_s, from_student)
    value = (1 - beta) * mean + beta * _dot(p_t, from_teacher)
    from_student.sub_(mean.unsqueeze(-1)).mul_(p_s).mul_(1 - beta)
    return value


def _clipped_(
    student: Tensor, gap: Tensor, p_s: Tensor, p_t: Tensor, beta: float, clip: float
) -> Tensor:
    # by_logp is ∂c_v / ∂log p_s,v; the softmax turns it into by_logp - p_s·Σ by_logp.
    if beta == 0:
        entries, by_logp = gap.mul_(p_t), torch.neg(p_t, out=student)
    elif beta == 1:
        entries = gap.mul_(p_s).neg_()
        by_logp = torch.add(entries, p_s, out=student)
    else:
        by_logp = torch.expm1(gap, out=student).mul_(beta).log1p_().neg_()
        entries = gap.add_(by_logp).mul_(p_t).mul_(beta)
        entries.add_(by_logp.mul_(p_s).mul_(1 - beta))
    by_logp.mul_(entries <= clip)
    by_logp.sub_(p_s.mul_(by_logp.sum(-1, keepdim=True)))
    return entries.clamp_(max=clip).sum(-1)


def taid_(student: Tensor, teacher: Tensor, a: Tensor, b: Tensor, *, t: float) -> Tensor:
    """Return :func:`taid` of each row, (r,); tensors as in :func:`jsd_`."""
    target = torch.softmax(teacher.mul_(t).add_(student, alpha=1 - t), -1, out=b)
    p_s, norm_s = _softmax(student, a)
    # An entry with an infinite logit contributes nothing.
    log_s = student.sub_(norm_s).masked_fill_(torch.isinf(student), 0.0)
    value = -_dot(target, log_s)
    torch.sub(p_s, target, out=student)
    return value


def eopd_(
    student: Tensor, teacher: Tensor, a: Tensor, b: Tensor, *, tau: float, alpha: float, top_k: int
) -> Tensor:
    """Return :func:`eopd` of each row, (r,); tensors as in :func:`jsd_`."""
    p_s, norm_s = _softmax(student, a)
    p_t, norm_t = _softmax(teacher, b)
    best, index = teacher.topk(min(top_k, teacher.shape[-1]), dim=-1)
    log_q = best.log_softmax(-1)
    q = log_q.exp()
    log_t = teacher.sub_(norm_t)
    on = (-_dot(p_t, log_t) > tau).to(student.dtype) * alpha
    log_s = student.sub_(norm_s)
    forward = (q * (log_q - log_s.gather(-1, index))).sum(-1)
    reverse = _dot(p_s, log_s.sub_(log_t))
    log_s.sub_((reverse - on).unsqueeze(-1)).mul_(p_s)
    log_s.scatter_add_(-1, index, -on.unsqueeze(-1) * q)
    return reverse + on * forward


def _softmax(logits: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    # p in ``out``, (r, V), and the log of its normaliser, (r, 1).
    p = torch.softmax(logits, -1, out=out)
    # From the largest entry: its p is never 0, and no second pass of exponentials is needed.
    norm = logits.amax(-1, keepdim=True) - p.amax(-1, keepdim=True).log()
    return p, norm


def _dot(x: Tensor, y: Tensor) -> Tensor:
    # Σ_v x·y of each row, (r,)
    return torch.linalg.vecdot(x, y, dim=-1)


#: Vocabulary entries of a head that are widened at once where no kernel accumulates in float32.
_TILE = 8192


@dataclass(frozen=True)
class LogitTransform:
    """``softcap·tanh(scale·y / softcap)`` of a product y with the head; no cap: ``scale·y``."""

    scale: float = 1.0
    softcap: float | None = None

    def apply_(self, logits: Tensor) -> Tensor:
        """Transform logits (..., V) in place, and return them."""
        if self.scale != 1.0:
            logits.mul_(self.scale)
        if self.softcap is not None:
            logits.div_(self.softcap).tanh_().mul_(self.softcap)
        return logits

    def slope(self, transformed: Tensor) -> Tensor | None:
        """Return the derivative at each of the logits (..., V) of :meth:`apply_`.

        ``None`` without a cap: it is ``scale`` everywhere.
        """
        if self.softcap is None:
            return None
        return (transformed / self.softcap).square_().neg_().add_(1.0).mul_(self.scale)


PLAIN = LogitTransform()


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of logits and sums for tensors of a type: float32, or float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def project_(out: Tensor, hidden: Tensor, head: Tensor) -> Tensor:
    """Write ``hidden @ head.T`` into ``out``, not rounded to bf16, and return it.

    Args:
        out: (C, V), float32 or float64.
        hidden: (C, H).
        head: (V, H).
    """
    if hidden.dtype == head.dtype == out.dtype:
        return torch.mm(hidden, head.T, out=out)
    if out.is_cuda and hidden.dtype == head.dtype:
        return torch.mm(hidden, head.T, out_dtype=out.dtype, out=out)
    wide = hidden.to(out.dtype)
    for start in range(0, head.shape[0], _TILE):
        tile = slice(start, start + _TILE)
        out[:, tile] = wide @ head[tile].to(out.dtype).T
    return out


def add_product_(total: Tensor, grad: Tensor, hidden: Tensor) -> None:
    """Add ``grad.T @ hidden`` to ``total``, not rounded to bf16 before the addition.

    Args:
        total: (V, H), float32 or float64.
        grad: (C, V), of the logits.
        hidden: (C, H).
    """
    if total.is_cuda and hidden.dtype != total.dtype:
        # Tensor cores multiply bf16 and accumulate in float32.
        torch.addmm(
            total, grad.to(hidden.dtype).T, hidden, out_dtype=total.dtype, out=total
        )  # fmt: skip
    else:
        total.addmm_(grad.T, hidden.to(total.dtype))


def multiply_(out: Tensor, grad: Tensor, head: Tensor) -> None:
    """Write ``grad @ head`` into ``out``; each row is written once, so no rounding accumulates.

    Args:
        out: (C, H), of the hidden states' type.
        grad: (C, V), float32 or float64.
        head: (V, H).
    """
    if out.dtype == grad.dtype == head.dtype:
        torch.mm(grad, head, out=out)
    else:
        out.copy_(grad.to(head.dtype) @ head)


Kind = Literal["jsd", "taid", "eopd"]
#: Logits of a block of rows and two buffers, to the divergence of each row.
Block = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
#: Logits of one side that are held at once, and those of a block on a CPU.
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
            alpha, top_k), as the functions of these names.
        beta: weight of the teacher in the JSD's mixture.
        temperature: divides both logits.
        token_clip: upper bound of each vocabulary entry's contribution (``jsd``).
        t: TAID's position.
        tau: EOPD's entropy threshold in nats.
        alpha: EOPD's forward weight.
        top_k: EOPD's support.
        transform: the model's transform of its logits, for student and teacher.
        chunk: tokens projected at once; ``None``: as many as a few hundred megabytes hold.

    Returns:
        A scalar whose backward can run once, and (N,) values without a gradient.

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
    _check_beta(beta)
    if rows == 0:
        # A zero on the graph: ranks must agree on whether there is a backward.
        return hidden.sum() * 0, weights.new_zeros(0)
    blocks: dict[str, Block] = {
        "jsd": partial(jsd_, beta=beta, clip=token_clip),
        "taid": partial(taid_, t=t),
        "eopd": partial(eopd_, tau=tau, alpha=alpha, top_k=top_k),
    }
    block, divisor = blocks[kind], temperature if kind == "jsd" else 1.0
    teacher = (teacher_hidden.detach(), teacher_head.detach())
    loss, values = _Fused.apply(hidden, head, *teacher, weights, block, transform, divisor, chunk)
    return loss, values


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, teacher_hidden: Tensor, teacher_head: Tensor,
        weights: Tensor, block: Block, transform: LogitTransform, temperature: float,
        chunk: int | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        rows, vocabulary = hidden.shape[0], head.shape[0]
        wide, device = wide_dtype(hidden.dtype), hidden.device
        need_hidden, need_head = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        # Rounding the partial products to bf16 biases training: accumulate wide.
        grad_head = torch.zeros(head.shape, dtype=wide, device=device) if need_head else None
        values = torch.empty(rows, dtype=wide, device=device)
        w = weights.detach().to(wide)
        size = min(rows, chunk or chunk_of(vocabulary))
        few = min(size, block_of(vocabulary, on_device=device.type != "cpu"))
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
        # Scaled in place: a copy of the head's gradient is as large as the head.
        (grad_hidden, grad_head), ctx.gradients = ctx.gradients, None
        if grad_hidden is not None:
            grad_hidden.mul_(grads[0])
        if grad_head is not None:
            grad_head = grad_head.mul_(grads[0]).to(ctx.head_dtype)
        return grad_hidden, grad_head, None, None, None, None, None, None, None


def chunk_of(vocabulary: int) -> int:
    """Return the tokens that :func:`fused_divergence` projects at once, of (tokens, V) logits."""
    return max(16, min(256, _CHUNK_ENTRIES // vocabulary))


def block_of(vocabulary: int, *, on_device: bool) -> int:
    """Return the rows of its two buffers (rows, V): on a CPU so few that they stay in the cache."""
    if on_device:
        return 2**31
    threads: int = torch.get_num_threads()
    return max(threads, _BLOCK_ENTRIES // vocabulary)
