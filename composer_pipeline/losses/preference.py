"""Preference losses (DPO, SimPO) on sequence log-probabilities.

Belongs here: pairwise losses, and log-probabilities from logits. Does not belong here: those
from hidden states (``losses.token_logps``), batching and reference passes.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def label_logps(logits: Tensor, labels: Tensor, *, average: bool) -> Tensor:
    """Return sequence log-probabilities of unshifted logits and labels (−100 is ignored).

    Args:
        logits: (B, S, V); position j predicts label j + 1.
        labels: (B, S).
        average: divide by the number of kept tokens (SimPO) instead of summing (DPO).

    Returns:
        (B,).
    """
    targets = labels[:, 1:]
    mask = targets != -100
    logps = torch.log_softmax(logits[:, :-1], -1)
    picked = logps.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1) * mask
    return picked.sum(-1) / mask.sum(-1) if average else picked.sum(-1)


def dpo_sigmoid(
    chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, *, beta: float
) -> Tensor:
    """Return −logsigmoid(β·((c − rc) − (r − rr))) of each pair (arXiv 2305.18290).

    Args:
        chosen: (P,), summed log-probabilities of the policy.
        rejected: (P,).
        ref_chosen: (P,), of the reference, made at temperature 1.
        ref_rejected: (P,).
        beta: strength of the reference.

    Returns:
        (P,).
    """
    return -logsigmoid(beta * ((chosen - ref_chosen) - (rejected - ref_rejected)))


def simpo(
    chosen: Tensor,
    rejected: Tensor,
    *,
    beta: float = 2.0,
    gamma: float = 0.5,
    label_smoothing: float = 0.0,
    hinge: bool = False,
) -> Tensor:
    """Return SimPO's loss of each pair (arXiv 2405.14734), shape (P,).

    With x = β·(c − r) − γ: −(1−ε)·logsigmoid(x) − ε·logsigmoid(−x), or max(0, 1 − x).

    Args:
        chosen: (P,), length-normalised log-probabilities.
        rejected: (P,).
        beta: scale.
        gamma: margin, upstream's ``beta·gamma_beta_ratio``.
        label_smoothing: ε.
        hinge: the hinge form.
    """
    x = beta * (chosen - rejected) - gamma
    if hinge:
        return torch.relu(1 - x)
    return -(1 - label_smoothing) * logsigmoid(x) - label_smoothing * logsigmoid(-x)
