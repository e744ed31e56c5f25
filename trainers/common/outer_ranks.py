"""DiLoCo for a replica of several ranks: rank 0 talks to the log, the others follow it."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from composer_pipeline.diloco.callback import DiLoCoCallback, trainable
from composer_pipeline.diloco.checkpoint import bare
from trainers.common.ranks import Ranks, is_sharded, set_local_part, whole_copy


class WholeParameters:
    """Stands for a sharded model: its trained parameters, whole, on the CPU."""

    def __init__(self, named: Mapping[str, Tensor]) -> None:
        self._named = dict(named)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the trained parameters."""
        yield from self._named.items()


class OverRanks(TrainerCallback):
    """The DiLoCo callback of each rank; rank 0's wraps the real one.

    Attributes:
        position: optimizer steps of the run behind the parameters, as rank 0 knows it.
        ends_round: whether the current step is its round's last, as rank 0 knows it.
        trainer: this rank's trainer, which takes over rank 0's private state when training begins.
    """

    trainer: Any = None

    def __init__(self, ranks: Ranks, inner: DiLoCoCallback | None) -> None:
        self._ranks, self._inner = ranks, inner
        self._whole: WholeParameters | None = None
        self.position, self.ends_round, self._exchanges = 0, False, False

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Join on rank 0, and start all ranks from what it has adopted."""
        self._gather(given["model"])
        self._forward("on_train_begin", args, state, control, given)
        self._follow(state, control, given, moved=True, began=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Forward to rank 0's callback."""
        self._forward("on_step_begin", args, state, control, given)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Share whether the round ends with this step."""
        self._forward("on_optimizer_step", args, state, control, given)
        mine = (False, False)
        if self._inner is not None:
            mine = self._inner.ends_round, self._inner.exchanges
        self.ends_round, self._exchanges = self._ranks.share(mine)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """End the round on rank 0, and continue from what it has adopted."""
        if self._exchanges:
            self._gather(given["model"])
        self._forward("on_step_end", args, state, control, given)
        moved = self._inner is not None and self._inner.moved
        self._follow(state, control, given, moved=moved)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Leave on rank 0; all ranks have the newest committed parameters."""
        self._gather(given["model"])
        self._forward("on_train_end", args, state, control, given)

    def _forward(
        self, event: str, args: Any, state: Any, control: Any, given: dict[str, Any]
    ) -> None:
        if self._inner is not None:
            model = given["model"] if self._whole is None else self._whole
            getattr(self._inner, event)(args, state, control, **given | {"model": model})

    def _gather(self, model: Any) -> None:
        """Keep whole copies on rank 0 where parameters are sharded; a collective call."""
        named = trainable(model)
        if not any(map(is_sharded, named.values())):
            return
        full = {}
        for name, parameter in named.items():
            tensor = whole_copy(parameter)
            if self._ranks.lead:
                full[name] = tensor.clone().requires_grad_()
        if self._ranks.lead:
            self._whole = WholeParameters(full)

    def _follow(
        self,
        state: Any,
        control: Any,
        given: Mapping[str, Any],
        *,
        moved: bool,
        began: bool = False,
    ) -> None:
        """Bring every rank to rank 0's round, parameters, schedule and moments."""
        scheduler = getattr(given.get("lr_scheduler"), "scheduler", given.get("lr_scheduler"))
        optimizer = bare(given.get("optimizer"))
        lead: dict[str, Any] = {}
        if self._inner is not None:
            lead = {
                "position": self._inner.position(),
                "stop": control.should_training_stop,
                "moved": moved,
                "seen": state.num_input_tokens_seen,
                "schedule": scheduler.state_dict() if moved and scheduler is not None else None,
                "empty": optimizer is not None and not optimizer.state,
            } | (self._begun(optimizer) if began else {})
        lead = self._ranks.share(lead)
        self.position = lead["position"]
        control.should_training_stop = lead["stop"]
        if not lead["moved"]:
            return
        self._adopt(given["model"])
        if not self._ranks.lead:
            state.num_input_tokens_seen = lead["seen"]
            self._take(lead, scheduler, optimizer)

    def _begun(self, optimizer: Any) -> dict[str, Any]:
        """Return what rank 0 has restored of an earlier process."""
        found = {} if self.trainer is None else {"private": self.trainer.private()}
        if optimizer is not None and optimizer.state:
            found["moments"] = optimizer.state_dict()
        return found

    def _take(self, lead: Mapping[str, Any], scheduler: Any, optimizer: Any) -> None:
        """Set this rank's own state to rank 0's."""
        if "private" in lead:
            self.trainer.load_private(*lead["private"])
        if optimizer is not None and lead["empty"]:
            optimizer.state.clear()
        if "moments" in lead:
            optimizer.load_state_dict(lead["moments"])
        if scheduler is not None and lead["schedule"] is not None:
            scheduler.load_state_dict(lead["schedule"])
            rates = scheduler.get_last_lr()
            for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    @torch.no_grad()
    def _adopt(self, model: Any) -> None:
        """Set the trained parameters of every rank to those of rank 0."""
        full = dict(self._whole.named_parameters()) if self._whole is not None else {}
        for name, parameter in trainable(model).items():
            own = full.get(name)  # rank 0 adopted into its whole copies, if any
            if not is_sharded(parameter):
                if own is not None:
                    parameter.copy_(own)
                self._ranks.copy([parameter.data])
                continue
            one = torch.empty(parameter.shape, dtype=parameter.dtype) if own is None else own.data
            self._ranks.copy([one])
            set_local_part(parameter.data, one, self._ranks)
        self._whole = None
