"""``composer-pipeline train --plan``: what a run would need, and whether it fits.

Counting and timing happen in the trainer's own process (``trainers.trl.plan``).
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.reports import Report
from composer_pipeline.training.events import run_process
from composer_pipeline.training.memory import Memory
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import Planner, repo_root, validate
from composer_pipeline.training.run import RECIPE, environment, prepare, write_recipe


@dataclass(frozen=True)
class PlanReport(Report):
    """What a run will need."""

    #: Holds the run's windows; ``None`` where ``lengths`` are assumed.
    run_dir: Path | None
    #: ``counted``, or ``assumed``: every row as long as the recipe allows.
    lengths: str
    #: Usable rows by channel; rows of the tables where lengths are assumed.
    rows: dict[str, int]
    #: Optimizer steps of each replica.
    steps: int
    steps_per_epoch: int
    #: Of each replica, without padding.
    tokens_per_step: float
    #: Predicted memory of a replica at its peak, by part; ``peak_gib`` is the sum.
    memory_gib: dict[str, float]
    peak_gib: float
    worst_channel: str
    #: Memory available to one replica, and ``where``.
    limit_gib: float
    where: str
    #: What a replica writes to its own disk at each checkpoint.
    checkpoint_gib: float = 0.0
    #: Share of rows by channel whose prompt was cut, and rows left out by ``channel: reason``.
    cut_share: dict[str, float] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    #: Seconds a step, hours of the run and measured peak; empty without ``--probe``.
    probe: dict[str, float] = field(default_factory=dict)


def plan(
    lake: Lake,
    recipe: TrainingRecipe | str | Path,
    run_root: str | Path,
    *,
    probe: bool = False,
    memory_gib: float | None = None,
    model_config: str | Path | None = None,
) -> PlanReport:
    """Return what a run of a recipe would need, or raise InputError if it does not fit."""
    if memory_gib is not None and not memory_gib > 0:
        raise InputError(f"--memory-gib must be above 0, got {memory_gib:g}")
    if probe and model_config is not None:
        raise InputError("--probe needs the model, and --model-config plans without it")
    if not isinstance(recipe, TrainingRecipe):
        recipe = TrainingRecipe.load(recipe)
    trainer = validate(recipe)
    if not isinstance(trainer, Planner):
        raise InputError(f"recipe field trainer: {trainer.name!r} has no planner")
    options = ["--probe"] if probe else []
    if memory_gib is not None:
        options += ["--memory-gib", str(memory_gib)]
    if model_config is None:
        run = prepare(lake, recipe, run_root)
        return _ask(trainer, recipe, lake, run.run_dir, options)
    options += ["--model-config", str(Path(model_config).absolute())]
    with TemporaryDirectory() as scratch:  # without its model a run has no fingerprint
        folder = Path(scratch)
        write_recipe(recipe, folder)
        return replace(_ask(trainer, recipe, lake, folder, options), run_dir=None)


def _ask(
    trainer: Planner, recipe: TrainingRecipe, lake: Lake, run_dir: Path, options: list[str]
) -> PlanReport:
    command = trainer.plan_command(sys.executable, run_dir / RECIPE, lake.url, run_dir)
    found: dict[str, Any] = {}
    run_process(
        [*command, *options],
        cwd=repo_root(),
        env=environment(recipe),
        what="planning",
        on_event=lambda event: found.update(event) if event.get("event") == "plan" else None,
    )
    found.pop("event", None)
    return PlanReport(run_dir=run_dir, **found)


GIB = 2**30
#: Interpreter, libraries and, on a device, its context: 0.6 GiB measured on the host with torch
#: and TRL loaded; on a device an allowance, not measured.
RUNTIME = GIB


def require_fit(
    recipe: TrainingRecipe, predict: Callable[[TrainingRecipe], Memory], limit: int, where: str
) -> None:
    """Raise InputError if a run needs more than ``limit`` bytes; name the field to change."""
    memory = predict(recipe)
    need = memory.total + RUNTIME
    if need <= limit:
        return
    largest = max(memory.parts().items(), key=lambda part: part[1])
    said = (
        f"the run needs {_gib(need)} at its peak (channel {memory.worst}; {_gib(largest[1])} of it"
        f" {largest[0].replace('_', ' ')}) and {where} has {_gib(limit)}"
    )
    for remedy, changed in _changes(recipe):
        need = predict(changed).total + RUNTIME
        if need <= limit:
            raise InputError(f"{said}: with {remedy} it needs {_gib(need)}")
    raise InputError(f"{said}: choose a smaller model, or lora.r above 0 where it is 0")


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _changes(recipe: TrainingRecipe) -> Iterator[tuple[str, TrainingRecipe]]:
    # The changes that cost the result least come first.
    said: list[str] = []
    if not recipe.activation_checkpointing:
        said.append("activation_checkpointing: true")
        recipe = recipe.model_copy(update={"activation_checkpointing": True})
        yield ", ".join(said), recipe
    tokens = recipe.micro_batch_tokens // 2
    while tokens >= 512:
        smaller = recipe.model_copy(update={"micro_batch_tokens": tokens})
        yield ", ".join([*said, f"micro_batch_tokens: {tokens}"]), smaller
        tokens //= 2
    if recipe.dtype == "fp32":
        said.append("dtype: bf16")
        recipe = recipe.model_copy(update={"dtype": "bf16"})
        yield ", ".join(said), recipe
    prompt = recipe.data.max_prompt_tokens // 2
    while prompt >= 256:
        data = recipe.data.model_copy(update={"max_prompt_tokens": prompt})
        shorter = recipe.model_copy(update={"micro_batch_tokens": 512, "data": data})
        text = [*said, "micro_batch_tokens: 512", f"data.max_prompt_tokens: {prompt}"]
        yield ", ".join(text), shorter
        prompt //= 2
