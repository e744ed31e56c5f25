"""Running a trainer: from a recipe and a lake to a finished run folder, and reading one.

A run is identified by its recipe, the bytes of its training rows and the code that trains. The
same inputs give the same folder: a complete one is reused, an interrupted one continues from its
last committed round. The trainer runs in its own process, so that the same command works under
Dagster Pipes, in a pod, or by hand.
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
from composer_pipeline.training.events import read, run_process
from composer_pipeline.training.models import SMOLLM2
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import Merger, Trainer, repo_root, validate
from composer_pipeline.training.rows import require_rows
from composer_pipeline.training.runs import fingerprint, set_aside

RECIPE, DATA, METRICS, RESULT = "recipe.yaml", "data", "metrics.jsonl", "composer.json"
CHECKPOINT, MERGED, HELD_OUT = "checkpoint", "merged", "held-out"
#: Numbers that show a channel's progress, taken at the first and the last round.
PROGRESS: dict[str, tuple[str, ...]] = {
    "grpo": ("grpo_best_gain", "grpo_worst_gain"),
    "sdpo": ("sdpo_loss",),
    "dpo": ("dpo_loss", "dpo_accuracy"),
    "sft": ("sft_loss",),
}
#: Fields of a step event that are not metrics.
_NOT_METRICS = frozenset({"event", "time", "slot", "step", "of"})


class _Round(Protocol):
    @property
    def included(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class PreparedRun:
    """A checked run: the command that trains it, and where."""

    command: list[str]
    #: Added to the caller's environment.
    env: dict[str, str]
    cwd: str
    run_dir: Path
    complete: bool
    merge_command: list[str]
    #: Why ``merge_command`` is empty.
    no_merge: str = ""


@dataclass(frozen=True)
class TrainReport(Report):
    """A finished run.

    ``reused`` is True where nothing was trained by this call; ``merged`` is the folder with base
    and adapter as one model, if there is one.
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

    With ``begin`` the recipe is written into a run folder that has none.
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
        # The recipe of a run that has begun has its length resolved.
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
    if not isinstance(trainer, Merger):
        return [], f"recipe field trainer: {trainer.name!r} writes no merged weights"
    if not recipe.lora.r:
        return [], "recipe field lora.r: 0 trains the whole model, there is nothing to merge"
    return list(trainer.merge_command(sys.executable, run_dir)), ""


def _absolute(recipe: TrainingRecipe) -> TrainingRecipe:
    # The trainer's working directory is not the caller's.
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
        force: train again; a run of the same inputs is moved to ``<folder>.<n>``.
        merge: also write base and adapter as one model.

    Raises:
        InputError: the recipe is wrong, its trainer does not support it, or a weighted channel has
            no row.
        ComposerError: training failed, or another process is training in the run folder.
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
    """Read a finished run."""
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
    """Return the content of a finished run's ``composer.json``."""
    if not (run_dir / RESULT).is_file():
        raise InputError(f"{run_dir} holds no finished training run")
    result: dict[str, Any] = json.loads((run_dir / RESULT).read_text(encoding="utf-8"))
    return result


def about(run_dir: Path) -> dict[str, str]:
    """Return model, dataset, recipe and rounds of a finished run as text."""
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
    """Return the variables to add to a trainer's environment."""
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
    """Write indented JSON atomically."""
    replace(path, json.dumps(value, indent=1, allow_nan=False))


def read_steps(run_dir: Path) -> dict[tuple[int, int], dict[str, float]]:
    """Return the finite numbers of each (slot, step); a repeated step counts once."""
    steps = {}
    for event in read(run_dir / METRICS):
        if event.get("event") == "step":
            numbers = {k: float(v) for k, v in event.items() if _is_number(k, v)}
            steps[event["slot"], event["step"]] = numbers
    return steps


def _is_number(name: str, value: object) -> bool:
    return name not in _NOT_METRICS and isinstance(value, (int, float))


