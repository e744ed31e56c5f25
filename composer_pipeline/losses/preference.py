"""Preference losses (DPO, SimPO) on sequence log-probabilities.

Belongs here: pairwise losses, and log-probabilities from logits. Does not belong here: those
from hidden states (``losses.token_logps``), batching and reference passes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

#: Temperature of the mixture in DiscoPOP; TRL's default.
_DISCOPOP_TAU = 0.05


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


@dataclass(frozen=True)
class Pairs:
    """Sums of log p over completions, each (P,); references made at temperature 1.

    ``chosen_tokens`` and ``rejected_tokens`` are the completions' lengths.
    """

    chosen: Tensor
    rejected: Tensor
    ref_chosen: Tensor
    ref_rejected: Tensor
    chosen_tokens: Tensor
    rejected_tokens: Tensor

    @property
    def of_chosen(self) -> Tensor:
        """Log-ratio of the chosen side to the reference, (P,)."""
        return self.chosen - self.ref_chosen

    @property
    def of_rejected(self) -> Tensor:
        """Log-ratio of the rejected side to the reference, (P,)."""
        return self.rejected - self.ref_rejected

    @property
    def margin(self) -> Tensor:
        """Difference of the log-ratios, (P,)."""
        return self.of_chosen - self.of_rejected

    @property
    def margin_per_token(self) -> Tensor:
        """Difference of the log-ratios a token of each side, (P,)."""
        return self.of_chosen / self.chosen_tokens - self.of_rejected / self.rejected_tokens


def _robust(pairs: Pairs, beta: float, smoothing: float) -> Tensor:
    x = beta * pairs.margin
    clean, flipped = -(1 - smoothing) * logsigmoid(x), smoothing * logsigmoid(-x)
    return (clean + flipped) / (1 - 2 * smoothing)


def _exo(pairs: Pairs, beta: float, smoothing: float) -> Tensor:
    x = beta * pairs.margin
    right = x.sigmoid() * (logsigmoid(x) - math.log1p(-smoothing))
    return right + (-x).sigmoid() * (logsigmoid(-x) - math.log(smoothing))


def _nca(pairs: Pairs, beta: float, _: float) -> Tensor:
    a, b = beta * pairs.of_chosen, beta * pairs.of_rejected
    return -logsigmoid(a) - 0.5 * logsigmoid(-a) - 0.5 * logsigmoid(-b)


def _discopop(pairs: Pairs, beta: float, _: float) -> Tensor:
    x = beta * pairs.margin
    share = (x / _DISCOPOP_TAU).sigmoid()
    return -logsigmoid(x) * (1 - share) + (-x).exp() * share


#: TRL's losses of single pairs by TRL's names: pairs, beta and label smoothing, to (P,).
_OF_PAIRS: dict[str, Callable[[Pairs, float, float], Tensor]] = {
    "sigmoid": lambda p, beta, _: -logsigmoid(beta * p.margin),
    "hinge": lambda p, beta, _: torch.relu(1 - beta * p.margin),
    "ipo": lambda p, beta, _: (p.margin_per_token - 1 / (2 * beta)) ** 2,
    "sigmoid_norm": lambda p, beta, _: -logsigmoid(beta * p.margin_per_token),
    "robust": _robust,
    "exo_pair": _exo,
    "nca_pair": _nca,
    "bco_pair": lambda p, beta, _: -logsigmoid(beta * p.of_chosen) - logsigmoid(
        -beta * p.of_rejected
    ),
    "sppo_hard": lambda p, beta, _: (p.of_chosen - 0.5 / beta) ** 2
    + (p.of_rejected + 0.5 / beta) ** 2,
    "apo_zero": lambda p, beta, _: 1 - (beta * p.of_chosen).sigmoid()
    + (beta * p.of_rejected).sigmoid(),
    "apo_down": lambda p, beta, _: (beta * p.of_chosen).sigmoid()
    + 1 - (beta * p.margin).sigmoid(),
    "discopop": _discopop,
}  # fmt: skip
PAIR_LOSSES = frozenset(_OF_PAIRS)


def pair_loss(kind: str, pairs: Pairs, *, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """Return a loss of TRL's ``DPOTrainer`` for each pair, (P,).

    Those that sort a batch (``aot``, ``aot_unpaired``) are no losses of pairs; ``sft`` is a
    channel of its own.

    Args:
        kind: one of :data:`PAIR_LOSSES`.
        pairs: log-probabilities.
        beta: strength of the reference.
        label_smoothing: share of pairs that are the wrong way round (``robust``, ``exo_pair``).
    """
    return _OF_PAIRS[kind](pairs, beta, label_smoothing)


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
