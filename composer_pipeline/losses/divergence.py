"""Divergences between a student's and a teacher's next-token distributions, from logits.

Belongs here: per-token values with their formulas, in plain differentiable torch. Does
not belong here: the memory-saving form (``losses.fused``) and how tokens are reduced to a
loss in a training step (the caller's weights).

Conventions. Logits are aligned: row i of the student, the teacher and the weights speak
about the same token; nothing is shifted. The teacher never receives a gradient. Weights
are floating-point numbers that already contain mask and normaliser (:func:`mean_weights`);
a 0/1 integer mask is refused, because upstream's ``labels != -100`` silently reads it as
"keep everything". ``p_s`` and ``p_t`` are the softmax of logits / temperature.
"""

import math

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


def label_weights(labels: Tensor, ignore_index: int = -100) -> Tensor:
    """Return :func:`mean_weights` of token labels with an ignore index.

    Args:
        labels: (...,), token ids.
        ignore_index: the label of a token that does not count.

    Returns:
        (...,), float64.

    Raises:
        ValueError: the labels look like a 0/1 mask, which would keep every token.
    """
    unique = torch.unique(labels)
    if labels.numel() > 1 and bool(((unique == 0) | (unique == 1)).all()):
        raise ValueError("labels contain only 0 and 1: this is a mask, use mean_weights(mask)")
    return mean_weights(labels != ignore_index)


def weighted(values: Tensor, weights: Tensor) -> Tensor:
    """Return Σ weights·values over all elements, a scalar; both are (...,).

    Raises:
        TypeError: the weights are integers or booleans (a mask).
        ValueError: the shapes differ.
    """
    if not weights.is_floating_point():
        raise TypeError("weights must be floating point; turn a mask into mean_weights(mask)")
    if weights.shape != values.shape:
        raise ValueError(f"weights {tuple(weights.shape)} against values {tuple(values.shape)}")
    return (values * weights.to(values.dtype)).sum()


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


def entropy_mix(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return w·KL(p_t‖p_s) + (1-w)·KL(p_s‖p_t), w = H(p_t)/log V clamped to [0, 1].

    A convex mixture that is not the paper's EOPD. Logits (..., V), result (...,).
    """
    student = log_softmax(student_logits, -1)
    teacher = log_softmax(teacher_logits.detach(), -1)
    weight = (entropy(teacher) / math.log(teacher.shape[-1])).clamp(0, 1)
    forward = entries_from_logps(student, teacher, 0.0).sum(-1)
    reverse = entries_from_logps(student, teacher, 1.0).sum(-1)
    return weight * forward + (1 - weight) * reverse


def entropy(logps: Tensor) -> Tensor:
    """Return the entropy in nats of log-probabilities (..., V), shape (...,)."""
    return -(logps.exp() * logps).sum(-1)


def _check_beta(beta: float) -> None:
    if not 0.0 <= beta <= 1.0:
        raise ValueError(f"beta must be in [0, 1], got {beta}")