def summarise(
    recipe: TrainingRecipe, run_dir: Path, rounds: Sequence[_Round], seconds: float
) -> dict[str, float]:
    """Return a run's numbers.

    ``<key>_first`` and ``<key>_last`` are means over the steps of all replicas in the first and
    last round, since a single step has few rows; ``<channel>_active`` is a sum over the run
    (tokens; pairs for DPO); ``seconds`` counts from the last start.
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
    return {
        **numbers,
        "rounds": len(rounds),
        "rounds_merged": sum(bool(r.included) for r in rounds),
        "rounds_with_all_replicas": sum(len(r.included) == replicas for r in rounds),
        "replicas": replicas,
        "steps": recipe.total_steps,
        "seconds": round(seconds, 1),
    }


def held_out_losses(run_dir: Path) -> dict[int, float]:
    """Return the held-out loss by round; a round that was measured again counts once."""
    found = (event for event in read(run_dir / METRICS) if event["event"] == "held_out")
    return {event["round"]: event["loss"] for event in found if event["loss"] is not None}


def best_round(measured: Mapping[int, float]) -> int:
    """Return the round with the lowest held-out loss, the earliest of equals."""
    if not measured:
        raise ComposerError(
            "recipe field keep_best: no round was measured on held-out rows; train with --force"
        )
    return min(sorted(measured), key=measured.__getitem__)


#: Curve to the number of a step that it shows. GRPO's loss at ratio 1 says nothing about the
#: model, so the gain of its best answers is shown.
CURVES = {
    "grpo best gain": "grpo_best_gain",
    "sdpo": "sdpo_loss",
    "dpo": "dpo_loss",
    "sft": "sft_loss",
}

Points = list[tuple[float, float]]


def channel_curves(run_dir: Path) -> dict[str, Points]:
    """Return (step, mean over replicas) for each channel that has values."""
    if not (run_dir / METRICS).is_file():
        return {}
    steps = sorted(read_steps(run_dir).items())
    series: dict[str, Points] = {}
    for name, key in CURVES.items():
        by_step: dict[int, list[float]] = {}
        for (_, step), row in steps:
            if key in row:
                by_step.setdefault(step, []).append(row[key])
        if by_step:
            series[name] = [(step, sum(v) / len(v)) for step, v in sorted(by_step.items())]
    return series


def held_out_curve(run_dir: Path) -> Points:
    """Return (round, held-out loss); empty if none was measured."""
    if not (run_dir / METRICS).is_file():
        return []
    return [(round_, loss) for round_, loss in sorted(held_out_losses(run_dir).items())]


def round_losses(run_dir: Path, inner_steps: int) -> dict[str, dict[int, float]]:
    """Return each channel's mean number by round, and the held-out loss by round."""
    found: dict[str, dict[int, float]] = {}
    for name, points in channel_curves(run_dir).items():
        of: dict[int, list[float]] = {}
        for step, value in points:
            of.setdefault((int(step) - 1) // inner_steps + 1, []).append(value)
        found[name] = {round_: sum(v) / len(v) for round_, v in of.items()}
    if held := held_out_curve(run_dir):
        found["held out"] = {int(round_): loss for round_, loss in held}
    return found


def _execute(run: PreparedRun, progress: Progress | None) -> None:
    seen: dict[int, int] = {}
    replicas = TrainingRecipe.load(run.run_dir / RECIPE).diloco.replicas

    def forward(event: dict[str, Any]) -> None:
        if progress is None:
            return
        if event.get("event") == "base":
            progress(f"base model, {event['channel']}", event["done"], event["of"])
        elif "step" in event:
            seen[event["slot"]] = event["step"]
            progress("train", sum(seen.values()), event["of"] * replicas)

    try:
        run_process(run.command, cwd=run.cwd, env=run.env, what="training", on_event=forward)
    except InputError:
        raise
    except ComposerError as error:
        raise ComposerError(f"{error} (run folder {run.run_dir})") from error
