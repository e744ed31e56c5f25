"""The terms of the composer loss: what a channel is, and SDPO, trace-replay DPO and SFT.

A channel's window is what one optimizer step takes of its rows. Its loss is a sum over
micro-batches that already holds the window's normaliser, so it does not depend on the split.
GRPO, which needs TRL, is in ``trainers.trl.grpo``.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from composer_pipeline.errors import ComposerError
from composer_pipeline.losses.divergence import fused_divergence
from composer_pipeline.losses.preference import Pairs, loss_and_margin
from composer_pipeline.losses.sdpo import TaidScheduler, importance_ratio
from composer_pipeline.losses.token_logps import token_logps
from composer_pipeline.training.recipe import Dpo as DpoOptions
from composer_pipeline.training.recipe import Sdpo as SdpoOptions
from composer_pipeline.training.rows import Demonstration, Hint, Pair
from trainers.common.policy import Policy, Teacher
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
        options: DpoOptions,
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


#: The state of TAID's schedule; the rest is the recipe's.
TAID_STATE = ("t", "previous", "momentum")


class Sdpo(Channel[Hint]):
    """Divergence from the hinted teacher, mean over the span tokens of the window.

    The recorded action was not sampled from the policy: this is off-policy context distillation.

    Args:
        options: the recipe's channel.
        teacher: the model that reads the hint.
        steps: optimizer steps of the run, for TAID's schedule.
        gains: state id to the hint's gain under the base model, for the metrics; may be empty.
        base_logps: state id to log p of the response's tokens under the base model; needed
            for ``importance_clip``.
        args: of :class:`Channel`.
    """

    name = "sdpo"

    def __init__(
        self,
        *args: Any,
        options: SdpoOptions,
        teacher: Teacher,
        steps: int,
        gains: Mapping[str, float],
        base_logps: Mapping[str, Sequence[float]],
    ) -> None:
        super().__init__(*args)
        self._options, self._teacher = options, teacher
        self._gains, self._base_logps = gains, base_logps
        self._taid = TaidScheduler(total_steps=steps)

    def window(self, policy: Policy, step: int) -> list[Hint]:
        """Return the step's error turns."""
        window = super().window(policy, step)
        if self._options.divergence == "taid":
            self.numbers["taid_t"] = float(self._taid.t or 0.0)
        return window

    def size(self, row: Hint) -> int:
        """Return the tokens of the longer context with the response."""
        context = max(len(row.prompt_ids), len(row.teacher_prompt_ids))
        return context + len(row.response_ids)

    def sequences(self, row: Hint) -> list[Row]:
        """Return the plain side; the teacher reads the hinted one."""
        return [Row(row.prompt_ids, row.response_ids, row.start, row.length)]

    def loss(self, policy: Policy, rows: Sequence[Hint], window: Sequence[Hint]) -> Tensor:
        """Return the micro-batch's part of the window's token mean."""
        options = self._options
        plain = [side for hint in rows for side in self.sequences(hint)]
        taught, taught_ids, taught_head = self._teacher.states([_hinted(h) for h in rows])
        states, ids = policy.states(plain)
        if not torch.equal(ids, taught_ids):
            raise ComposerError("SDPO: policy and teacher positions hold different tokens")
        # One denominator for the whole window, so that the loss is its token mean.
        tokens = sum(row.length for row in window)
        weights = torch.full((len(ids),), 1.0 / tokens, device=ids.device)
        if options.importance_clip is not None:
            weights = weights * self._ratio(policy, states, ids, rows)
        loss, _ = fused_divergence(
            states, policy.head, taught, taught_head, weights,
            kind=options.divergence, beta=options.jsd_beta, temperature=options.temperature,
            t=float(self._taid.t or 0.0), transform=policy.transform,
        )  # fmt: skip
        self.numbers["loss"] += float(loss.detach())
        self.numbers["active"] += len(ids)
        if self._gains:
            mean = sum(self._gains[row.id] for row in rows) / len(window)
            self.numbers["hint_gain"] += mean
        return loss

    def idle(self, window: Sequence[Hint]) -> None:
        """Run the teacher on the shortest row."""
        self._teacher.states([_hinted(min(window, key=self.size))])

    def _ratio(self, policy: Policy, states: Tensor, ids: Tensor, rows: Sequence[Hint]) -> Tensor:
        """Return min(p / p_base, clip) of each span token, without gradient."""
        assert self._options.importance_clip is not None
        old = [p for h in rows for p in self._base_logps[h.id][h.start : h.start + h.length]]
        with torch.no_grad():
            now = token_logps(
                states.detach(), policy.head.detach(), ids, transform=policy.transform
            )
        return importance_ratio(now, now.new_tensor(old), clip=self._options.importance_clip)

    def after_step(self, step: int) -> None:
        """Move teacher and schedule."""
        self._teacher.follow()
        if self._options.divergence == "taid":
            self._taid.update(self.numbers["loss"], step)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the teacher's average and TAID's schedule."""
        taid = self._options.divergence == "taid"
        numbers = {name: getattr(self._taid, name) for name in TAID_STATE} if taid else {}
        return self._teacher.state(), numbers

    def load_state(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Restore :meth:`state`; what an earlier run did not have starts anew."""
        if tensors:
            self._teacher.load_state(tensors)
        for name in TAID_STATE if numbers else ():
            setattr(self._taid, name, numbers[name])


def _hinted(row: Hint) -> Row:
    return Row(row.teacher_prompt_ids, row.response_ids, row.start, row.length)
