"""The channels of recorded actions: trace-replay DPO over pairs, and SFT over demonstrations."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from composer_pipeline.losses.preference import Pairs, loss_and_margin
from composer_pipeline.training.recipe import Dpo as Options
from composer_pipeline.training.rows import Demonstration, Pair
from trainers.common.channels.base import Channel
from trainers.common.policy import Policy
from trainers.common.rows import Row


class Dpo(Channel[Pair]):
    """DPO against the base model, or SimPO; each pair's loss times its factor, mean over a window.

    Reported without the factors, as means over pairs: ``loss`` (ln 2 for ``sigmoid`` while the
    policy equals its reference), ``accuracy`` (share of pairs with a margin above 0), ``margin``
    (of mean token log-probabilities, without a reference, for ``simpo``) and the
    log-probabilities of both sides.

    Args:
        references: pair id to log p(chosen), log p(rejected) under the base model; unused by
            ``simpo``.
        factors: pair id to the factor of its loss (``training.rows.loss_factors``).
        options: the recipe's channel.
        args: of :class:`Channel`.
    """

    name = "dpo"

    def __init__(
        self,
        *args: Any,
        references: Mapping[str, tuple[float, float]],
        factors: Mapping[str, float],
        options: Options,
    ) -> None:
        super().__init__(*args)
        self._references, self._factors, self._options = references, factors, options

    def size(self, row: Pair) -> int:
        """Return the tokens of both sides, padded to the longer one."""
        return 2 * (len(row.prompt_ids) + max(len(row.chosen_ids), len(row.rejected_ids)))

    def sequences(self, row: Pair) -> list[Row]:
        """Return the chosen and the rejected side."""
        return [Row(row.prompt_ids, row.chosen_ids), Row(row.prompt_ids, row.rejected_ids)]

    def loss(self, policy: Policy, rows: Sequence[Pair], window: Sequence[Pair]) -> Tensor:
        """Return Σ factor·loss over the micro-batch, divided by the pairs of the window."""
        sides = [side for pair in rows for side in self.sequences(pair)]
        sums = torch.stack([x.sum() for x in policy.logps(sides)])
        chosen, rejected = sums[::2], sums[1::2]
        losses, margin = self._of(rows, chosen, rejected)
        share, numbers = 1.0 / len(window), self.numbers
        numbers["loss"] += float(losses.detach().sum()) * share
        numbers["active"] += len(rows)
        numbers["accuracy"] += float((margin > 0).sum()) * share
        numbers["margin"] += float(margin.detach().sum()) * share
        numbers["chosen_logp"] += float(chosen.detach().sum()) * share
        numbers["rejected_logp"] += float(rejected.detach().sum()) * share
        factors = losses.new_tensor([self._factors[row.id] for row in rows])
        return (losses * factors).sum() * share

    def _of(self, rows: Sequence[Pair], chosen: Tensor, rejected: Tensor) -> tuple[Tensor, Tensor]:
        """Return loss and margin of each pair, (P,), from the summed log p of both sides."""
        options, like = self._options, chosen.new_tensor
        tokens = like([(len(p.chosen_ids), len(p.rejected_ids)) for p in rows]).unbind(-1)
        base = like([self._references.get(row.id, (0.0, 0.0)) for row in rows]).unbind(-1)
        return loss_and_margin(
            options.loss, Pairs(chosen, rejected, *base, *tokens), beta=options.beta,
            gamma=options.simpo_gamma, label_smoothing=options.label_smoothing,
        )  # fmt: skip


class Sft(Channel[Demonstration]):
    """Mean negative log-likelihood of actions to repeat, over the tokens of the window."""

    name = "sft"

    def size(self, row: Demonstration) -> int:
        """Return the tokens of prompt and response."""
        return len(row.prompt_ids) + len(row.response_ids)

    def sequences(self, row: Demonstration) -> list[Row]:
        """Return the demonstration."""
        return [Row(row.prompt_ids, row.response_ids)]

    def loss(
        self, policy: Policy, rows: Sequence[Demonstration], window: Sequence[Demonstration]
    ) -> Tensor:
        """Return −Σ log p / tokens of the window; ``active`` counts tokens."""
        tokens = sum(len(row.response_ids) for row in window)
        pieces = policy.logps([side for row in rows for side in self.sequences(row)])
        loss = -sum((piece.sum() for piece in pieces), pieces[0].new_zeros(())) / tokens
        self.numbers["loss"] += float(loss.detach())
        self.numbers["active"] += sum(len(row.response_ids) for row in rows)
        return loss
