"""The composer loss as a loss function of verl's engines, and SDPO's teacher on its model."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import distribute_tensor

from composer_pipeline.losses.sdpo import TaidScheduler
from composer_pipeline.losses.step import StepOptions, StepRow, step_loss, token_divergence
from composer_pipeline.training.recipe import TrainingRecipe
from trainers.common.channels import TAID_STATE
from trainers.common.ranks import whole_copy


def predicting(row: StepRow) -> slice:
    """Return the positions of a sequence that predict its span."""
    first = len(row.prompt_ids) + row.start - 1
    return slice(first, first + row.length)


class ComposerLoss:
    """What verl calls twice a micro-batch: with the logits, then with what that call returned.

    A micro-batch names its rows by number in the column ``row``; -1 is filling. ``sums`` are of
    the step's micro-batches on this rank, ``faults`` the rows whose loss is not finite.
    """

    def __init__(self, options: StepOptions) -> None:
        self.options = options
        self.begin((), {}, 0.0)

    def begin(self, rows: Sequence[StepRow], taught: Mapping[str, Tensor], t: float) -> None:
        """Start a step, given the teacher's logits (length, V) by unit, and TAID's position."""
        self._rows, self._taught, self._t = rows, taught, t
        self.sums: list[dict[str, float]] = []
        self.faults: list[str] = []

    def __call__(
        self, model_output: Any = None, data: Any = None, dp_group: Any = None,
        student_logits: Tensor | None = None,
    ) -> Any:  # fmt: skip
        """Return what the loss needs of logits (1, N, V), then loss and metrics."""
        begins = zip(data["row"].tolist(), data["input_ids"].offsets().tolist(), strict=False)
        there = [(self._rows[i], at) for i, at in begins if i >= 0]
        if student_logits is not None:
            return self._of_spans(student_logits[0], there)
        logps, divergences = (model_output[name].values() for name in ("logps", "sdpo"))
        loss, sums = step_loss(
            [row for row, _ in there],
            [logps[at:][predicting(row)] for row, at in there] or [logps[:0]],
            [divergences[at:][predicting(row)] for row, at in there],
            self.options,
        )
        self.sums.append(sums)
        if not math.isfinite(float(loss.detach())):
            ids = (f"{row.channel} {row.unit.partition('/')[2]}" for row, _ in there)
            self.faults += dict.fromkeys(ids)
            loss = loss * math.nan  # the gradient's norm tells every rank
        return loss * data["dp_size"], {}  # the engine averages over the ranks

    def _of_spans(self, logits: Tensor, there: Sequence[tuple[StepRow, int]]) -> dict[str, Tensor]:
        """Return log p and divergence of the spans' tokens, (1, N), in float32; 0 elsewhere."""
        out = {n: logits.new_zeros(len(logits), dtype=torch.float32) for n in ("logps", "sdpo")}
        out["logps"] = out["logps"] + logits[:0].sum()  # in the graph, whatever the rows
        places = torch.arange(len(logits), device=logits.device)
        for row, begin in there:
            at = (places[begin:][predicting(row)],)
            span = logits[at].float()
            ids = torch.tensor(row.response_ids[row.start :][: row.length], device=span.device)
            logps = span.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - span.logsumexp(-1)
            out["logps"] = out["logps"].index_put(at, logps)
            if row.role == "plain":
                taught = self._taught[row.unit].float()
                values = token_divergence(span, taught, self.options, t=self._t)
                out["sdpo"] = out["sdpo"].index_put(at, values)
        return {name: values.unsqueeze(0) for name, values in out.items()}


class Taught:
    """SDPO's teacher on verl's sharded model, and TAID's schedule; kept by ``ChannelStates``.

    The frozen teacher is the adapter switched off. Without an adapter it is, like the moving
    average, a second set of the trained parameters, sharded alike, that stands in for a forward.
    """

    def __init__(self, engine: Any, recipe: TrainingRecipe) -> None:
        self._engine, self._options = engine, recipe.channels.sdpo
        self._bare, on = not recipe.lora.r, "sdpo" in recipe.channels.weights()
        self._moves = on and self._options.teacher == "ema"
        self._schedules = on and self._options.divergence == "taid"
        self.taid = TaidScheduler(total_steps=recipe.total_steps)
        self._second: dict[str, Tensor] = {}
        if on and self._bare and self._options.teacher == "frozen":
            self._second = self._copies()  # before any step of the run
        with torch.no_grad():  # FSDP2 sees at its first forward what is trained: all, adapter on
            self._forward([0])

    @torch.no_grad()
    def logits(self, rows: Sequence[StepRow], forwards: int) -> dict[str, Tensor]:
        """Return the teacher's logits (length, V) of hinted rows by unit.

        Every rank makes the same number of ``forwards``, at least one a row: each involves all.
        """
        found = dict[str, Tensor]()
        with self._reading():
            for row in rows:
                logits = self._forward([*row.prompt_ids, *row.response_ids])
                found[row.unit] = logits[predicting(row)].clone()
            for _ in range(forwards - len(rows)):
                self._forward([0])
        return found

    def _forward(self, ids: Sequence[int]) -> Tensor:
        module = self._engine.module
        batch = torch.tensor([list(ids)], device=next(module.parameters()).device)
        logits: Tensor = module(input_ids=batch, use_cache=False).logits[0]
        for part in module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()  # the next forward gathers the parameters anew
        return logits

    def follow(self, loss: float, done: int) -> None:
        """Move average and schedule after ``done`` optimizer steps."""
        if self._schedules:
            self.taid.update(loss, done)
        for name, parameter in self._trained().items() if self._moves else ():
            average = self._second[name]
            average += self._options.ema_rate * (parameter.detach() - average)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the moving average, whole, and TAID's schedule; every rank has to call it."""
        kept = self._second if self._moves else {}
        numbers = {n: getattr(self.taid, n) for n in TAID_STATE} if self._schedules else {}
        return {name: whole_copy(average) for name, average in kept.items()}, numbers

    def load_state(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Restore :meth:`state`; every rank has to call it."""
        for name, p in self._trained().items() if tensors else ():
            whole = tensors[name].to(p.device)
            self._second[name] = distribute_tensor(whole, p.device_mesh, p.placements)
        for name, value in numbers.items():
            setattr(self.taid, name, value)

    def _trained(self) -> dict[str, Any]:
        named = self._engine.module.named_parameters()
        return {name: p for name, p in named if p.requires_grad}

    def _copies(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self._trained().items()}

    def _reading(self) -> AbstractContextManager[None]:
        """Let the engine's model be the teacher."""
        if self._options.teacher == "live":
            return nullcontext()
        if self._options.teacher == "frozen" and not self._bare:
            off: AbstractContextManager[None] = self._engine.disable_adapter()
            return off
        return self._swapped()

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        self._second = self._second or self._copies()  # an average begins with its first forward
        own = self._copies()
        for values in (self._second, own):
            for name, p in self._trained().items():
                p.detach().copy_(values[name])
            if values is not own:
                yield
