"""Who the student learns from in SDPO: the model before training, its average, or itself.

Belongs here: the three teachers. Does not belong here: what they read (hints come with the
data) and the divergence (``trainers.trl.channels.sdpo``).

With LoRA the average is that of the adapter's two factors, which is not the average of their
product: an approximation that costs no second model.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from trainers.trl.policy.student import Student, frozen_copy
from trainers.trl.rows.batches import Row

Kind = Literal["frozen", "ema", "live"]


class Teacher(ABC):
    """A model that reads the hint and is never trained by it."""

    @abstractmethod
    def states(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """Return states (N, H), the tokens (N,) that they predict, and the head (V, H)."""

    def follow(self) -> None:
        """Move after an optimizer step; most teachers stay."""
        return

    def state(self) -> dict[str, Tensor]:
        """Return what a restart needs."""
        return {}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore :meth:`state`."""
        return


class Frozen(Teacher):
    """The model before training: the adapter off, or a copy where every parameter is trained."""

    def __init__(self, student: Student) -> None:
        self._student = student
        self._copy = None if student.has_adapter else frozen_copy(student)

    @torch.no_grad()
    def states(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """Run the base model."""
        if self._copy is not None:
            return (*self._copy.states(rows), self._copy.head)
        with self._student.base():
            return (*self._student.states(rows), self._student.head.detach())


class Live(Teacher):
    """The student itself, without gradient."""

    def __init__(self, student: Student) -> None:
        self._student = student

    @torch.no_grad()
    def states(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """Run the student."""
        return (*self._student.states(rows), self._student.head.detach())


class Ema(Teacher):
    """An exponential moving average of the trained parameters, kept in float32.

    ``average ← average + rate·(student − average)`` after each optimizer step, starting from
    the student as it is at the first forward.
    """

    def __init__(self, student: Student, rate: float) -> None:
        self._student, self._rate = student, rate
        self._average: dict[str, Tensor] = {}

    @torch.no_grad()
    def states(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """Run the average."""
        with self._swapped():
            states, ids = self._student.states(rows)
            return states, ids, self._student.head.detach()

    @torch.no_grad()
    def follow(self) -> None:
        """Take one step towards the student, unless it has diverged: an average never recovers."""
        trained = self._trained()
        finite = [torch.isfinite(parameter).all() for parameter in trained.values()]
        if not bool(torch.stack(finite).all()):  # asked of the device once
            return
        for name, parameter in trained.items():
            average = self._average[name]
            average += self._rate * (parameter.detach().float() - average)

    def state(self) -> dict[str, Tensor]:
        """Return the average by parameter name."""
        return {name: average.cpu() for name, average in self._trained_average().items()}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Go on from an average of an earlier process."""
        device = self._student.device
        self._average = {name: value.float().to(device) for name, value in tensors.items()}

    def _trained(self) -> dict[str, Tensor]:
        named = self._student.model.named_parameters()
        trained = {name: p for name, p in named if p.requires_grad}
        if not self._average:
            self._average = {n: p.detach().float().clone() for n, p in trained.items()}
        return trained

    def _trained_average(self) -> dict[str, Tensor]:
        self._trained()
        return self._average

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        trained = self._trained()
        own = {name: parameter.data for name, parameter in trained.items()}
        try:
            for name, parameter in trained.items():
                parameter.data = self._average[name].to(parameter.dtype)
            yield
        finally:
            for name, parameter in trained.items():
                parameter.data = own[name]


def teacher(kind: Kind, student: Student, *, ema_rate: float) -> Teacher:
    """Return the teacher of a recipe."""
    if kind == "frozen":
        return Frozen(student)
    return Ema(student, ema_rate) if kind == "ema" else Live(student)
