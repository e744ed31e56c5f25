"""The composer loss as a loss function of verl's engines, and SDPO's teacher on its model."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import distribute_tensor

from composer_pipeline.losses.sdpo import TaidScheduler
from composer_pipeline.losses.step import StepOptions, StepRow, step_loss, token_divergence
from composer_pipeline.training.recipe import TrainingRecipe
from trainers.common.channels.sdpo import TAID_STATE
from trainers.common.ranks import whole_copy


def predicting(row: StepRow) -> slice:
    """Return the positions of a sequence that predict its span."""
    first = len(row.prompt_ids) + row.start - 1
    return slice(first, first + row.length)


class ComposerLoss:
    """What verl calls twice a micro-batch: with the logits, and with its own log-probabilities.

    ``rows`` are those of the step, ``taught`` the teacher's logits (length, V) by unit, and ``t``
    TAID's position. A micro-batch names its rows by number in the column ``row``; -1 is filling.
    """

    def __init__(self, options: StepOptions) -> None:
        self.options, self.t = options, 0.0
        self.rows: Sequence[StepRow] = ()
        self.taught: Mapping[str, Tensor] = {}
        self.sums: list[dict[str, float]] = []
        self.faults: list[str] = []

    def begin(self, rows: Sequence[StepRow], taught: Mapping[str, Tensor], t: float) -> None:
        """Start a step."""
        self.rows, self.taught, self.t, self.sums, self.faults = rows, taught, t, [], []

    def __call__(
        self, model_output: Any = None, data: Any = None, dp_group: Any = None,
        student_logits: Tensor | None = None,
    ) -> Any:  # fmt: skip
        """Return SDPO's divergences (1, N) from logits (1, N, V), or loss and metrics."""
        offsets = data["input_ids"].offsets().tolist()
        there = [(self.rows[i], at) for i, at in zip(
            data["row"].tolist(), offsets, strict=False) if i >= 0]  # fmt: skip
        if student_logits is not None:
            return {"sdpo": self._divergences(student_logits[0], there).unsqueeze(0)}
        ones = model_output["log_probs"].values()
        divergences = model_output["sdpo"].values()
        rows = [row for row, _ in there]
        loss, sums = step_loss(
            rows,
            [ones[at:][predicting(row)] for row, at in there] or [ones[:0]],
            [divergences[at:][predicting(row)] for row, at in there],
            self.options,
        )
        self.sums.append(sums)
        if not math.isfinite(float(loss.detach())):
            self.faults += [f"{row.channel} {row.unit.partition('/')[2]}" for row in rows]
            loss = loss * math.nan  # the gradient's norm tells every rank
        return loss * data["dp_size"], {}  # the engine averages over the ranks

    def _divergences(self, logits: Tensor, there: Sequence[tuple[StepRow, int]]) -> Tensor:
        out = logits.new_zeros(logits.shape[0], dtype=torch.float32)
        for row, at in there:
            if row.role == "plain":
                span, taught = logits[at:][predicting(row)], self.taught[row.unit]
                places = torch.arange(len(out), device=out.device)[at:][predicting(row)]
                values = token_divergence(span.float(), taught.float(), self.options, t=self.t)
                out = out.index_put((places,), values)
        return out


class Taught:
    """SDPO's teacher on verl's sharded model, and TAID's schedule; one of ``ChannelStates``.

    The frozen teacher is the adapter switched off. Without an adapter it is, as the moving average,
    a second set of the trained parameters, sharded alike, which takes their place for a forward.
    """

    name = "sdpo"

    def __init__(self, engine: Any, recipe: TrainingRecipe, device: Any) -> None:
        self._engine, self._options, self._device = engine, recipe.channels.sdpo, device
        self._lora = recipe.lora.r > 0
        self._on = "sdpo" in recipe.channels.weights()
        self.taid = TaidScheduler(total_steps=recipe.total_steps)
        self._average: dict[str, Tensor] = {}
        if self._on and self._options.teacher == "frozen" and not self._lora:
            self._begin()  # before any step of the run

    @torch.no_grad()
    def logits(self, rows: Sequence[StepRow], forwards: int) -> dict[str, Tensor]:
        """Return the teacher's logits (length, V) of hinted rows by unit.

        Every rank makes the same number of ``forwards``, at least one a row: each involves all.
        """
        found: dict[str, Tensor] = {}
        filling = [None] * (forwards - len(rows))
        with self._reading():
            for row in (*rows, *filling):
                ids = [0] if row is None else [*row.prompt_ids, *row.response_ids]
                ids_ = torch.tensor([ids], device=self._device)
                logits = self._engine.module(input_ids=ids_, use_cache=False).logits[0]
                if row is not None:
                    found[row.unit] = logits[predicting(row)].clone()
            for module in self._engine.module.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()  # the next forward gathers the parameters anew
        return found

    def follow(self, loss: float, done: int) -> None:
        """Move average and schedule after ``done`` optimizer steps."""
        if self._options.divergence == "taid" and self._on:
            self.taid.update(loss, done)
        if self._options.teacher == "ema" and self._average:
            for name, parameter in self._trained().items():
                average = self._average[name]
                average += self._options.ema_rate * (parameter.detach() - average)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the moving average, whole, and TAID's schedule; every rank has to call it."""
        kept = self._average if self._options.teacher == "ema" else {}
        taid = self._on and self._options.divergence == "taid"
        numbers = {name: getattr(self.taid, name) for name in TAID_STATE} if taid else {}
        return {name: whole_copy(average) for name, average in kept.items()}, numbers

    def load_state(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Restore :meth:`state`; every rank has to call it."""
        for name, parameter in self._trained().items() if tensors else ():
            there = tensors[name].to(parameter.device)
            self._average[name] = distribute_tensor(
                there, parameter.device_mesh, parameter.placements
            )
        for name, value in numbers.items():
            setattr(self.taid, name, value)

    def _trained(self) -> dict[str, Tensor]:
        named = self._engine.module.named_parameters()
        return {name: p for name, p in named if p.requires_grad}

    def _begin(self) -> None:
        self._average = {name: p.detach().clone() for name, p in self._trained().items()}

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Let the engine's model be the teacher."""
        kind = self._options.teacher
        if kind == "frozen" and self._lora:
            with self._engine.disable_adapter():
                yield
            return
        if kind == "ema" and not self._average:
            self._begin()
        own = {name: self._trained()[name].detach().clone() for name in self._average}
        try:
            _put(self._trained(), self._average)
            yield
        finally:
            _put(self._trained(), own)


def _put(parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        parameters[name].detach().copy_(value)
