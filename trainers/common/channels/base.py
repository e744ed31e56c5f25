"""The interface between ``ComposerTrainer`` and a channel, one term of the loss.

A channel's window is what one optimizer step takes of its rows. Its loss is a sum over
micro-batches that already holds the window's normaliser, so it does not depend on the split.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor

from trainers.common.policy import Policy
from trainers.common.rows import Row, micro_batches

R = TypeVar("R")


class Channel(ABC, Generic[R]):
    """One term of the loss; every row has an ``id`` for messages.

    Attributes:
        name: of the channel in recipes and metrics.
        weight: its factor in the loss.
        numbers: metrics of the current window, without the channel's name.

    Args:
        rows: all rows of the channel.
        plan: row numbers in the order in which this replica takes them, from step 0 of the run.
        per_step: rows of one optimizer step.
    """

    name: str

    def __init__(
        self, rows: Sequence[Any], plan: Sequence[int], per_step: int, weight: float
    ) -> None:
        self._rows, self._plan, self._per_step = rows, plan, per_step
        self.weight = weight
        self.numbers: dict[str, float] = defaultdict(float)

    def drawn(self, step: int) -> list[Any]:
        """Return the rows of optimizer step ``step`` of the run, 0-based."""
        start = step * self._per_step
        return [self._rows[i] for i in self._plan[start : start + self._per_step]]

    def window(self, policy: Policy, step: int) -> list[R]:
        """Return what the step trains on, and reset ``numbers``."""
        self.begin()
        return self.drawn(step)

    @abstractmethod
    def size(self, row: R) -> int:
        """Return the tokens of the longest sequence that a row puts into a forward."""

    @abstractmethod
    def sequences(self, row: R) -> list[Row]:
        """Return the sequences that the policy reads of a row, as :meth:`loss` needs them."""

    @abstractmethod
    def loss(self, policy: Policy, rows: Sequence[R], window: Sequence[R]) -> Tensor:
        """Return a micro-batch's share of the window's unweighted loss, and update ``numbers``."""

    def idle(self, window: Sequence[R]) -> None:
        """Run the forwards of :meth:`loss` besides the policy's own; other ranks run theirs."""
        return

    def finish(self, window: Sequence[R]) -> dict[str, float]:
        """Return the window's numbers as ``<name>_…``; ``active`` counts what it trained on."""
        return {f"{self.name}_{key}": float(value) for key, value in self.numbers.items()}

    def split(self, window: Sequence[R], limit: int) -> list[list[R]]:
        """Return the window in micro-batches of at most ``limit`` padded tokens."""
        return micro_batches(window, [self.size(row) for row in window], limit)

    def begin(self) -> None:
        """Reset the numbers for a new window."""
        self.numbers = defaultdict(float, loss=0.0, active=0.0)

    def after_step(self, step: int) -> None:
        """Called after ``step`` optimizer steps; not after a step that was dropped."""
        return

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what a restart needs besides the parameters: tensors and plain numbers."""
        return {}, {}

    def load_state(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Restore :meth:`state`."""
        return
