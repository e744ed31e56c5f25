"""The forwards and backwards of one optimizer step, on the rows of this rank.

Where the model is sharded, every forward and backward involves all ranks: a rank with fewer
micro-batches runs extra ones with weight 0, and a fault is raised only at the end of the step.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trainers.common.channels import Channel
from trainers.common.gradients import NotFinite, StepGradients
from trainers.common.policy import Policy, tree_attention
from trainers.common.ranks import Ranks, distribute, idle_share
from trainers.common.rows import micro_batches
from trainers.common.shared_prefix import SharedStates
from trainers.common.trees import Item, Shared, trees_of

Windows = Mapping[str, Sequence[Any]]


@dataclass
class StepResult:
    """The result of a step: this rank's loss, the nodes of all ranks, and the share they idled."""

    loss: float = 0.0
    nodes: int = 0
    idle: float = 0.0


class Forwards:
    """Runs windows through the policy."""

    def __init__(
        self,
        policy: Policy,
        channels: Sequence[Channel[Any]],
        backward: Callable[[Tensor], None],
        ranks: Ranks,
    ) -> None:
        self._policy, self._channels = policy, channels
        self._backward, self._ranks = backward, ranks
        self._faults: list[NotFinite] = []

    def run(
        self, windows: Windows, gradients: StepGradients, limit: int, *, shared: bool
    ) -> StepResult:
        """Run this rank's part of the windows; the gradient is left in the parameters."""
        self._faults.clear()
        run = self._together if shared else self._apart
        done = run(windows, gradients, limit)
        if self._faults:
            raise self._faults[0]
        return done

    # -- each row by itself --------------------------------------------------------

    def _apart(self, windows: Windows, gradients: StepGradients, limit: int) -> StepResult:
        done, loads = StepResult(), [0] * self._ranks.size
        for channel in self._channels:
            window = windows[channel.name]
            sizes = [channel.size(row) for row in window]
            hands = distribute(window, sizes, self._ranks.size)
            loads = [n + sum(map(channel.size, hand)) for n, hand in zip(loads, hands, strict=True)]
            batches = [channel.split(hand, limit) for hand in hands]
            for rows in batches[self._ranks.rank]:
                done.loss += self._loss(channel, rows, window, self._policy)
                if not gradients.finite():
                    self._fault([(channel, rows)], "gradient")
            for _ in range(self._missing(batches)):
                self._run_idle(channel, window)
            gradients.end_of(channel.name)
        done.idle = idle_share(loads)
        return done

    def _missing(self, batches: Sequence[Sequence[Any]]) -> int:
        """Return how many micro-batches fewer than the busiest rank this one has."""
        if not self._ranks.lockstep:
            return 0
        return max(map(len, batches)) - len(batches[self._ranks.rank])

    def _run_idle(self, channel: Channel[Any], window: Sequence[Any]) -> None:
        """Run the shortest row's forwards and backward with weight 0."""
        numbers, channel.numbers = channel.numbers, channel.numbers.copy()
        loss = channel.loss(self._policy, [min(window, key=channel.size)], window)
        channel.numbers = numbers
        self._backward(0.0 * loss)

    # -- rows that share forwards --------------------------------------------------

    def _together(self, windows: Windows, gradients: StepGradients, limit: int) -> StepResult:
        items = [
            Item(channel.name, row, channel.sequences(row))
            for channel in self._channels
            for row in windows[channel.name]
        ]
        trees = trees_of(items, limit)
        hands = distribute(trees, [len(of.tree) for of in trees], self._ranks.size)
        batches = [micro_batches(hand, [len(of.tree) for of in hand], limit) for hand in hands]
        loads = [sum(len(of.tree) for of in hand) for hand in hands]
        done = StepResult(nodes=sum(loads), idle=idle_share(loads))
        with tree_attention(self._policy):
            for batch in batches[self._ranks.rank]:
                done.loss += self._shared_batch(batch, windows, gradients)
            for _ in range(self._missing(batches)):
                smallest = min(trees, key=lambda of: len(of.tree))
                self._shared_batch([smallest], windows, gradients, idle=True)
        for channel in self._channels:
            gradients.end_of(channel.name)  # a channel without a row has norm 0
        return done

    def _shared_batch(
        self, batch: list[Shared], windows: Windows, gradients: StepGradients, *, idle: bool = False
    ) -> float:
        """Run one forward, the losses of its channels, and one backward; return the loss.

        Where gradients are measured, each channel has its own backward through the forward.
        Where the model is sharded, each channel has one on every rank.
        """
        states, loss, lockstep = SharedStates(self._policy, batch), 0.0, self._ranks.lockstep
        items = [] if idle else [item for of in batch for item in of.items]
        present = [c for c in self._channels if any(i.channel == c.name for i in items)]
        taken = [c for c in self._channels if windows[c.name]] if lockstep else present
        for channel in taken:
            rows = [item.row for item in items if item.channel == channel.name]
            if rows:
                loss += self._loss(channel, rows, windows[channel.name], states)
            else:
                channel.idle(windows[channel.name])
            if not states.finite():
                self._fault([(channel, rows)], "gradient")
            if gradients.measured or channel is taken[-1]:
                states.backward(again=channel is not taken[-1], always=lockstep)
                if not gradients.finite():
                    behind = [channel] if gradients.measured else present
                    of = [(c, [i.row for i in items if i.channel == c.name]) for c in behind]
                    self._fault(of, "gradient")
                gradients.end_of(channel.name)
        return loss

    # -- one loss ------------------------------------------------------------------

    def _loss(
        self, channel: Channel[Any], rows: list[Any], window: Sequence[Any], policy: Policy
    ) -> float:
        """Run one channel's part of a micro-batch and its backward; return its weighted loss."""
        loss = channel.weight * channel.loss(policy, rows, window)
        value = float(loss.detach())
        if not math.isfinite(value):
            self._fault([(channel, rows)], f"loss ({value})")
        self._backward(loss)
        return value

    def _fault(self, where: Sequence[tuple[Channel[Any], list[Any]]], what: str) -> None:
        """Record what is not finite; raise at once unless other ranks wait for this one."""
        names = ", ".join(channel.name for channel, _ in where)
        ids = ", ".join(dict.fromkeys(row.id for _, rows in where for row in rows))
        error = NotFinite(f"channel {names}: {what} is not finite for row {ids}")
        if not self._ranks.lockstep:
            raise error
        self._faults.append(error)
