"""The SDPO channel: at an error turn, the policy learns from the model that has read the hint.

The recorded action was not sampled from the policy: this is off-policy context distillation.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from composer_pipeline.errors import ComposerError
from composer_pipeline.losses.divergence import fused_divergence
from composer_pipeline.losses.sdpo import TaidScheduler, importance_ratio
from composer_pipeline.losses.token_logps import token_logps
from composer_pipeline.training.recipe import Sdpo as Options
from composer_pipeline.training.rows import Hint
from trainers.common.channels.base import Channel
from trainers.common.policy import Policy, Teacher
from trainers.common.rows import Row

#: The state of TAID's schedule; the rest is the recipe's.
TAID_STATE = ("t", "previous", "momentum")


class Sdpo(Channel[Hint]):
    """Divergence from the hinted teacher, mean over the span tokens of the window.

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
        options: Options,
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
