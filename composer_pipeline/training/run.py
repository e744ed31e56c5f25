"""Running a trainer: from a recipe and a lake to a finished run folder.

Belongs here: the run's identity, the command that trains, waiting for it, and reading its
result. Does not belong here: training; it happens in the trainer's own process, so that
the same command runs under Dagster Pipes, in a pod, or by hand. Imports no torch.

A run is identified by its recipe, the bytes of its training rows and the code that trains.
The same three give the same folder; when that is complete it is used again, and when it was
interrupted it goes on from its last committed round.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.files import make_folder, replace
from composer_pipeline.lake.store import Lake
from composer_pipeline.reports import Progress, Report
from composer_pipeline.training.build_rows import require_rows
from composer_pipeline.training.events import read, run_process
from composer_pipeline.training.models import SMOLLM2
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import Merger, Trainer, repo_root, validate
from composer_pipeline.training.runs import fingerprint, set_aside

RECIPE, DATA, METRICS, RESULT = "recipe.yaml", "data", "metrics.jsonl", "composer.json"
CHECKPOINT, MERGED, HELD_OUT = "checkpoint", "merged", "held-out"
#: The numbers of a channel that say whether it gets anywhere, at the first and last round.
PROGRESS: dict[str, tuple[str, ...]] = {
    "grpo": ("grpo_best_gain", "grpo_worst_gain"),
    "sdpo": ("sdpo_loss",),
    "dpo": ("dpo_loss", "dpo_accuracy"),
    "sft": ("sft_loss",),
}
#: What else a metric line says besides numbers of channels.
_PLACE = frozenset({"event", "time", "slot", "step", "of"})


class _Round(Protocol):
    @property
    def included(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class PreparedRun:
    """A checked run: the command that trains it, and where. ``env`` is added to the caller's.

    ``no_merge`` is why ``merge_command`` is empty.
    """

    command: list[str]
    env: dict[str, str]
    cwd: str
    run_dir: Path
    complete: bool
    merge_command: list[str]
    no_merge: str = ""


@dataclass(frozen=True)
class TrainReport(Report):
    """A finished run.

    ``metrics`` are numbers; ``reused`` says that nothing was trained now; ``merged`` is the
    folder of base and adapter as one model, where it was asked for.
    """

    run_dir: Path
    checkpoint: Path
    metrics: dict[str, float]
    reused: bool
    merged: Path | None = None


def prepare(
    lake: Lake, recipe: TrainingRecipe | str | Path, run_root: str | Path, *, begin: bool = True
) -> PreparedRun:
    """Check a recipe against trainer and lake, and return its run.

    Args:
        lake: holds the dataset tables with split=train.
        recipe: a recipe, or the path of its YAML file.
        run_root: folder of all runs.
        begin: write the recipe into a run folder that has none.

    Raises:
        InputError: the recipe is wrong, its trainer cannot carry it, or a channel with a
            weight has no row.
    """
    if not isinstance(recipe, TrainingRecipe):
        recipe = TrainingRecipe.load(recipe)
    recipe = _absolute(recipe)
    trainer = validate(recipe)
    require_rows(lake, recipe)
    run_dir = Path(run_root).absolute() / f"{recipe.name}-{fingerprint(lake, recipe, trainer)}"
    complete = (run_dir / RESULT).is_file()
    if begin and not complete:
        make_folder(run_dir)
        # A run that has begun holds its recipe with the length resolved.
        if not (run_dir / RECIPE).is_file():
            write_recipe(recipe, run_dir)
    command = trainer.command(sys.executable, run_dir / RECIPE, lake.url, run_dir)
    merge_command, no_merge = _merging(trainer, recipe, run_dir)
    return PreparedRun(
        list(command),
        environment(recipe),
        str(repo_root()),
        run_dir,
        complete,
        merge_command,
        no_merge,
    )


def _merging(trainer: Trainer, recipe: TrainingRecipe, run_dir: Path) -> tuple[list[str], str]:
    """Return the command that merges, or why there is none."""
    if not isinstance(trainer, Merger):
        return [], f"recipe field trainer: {trainer.name!r} writes no merged weights"
    if not recipe.lora.r:
        return [], "recipe field lora.r: 0 trains the whole model, there is nothing to merge"
    return list(trainer.merge_command(sys.executable, run_dir)), ""


def _absolute(recipe: TrainingRecipe) -> TrainingRecipe:
    """Name folders from the root: the trainer works in another folder than the caller."""
    names = {"model": recipe.model, "start_from": recipe.start_from, "extends": recipe.extends}
    folders = {field: Path(name).expanduser() for field, name in names.items() if name}
    found: dict[str, Any] = {f: str(p.absolute()) for f, p in folders.items() if p.is_dir()}
    if recipe.diloco.log and "://" not in recipe.diloco.log:
        log = str(Path(recipe.diloco.log).expanduser().absolute())
        found["diloco"] = recipe.diloco.model_copy(update={"log": log})
    return recipe.model_copy(update=found)


def train(
    lake: Lake,
    recipe: TrainingRecipe | str | Path,
    run_root: str | Path,
    *,
    progress: Progress | None = None,
    force: bool = False,
    merge: bool = False,
) -> TrainReport:
    """Train a recipe in a process of its own, or return the finished run of the same inputs.

    Args:
        lake: holds the dataset tables with split=train.
        recipe: a recipe, or the path of its YAML file.
        run_root: folder of all runs.
        progress: called as (label, done, total): rows of a channel that the base model has
            scored, then steps of all replicas.
        force: train again; a run of the same inputs is moved aside to ``<folder>.<n>``.
        merge: also write base and adapter as one model, where it is not there yet.

    Raises:
        InputError: as in :func:`prepare`, or what the trainer itself refuses.
        ComposerError: training failed, or another process trains in the run's folder; names it.
    """
    run = prepare(lake, recipe, run_root)
    if force:
        set_aside(run.run_dir)
        run = prepare(lake, recipe, run_root)
    if merge and run.no_merge:
        raise InputError(run.no_merge)
    if not run.complete:
        _execute(run, progress)
    if merge and not (run.run_dir / MERGED).is_dir():
        run_process(
            run.merge_command, cwd=run.cwd, env=run.env, what="merging", on_event=lambda _: None
        )
    return report(run.run_dir, reused=run.complete)


def report(run_dir: str | Path, *, reused: bool = False) -> TrainReport:
    """Read a finished run.

    Raises:
        InputError: the folder holds no finished run.
    """
    run_dir = Path(run_dir)
    result = finished(run_dir)
    merged = run_dir / MERGED
    return TrainReport(
        run_dir,
        run_dir / CHECKPOINT,
        result["metrics"],
        reused,
        merged if merged.is_dir() else None,
    )


def finished(run_dir: Path) -> dict[str, Any]:
    """Return the content of a finished run's ``composer.json``.

    Raises:
        InputError: the folder holds no finished run.
    """
    if not (run_dir / RESULT).is_file():
        raise InputError(f"{run_dir} holds no finished training run")
    result: dict[str, Any] = json.loads((run_dir / RESULT).read_text(encoding="utf-8"))
    return result


def about(run_dir: Path) -> dict[str, str]:
    """Return what a finished run was made of, in words: model, dataset, recipe, rounds.

    Raises:
        InputError: the folder holds no finished run.
    """
    result = finished(run_dir)
    base, start, commits = result["base"], result.get("start_from"), result["commits"]
    recipe, rows = TrainingRecipe.model_validate(result["recipe"]), result["rows"]
    replicas = recipe.diloco.replicas
    merged = sum(bool(commit["merged"]) for commit in commits)
    weights = ", ".join(f"{name} {weight:g}" for name, weight in recipe.channels.weights().items())
    return {
        "base_model": f"{base['name']} ({base['digest']})",
        **({"started_from": f"{start['name']} ({start['digest']})"} if start else {}),
        "dataset_hash": result["dataset_sha"],
        "dataset_rows": ", ".join(f"{name} {count}" for name, count in rows.items()),
        "recipe": f"{recipe.name}: {weights}; {recipe.total_steps} steps of each of"
        f" {replicas} replicas, learning rate {recipe.learning_rate:g}, seed {recipe.seed}",
        "diloco_rounds": f"{merged} of {len(commits)} merged",
    }


def environment(recipe: TrainingRecipe) -> dict[str, str]:
    """Return the variables that a trainer process needs besides the caller's own."""
    paths = [str(repo_root()), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TQDM_DISABLE": "1",  # steps are reported as events
    }
    local = recipe.model == SMOLLM2 or Path(recipe.model).expanduser().is_dir()
    if local and (not recipe.start_from or Path(recipe.start_from).expanduser().is_dir()):
        env["HF_HUB_OFFLINE"] = "1"
    if recipe.threads:
        env["OMP_NUM_THREADS"] = str(recipe.threads)
    return env


