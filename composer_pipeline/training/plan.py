"""``composer-pipeline train --plan``: ask the trainer what a run would need.

Belongs here: running the trainer's planner and its report. Does not belong here: counting and
timing (``trainers.trl.plan``), and formulas (``training.planning.memory``).
"""

import json
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
    """What a run will need.

    Attributes:
        run_dir: where its windows are already made; none where ``lengths`` are assumed.
        lengths: ``counted``, or ``assumed``: every row as long as the recipe allows.
        rows: usable rows by channel; of tables where lengths are assumed.
        cut_share: share of the rows by channel whose prompt was cut; empty where assumed.
        dropped: rows left out, by ``channel: reason``.
        steps: optimizer steps of each replica.
        steps_per_epoch: steps until every row of every channel was taken.
        tokens_per_step: of each replica, without padding.
        memory_gib: predicted bytes of a replica at its peak, by part, in GiB.
        peak_gib: their sum with the runtime.
        checkpoint_gib: what a replica writes to its own disk each time it keeps its state.
        limit_gib: what one replica may take, and ``where``.
        probe: seconds a step, hours of the run and measured peak; empty without ``probe``.
    """

    run_dir: Path | None
    lengths: str
    rows: dict[str, int]
    steps: int
    steps_per_epoch: int
    tokens_per_step: float
    memory_gib: dict[str, float]
    peak_gib: float
    worst_channel: str
    limit_gib: float
    where: str
    checkpoint_gib: float = 0.0
    cut_share: dict[str, float] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
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
    """Say what a run of a recipe would need, and refuse one that does not fit.

    Args:
        lake: holds the dataset tables with split=train.
        recipe: a recipe, or the path of its YAML file.
        run_root: folder of all runs; the windows made here are the run's own.
        probe: train three steps for real and time them.
        memory_gib: for one replica, in place of what the device or this machine has.
        model_config: a config.json to plan with where the model is not here; lengths are then
            assumed, and nothing is loaded.

    Raises:
        InputError: as for training, or the run does not fit; names the field to lower.
    """
    if memory_gib is not None and not memory_gib > 0:
        raise InputError(f"--memory-gib must be above 0, got {memory_gib:g}")
    if model_config is not None:
        _check_config(Path(model_config))
    if probe and model_config is not None:
        raise InputError("--probe trains the model, and --model-config plans without it")
    if not isinstance(recipe, TrainingRecipe):
        recipe = TrainingRecipe.load(recipe)
    trainer = validate(recipe)
    if not isinstance(trainer, Planner):
        raise InputError(f"recipe field trainer: {trainer.name!r} has no plan")
    options = ["--probe"] if probe else []
    if memory_gib is not None:
        options += ["--memory-gib", str(memory_gib)]
    if model_config is None:
        run = prepare(lake, recipe, run_root)
        return _ask(trainer, recipe, lake, run.run_dir, options)
    options += ["--model-config", str(Path(model_config).absolute())]
    with TemporaryDirectory() as scratch:  # without its model a run has no identity
        folder = Path(scratch)
        write_recipe(recipe, folder)
        return replace(_ask(trainer, recipe, lake, folder, options), run_dir=None)


def _check_config(path: Path) -> None:
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"--model-config {path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"--model-config {path} is no JSON") from error
    if not isinstance(found, dict):
        raise InputError(f"--model-config {path} is no JSON object")


def _ask(
    trainer: Planner, recipe: TrainingRecipe, lake: Lake, run_dir: Path, options: list[str]
) -> PlanReport:
    """Run the trainer's planner and return what it says."""
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
#: and TRL loaded; on a device an allowance that nobody has measured.
RUNTIME = GIB


def require_fit(
    recipe: TrainingRecipe, predict: Callable[[TrainingRecipe], Memory], limit: int, where: str
) -> None:
    """Refuse a run that needs more than there is.

    Args:
        recipe: of the run.
        predict: memory of one replica of a recipe.
        limit: bytes for one replica.
        where: what has them, for the sentence: ``device 0``.

    Raises:
        InputError: it does not fit; names the field to change, and what it needs then.
    """
    memory = predict(recipe)
    need = memory.total + RUNTIME
    if need <= limit:
        return
    largest = max(memory.parts().items(), key=lambda part: part[1])
    said = (
        f"the run needs {gib(need)} at its peak (channel {memory.worst}; {gib(largest[1])} of it"
        f" {largest[0].replace('_', ' ')}) and {where} has {gib(limit)}"
    )
    for remedy, changed in _changes(recipe):
        need = predict(changed).total + RUNTIME
        if need <= limit:
            raise InputError(f"{said}: with {remedy} it needs {gib(need)}")
    raise InputError(f"{said}: choose a smaller model, or lora.r above 0 where it is 0")


def gib(size: int) -> str:
    """Return bytes as GiB for people."""
    return f"{size / GIB:.1f} GiB"


def _changes(recipe: TrainingRecipe) -> Iterator[tuple[str, TrainingRecipe]]:
    """Yield what may be lowered, the cheapest for the result first."""
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
