"""The channels of stored pairs and demonstrations: trace-replay DPO, and SFT.

Belongs here: two losses over recorded actions. Does not belong here: the base model's
log-probabilities (``trainers.trl.base_model.base_pass``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from composer_pipeline.losses.preference import dpo_sigmoid
from composer_pipeline.training.data import Demonstration, Pair
from trainers.trl.channels.base import Channel
from trainers.trl.policy.student import Student
from trainers.trl.rows.batches import Row


class Dpo(Channel[Pair]):
    """DPO against the base model; each pair's term times its factor, mean over the window.

    Reported without the factors: ``loss`` (ln 2 while the model is its own reference),
    ``accuracy`` (share of pairs with a margin above 0), ``margin`` and the log-probabilities of
    both sides, all means over pairs.

    Args:
        references: pair id to log p(chosen), log p(rejected) under the base model.
        factors: pair id to the factor of its loss (``training.data.loss_factors``).
        beta: DPO's own.
        kwargs: of :class:`Channel`.
    """

    name = "dpo"

    def __init__(
        self,
        *args: Any,
        references: Mapping[str, tuple[float, float]],
        factors: Mapping[str, float],
        beta: float,
    ) -> None:
        super().__init__(*args)
        self._references, self._factors, self._beta = references, factors, beta

    def window(self, student: Student, step: int) -> list[Pair]:
        """Return the step's pairs."""
        self.begin()
        return self.drawn(step)

    def size(self, row: Pair) -> int:
        """Return the tokens of the longer side; a pair is two sequences of a forward."""
        # Both sides run together: count two.
        return 2 * (len(row.prompt_ids) + max(len(row.chosen_ids), len(row.rejected_ids)))

    def sequences(self, row: Pair) -> list[Row]:
        """Return the chosen and the rejected side."""
        return [Row(row.prompt_ids, row.chosen_ids), Row(row.prompt_ids, row.rejected_ids)]

    def id(self, row: Pair) -> str:
        """Return the pair's id."""
        return row.id

    def loss(self, student: Student, rows: Sequence[Pair], window: Sequence[Pair]) -> Tensor:
        """Return Σ factor·(−logsigmoid(β·margin)) over the pairs of the window."""
        sides = [side for pair in rows for side in self.sequences(pair)]
        sums = [piece.sum() for piece in student.logps(sides)]
        total = sums[0].new_zeros(())
        share = 1.0 / len(window)
        for row, chosen, rejected in zip(rows, sums[::2], sums[1::2], strict=True):
            ref_chosen, ref_rejected = chosen.new_tensor(self._references[row.id]).unbind()
            loss = dpo_sigmoid(chosen, rejected, ref_chosen, ref_rejected, beta=self._beta)
            margin = float(((chosen - ref_chosen) - (rejected - ref_rejected)).detach())
            numbers = self.numbers
            numbers["loss"] += float(loss.detach()) * share
            numbers["active"] += 1
            numbers["accuracy"] += (margin > 0) * share
            numbers["margin"] += margin * share
            numbers["chosen_logp"] += float(chosen.detach()) * share
            numbers["rejected_logp"] += float(rejected.detach()) * share
            total = total + loss * self._factors[row.id] * share
        return total


class Sft(Channel[Demonstration]):
    """Mean negative log-likelihood of actions to repeat, over the tokens of the window."""

    name = "sft"

    def window(self, student: Student, step: int) -> list[Demonstration]:
        """Return the step's demonstrations."""
        self.begin()
        return self.drawn(step)

    def size(self, row: Demonstration) -> int:
        """Return the tokens of prompt and response."""
        return len(row.prompt_ids) + len(row.response_ids)

    def sequences(self, row: Demonstration) -> list[Row]:
        """Return the demonstration."""
        return [Row(row.prompt_ids, row.response_ids)]

    def id(self, row: Demonstration) -> str:
        """Return the state's id."""
        return row.id

    def loss(
        self, student: Student, rows: Sequence[Demonstration], window: Sequence[Demonstration]
    ) -> Tensor:
        """Return −Σ log p / tokens of the window; ``active`` counts tokens."""
        tokens = sum(len(row.response_ids) for row in window)
        pieces = student.logps([side for row in rows for side in self.sequences(row)])
        loss = -sum((piece.sum() for piece in pieces), pieces[0].new_zeros(())) / tokens
        self.numbers["loss"] += float(loss.detach())
        self.numbers["active"] += sum(len(row.response_ids) for row in rows)
        return loss