def write_recipe(recipe: TrainingRecipe, run_dir: Path) -> None:
    """Write the complete recipe into the run folder."""
    text = yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False)
    replace(run_dir / RECIPE, text)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write indented JSON so that it appears whole or not at all."""
    replace(path, json.dumps(value, indent=1, allow_nan=False))


def read_steps(run_dir: Path) -> dict[tuple[int, int], dict[str, float]]:
    """Return the numbers of each (slot, step); a step that was repeated counts once.

    A number that was not finite is left out (``training.runs.events``).
    """
    steps = {}
    for event in read(run_dir / METRICS):
        if event.get("event") == "step":
            numbers = {k: float(v) for k, v in event.items() if _is_number(k, v)}
            steps[event["slot"], event["step"]] = numbers
    return steps


def _is_number(name: str, value: object) -> bool:
    return name not in _PLACE and isinstance(value, (int, float))


def summarise(
    recipe: TrainingRecipe, run_dir: Path, rounds: Sequence[_Round], seconds: float
) -> dict[str, float]:
    """Return a run's numbers: those of the first and last round, totals, rounds.

    ``<key>_first`` and ``<key>_last`` are means over the steps of all replicas in that round,
    since a single step has few rows; ``<channel>_active`` is a sum over the whole run (tokens,
    for DPO pairs). Every one depends on the model. ``seconds`` are those since the last start.
    """
    steps = read_steps(run_dir)
    inner = recipe.diloco.inner_steps
    numbers: dict[str, float] = {}
    for channel in recipe.channels.weights():
        for key in PROGRESS[channel]:
            for name, first in (("first", 1), ("last", recipe.total_steps - inner + 1)):
                window = range(first, first + inner)
                values = [v[key] for (_, s), v in steps.items() if s in window and key in v]
                if values:
                    numbers[f"{key}_{name}"] = sum(values) / len(values)
        active = f"{channel}_active"
        numbers[active] = sum(v.get(active, 0.0) for v in steps.values())
    for key in ("tokens", "peak_memory_mib"):
        values = [v[key] for v in steps.values() if key in v]
        if values:
            numbers[key] = max(values) if key == "peak_memory_mib" else sum(values)
    replicas = recipe.diloco.replicas
    everybody = sum(len(round_.included) == replicas for round_ in rounds)
    return {
        **numbers,
        "rounds": len(rounds),
        "rounds_merged": sum(bool(round_.included) for round_ in rounds),
        "rounds_with_all_replicas": everybody,
        "replicas": replicas,
        "steps": recipe.total_steps,
        "seconds": round(seconds, 1),
    }


def held_out_losses(run_dir: Path) -> dict[int, float]:
    """Return round to loss on held-out rows; a round that was measured again counts once."""
    found = (event for event in read(run_dir / METRICS) if event["event"] == "held_out")
    return {event["round"]: event["loss"] for event in found if event["loss"] is not None}


def best_round(measured: Mapping[int, float]) -> int:
    """Return the round with the lowest held-out loss; of equals the earliest.

    Raises:
        ComposerError: no round was measured.
    """
    if not measured:
        raise ComposerError(
            "recipe field keep_best: no round was measured on held-out rows; train with --force"
        )
    return min(sorted(measured), key=measured.__getitem__)


def _execute(run: PreparedRun, progress: Progress | None) -> None:
    """Run the command and pass on what the base model scores, and the steps of all replicas."""
    seen: dict[int, int] = {}
    replicas = TrainingRecipe.load(run.run_dir / RECIPE).diloco.replicas

    def passed(event: dict[str, Any]) -> None:
        if progress is None:
            return
        if event.get("event") == "base":
            progress(f"base model, {event['channel']}", event["done"], event["of"])
        elif "step" in event:
            seen[event["slot"]] = event["step"]
            progress("train", sum(seen.values()), event["of"] * replicas)

    try:
        run_process(run.command, cwd=run.cwd, env=run.env, what="training", on_event=passed)
    except InputError:
        raise
    except ComposerError as error:
        raise ComposerError(f"{error} (run folder {run.run_dir})") from error
