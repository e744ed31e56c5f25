"""Norms, shares and cosines of the channels' gradients, and the two failures they show.

A measured step keeps one gradient per channel: with C channels C - 1 times the memory of the
trained parameters more than other steps.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from composer_pipeline.errors import ComposerError
from trainers.common.ranks import Ranks, is_sharded, local_part

#: A channel whose share of the norm stays below this for a round is dead.
DEAD = 1e-6


class BadSteps(ComposerError):
    """Too many steps in a row had a loss or a gradient that is not finite."""


class DeadChannel(ComposerError):
    """A channel with a weight has had no gradient for a whole round."""


class NotFinite(ComposerError):
    """A micro-batch has a loss or a gradient that is not finite; the message names it."""


class StepGradients:
    """The gradients of one optimizer step, summed over ``ranks``; ``channels`` in their order."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        *,
        measured: bool,
        channels: Sequence[str] = (),
        ranks: Ranks | None = None,
    ) -> None:
        self._parameters, self.measured = list(parameters), measured
        self._ranks = ranks or Ranks()
        self._channels = tuple(channels)
        self._of: dict[str, list[Tensor | None]] = {}
        self._forget()

    def finite(self) -> bool:
        """Return whether all gradients on this rank are finite so far."""
        return math.isfinite(float(get_total_norm([local_part(g) for g in _present(self._now())])))

    def end_of(self, channel: str) -> None:
        """In a measured step, move what was gathered since the last call to this channel."""
        if not self.measured:
            return
        before = self._of.get(channel) or [None] * len(self._parameters)
        self._of[channel] = [
            new if old is None else old if new is None else old.add_(new)
            for old, new in zip(before, self._now(), strict=True)
        ]
        for parameter in self._parameters:
            parameter.grad = None

    def finish(self) -> dict[str, float]:
        """Leave the sum of all ranks in ``grad`` and return the numbers of the step.

        Always ``grad_norm``, before clipping. In a measured step also, for each channel c and
        other channel d: ``c_grad_norm``, ``c_grad_share`` (of the sum of the norms) and
        ``c_cos_d``. Every rank returns the same.
        """
        if not self.measured:
            self._set(self._summed(self._now()))
            return {"grad_norm": self._norm(self._now())}
        of = {name: self._summed(grads) for name, grads in self._of.items()}
        self._forget()
        names = list(of)
        pairs = [(a, b) for i, a in enumerate(names) for b in names[i:]]
        dots = dict(zip(pairs, self._dots([(of[a], of[b]) for a, b in pairs]), strict=True))
        # The first channel's tensors become the sum.
        whole: list[Tensor | None] = []
        for grads in zip(*of.values(), strict=True):
            pieces = _present(grads)
            whole.append(sum(pieces[1:], start=pieces[0]) if pieces else None)
        self._set(whole)
        numbers = {"grad_norm": self._norm(whole)}
        norms = {name: math.sqrt(dots[name, name]) for name in names}
        total = sum(norms.values())
        for name, norm in norms.items():
            numbers[f"{name}_grad_norm"] = norm
            numbers[f"{name}_grad_share"] = norm / total if total else 0.0
        for a, b in pairs:
            if a != b:
                size = norms[a] * norms[b]
                numbers[f"{a}_cos_{b}"] = dots[a, b] / size if size else 0.0
        return numbers

    def drop(self) -> None:
        """Discard everything: an optimizer skips a parameter without gradient."""
        self._forget()
        self._set([None] * len(self._parameters))

    def _forget(self) -> None:
        # In the same order on every rank, whatever runs first there.
        names = self._channels if self.measured else ()
        self._of = {name: [None] * len(self._parameters) for name in names}

    def _now(self) -> list[Tensor | None]:
        return [parameter.grad for parameter in self._parameters]

    def _set(self, grads: Sequence[Tensor | None]) -> None:
        for parameter, grad in zip(self._parameters, grads, strict=True):
            parameter.grad = grad

    def _summed(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return gradients summed over the ranks; those of sharded parameters already are."""
        if not self._ranks.several:
            return list(grads)
        there = torch.tensor([float(g is not None) for g in grads])
        self._ranks.sum([there])
        out = [
            torch.zeros_like(p) if g is None and n else g
            for p, g, n in zip(self._parameters, grads, there.tolist(), strict=True)
        ]
        self._ranks.sum([g for g in _present(out) if not is_sharded(g)])
        return out

    def _norm(self, grads: Sequence[Tensor | None]) -> float:
        there = _present(grads)
        norm = float(get_total_norm([grad for grad in there if not is_sharded(grad)]))
        if self._ranks.lockstep:
            own = get_total_norm([local_part(grad) for grad in there if is_sharded(grad)])
            square = own.double().square().cpu().reshape(1)
            self._ranks.sum([square])
            norm = math.sqrt(norm**2 + float(square))
        return norm

    def _dots(
        self, pairs: Sequence[tuple[Sequence[Tensor | None], Sequence[Tensor | None]]]
    ) -> list[float]:
        """Return the products of whole gradients; those of shards are summed over the ranks."""
        whole = [_dot(a, b, cut=False) for a, b in pairs]
        if not self._ranks.lockstep:
            return whole
        parts = torch.tensor([_dot(a, b, cut=True) for a, b in pairs], dtype=torch.float64)
        self._ranks.sum([parts])
        return [a + b for a, b in zip(whole, parts.tolist(), strict=True)]


#: Consecutive steps with a non-finite loss or gradient that end the run.
MAX_BAD_STEPS = 3


class Watch:
    """Tracks which channels had a gradient in this round, and consecutive bad steps."""

    def __init__(self, channels: Sequence[str], *, inner_steps: int) -> None:
        self._inner = inner_steps
        self._largest = dict.fromkeys(channels, 0.0)
        self._bad = self._good = self._steps = 0

    def state(self) -> dict[str, Any]:
        """Return its memory as plain numbers."""
        known = {"bad": self._bad, "good": self._good, "steps": self._steps}
        return {"largest": dict(self._largest), **known}

    def load_state(self, numbers: dict[str, Any]) -> None:
        """Restore :meth:`state`."""
        self._largest = dict(numbers["largest"])
        self._bad, self._good, self._steps = (numbers[key] for key in ("bad", "good", "steps"))

    def bad(self, what: str) -> None:
        """Count a bad step; raises ``BadSteps`` after MAX_BAD_STEPS in a row."""
        self._bad, self._steps = self._bad + 1, self._steps + 1
        if self._bad >= MAX_BAD_STEPS:
            raise BadSteps(
                f"{what}; {self._bad} bad steps in a row: lower learning_rate or check the row"
            )

    def good(self, numbers: dict[str, float]) -> None:
        """Record the numbers of a finite step."""
        self._bad, self._good, self._steps = 0, self._good + 1, self._steps + 1
        for channel in self._largest:
            norm = numbers.get(f"{channel}_grad_norm", 0.0)
            whole = numbers["grad_norm"]
            share = norm / whole if whole else 0.0
            self._largest[channel] = max(self._largest[channel], share)

    @property
    def unseen(self) -> list[str]:
        """The channels without a gradient so far in this round."""
        return [name for name, share in self._largest.items() if share < DEAD]

    def end_of_round(self) -> None:
        """Raise ``DeadChannel`` if a channel had no gradient; a short round joins the next."""
        if self._steps < self._inner:  # in so few steps, answers may all have been equally good
            return
        dead = self.unseen
        if dead and self._good:
            raise DeadChannel(
                f"channel {dead[0]} has a weight, but its gradient stayed below {DEAD:g} of the"
                f" whole for a round of {self._inner} steps: it has no effect; set its weight to 0"
                " or check its data"
            )
        self._largest = dict.fromkeys(self._largest, 0.0)
        self._good = self._steps = 0


def _present(grads: Sequence[Tensor | None]) -> list[Tensor]:
    return [grad for grad in grads if grad is not None]


def _dot(a: Sequence[Tensor | None], b: Sequence[Tensor | None], *, cut: bool) -> float:
    total = 0.0
    for x, y in zip(a, b, strict=True):
        if x is not None and y is not None and is_sharded(x) == cut:
            total += float((local_part(x).double() * local_part(y).double()).sum())
    return total
