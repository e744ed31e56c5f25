"""Preference losses (DPO, SimPO) on sequence log-probabilities."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

#: Temperature of the mixture in DiscoPOP; TRL's default.
_DISCOPOP_TAU = 0.05


@dataclass(frozen=True)
class Pairs:
    """Sums of log p over completions and their lengths in tokens, each (P,), at temperature 1."""

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
        """Difference of the log-ratios per token of each side, (P,)."""
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


#: TRL's pairwise losses by TRL's names: (pairs, beta, label smoothing) to (P,).
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


def pair_loss(kind: str, pairs: Pairs, *, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """Return a loss of TRL's ``DPOTrainer`` for each pair, (P,).

    Not covered: losses that sort a batch (``aot``, ``aot_unpaired``), and ``sft``, which is a
    channel of its own.

    Args:
        kind: TRL's name of the loss.
        pairs: log-probabilities.
        beta: strength of the reference.
        label_smoothing: share of pairs in the wrong order (``robust``, ``exo_pair``).
    """
    return _OF_PAIRS[kind](pairs, beta, label_smoothing)


def loss_and_margin(
    kind: str, pairs: Pairs, *, beta: float, gamma: float = 0.5, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return loss and margin of each pair for any kind, ``simpo`` too, both (P,).

    SimPO reads no reference: its margin is the difference of the log-probabilities per token.

    Args:
        kind: of :func:`pair_loss`, or ``simpo``.
        pairs: log-probabilities.
        beta: as in both.
        gamma: of :func:`simpo`.
        label_smoothing: as in both.
    """
    if kind != "simpo":
        losses = pair_loss(kind, pairs, beta=beta, label_smoothing=label_smoothing)
        return losses, pairs.margin
    sides = pairs.chosen / pairs.chosen_tokens, pairs.rejected / pairs.rejected_tokens
    losses = simpo(*sides, beta=beta, gamma=gamma, label_smoothing=label_smoothing)
    return losses, sides[0] - sides[1]


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
