"""The mathematics of the fused kernel on a block of rows, in the buffers that it is given.

Belongs here: each divergence and its gradient by the student's logits, without a new (r, V)
tensor. Does not belong here: products with a head (``losses.logits``) and the loop over rows
(``losses.fused``). The plain forms with their formulas are in ``losses.divergence``.

Every function takes the logits of both sides, (r, V), and overwrites them: the student's hold
∂d/∂logits afterwards, the teacher's nothing of use. ``a`` and ``b`` are buffers of their shape.
"""

import torch
from torch import Tensor

#: Largest |log p_t - log p_s| of which the exponential is still finite.
_LARGEST = {torch.float32: 80.0, torch.float64: 700.0}


def jsd_(
    student: Tensor, teacher: Tensor, a: Tensor, b: Tensor, *, beta: float, clip: float | None
) -> Tensor:
    """Return the generalised JSD of each row, (r,): ``divergence.generalized_jsd``."""
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
    """The JSD with each entry's contribution clamped from above; the gradient into ``student``."""
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
    """Return TAID's cross-entropy of each row, (r,): ``divergence.taid``."""
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
    """Return the entropy-aware distillation loss of each row, (r,): ``divergence.eopd``."""
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
    """Return p in ``out``, (r, V), and the log of the sum that normalises it, (r, 1)."""
    p = torch.softmax(logits, -1, out=out)
    # Of the largest entry: its p is never 0, and no second pass of exponentials is needed.
    norm = logits.amax(-1, keepdim=True) - p.amax(-1, keepdim=True).log()
    return p, norm


def _dot(x: Tensor, y: Tensor) -> Tensor:
    """Return Σ_v x·y of each row, (r,)."""
    return torch.linalg.vecdot(x, y, dim=-1)
