"""What a run will need: ``python -m trainers.trl.plan --recipe R --lake L --run-dir D``.

Counts the run's windows, predicts its memory and, with ``--probe``, times three real steps; prints
one event ``plan``. The windows stay in the run folder for training. With ``--model-config`` nothing
is loaded: rows are counted in the tables, and each is taken to be as long as the recipe allows.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.files import make_folder
from composer_pipeline.lake.store import Lake
from composer_pipeline.parent import end_with_parent
from composer_pipeline.training.events import line
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.plan import (
    GIB,
    RUNTIME,
    Memory,
    ModelShape,
    RowSize,
    assumed_rows,
    device_of_each,
    devices,
    host_memory,
    kept_on_disk,
    peak,
    require_fit,
)
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import validate
from composer_pipeline.training.rows import CHANNELS, TrainingData, build, require_rows
from composer_pipeline.training.run import DATA, alone
from trainers.common.rows import loads, planned, rows_of, windows_of

PROBE_STEPS = 3
Windows = dict[str, list[list[RowSize]]]


def main(argv: list[str] | None = None) -> int:
    """Plan and return the exit code: 0, 2 for bad input and what does not fit, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="trainers.trl.plan", description=__doc__)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--lake", required=True)
    parser.add_argument("--run-dir", required=True, type=Path)
    parser.add_argument("--probe", action="store_true")
    parser.add_argument("--memory-gib", type=float)
    parser.add_argument("--model-config", type=Path)
    options = parser.parse_args(argv)
    end_with_parent()
    try:
        recipe, lake = TrainingRecipe.load(options.recipe), Lake(options.lake)
        validate(recipe)
        report = plan(recipe, lake, options)
    except ComposerError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, InputError) else 1
    print(line({"event": "plan", **report}), flush=True)
    return 0


def plan(recipe: TrainingRecipe, lake: Lake, options: Any) -> dict[str, Any]:
    """Return the fields of ``PlanReport``; raises ``InputError`` where the run does not fit."""
    limit, where = _limit(recipe, options.memory_gib)
    data = resolved = None
    if options.model_config is not None:
        shape = ModelShape.load(options.model_config)
        rows = require_rows(lake, recipe)
    else:
        resolved = resolve_model(recipe.model)
        shape = ModelShape.load(Path(resolved))
        data = _data(recipe, lake, resolved, options.run_dir)
        rows = {c: n for c, n in data.counts().items() if c in recipe.channels.weights()}
    recipe = recipe.resolved(rows)
    windows = _assumed(recipe) if data is None else windows_of(recipe, data)

    def predict(changed: TrainingRecipe) -> Memory:
        return peak(shape, changed, loads(changed, windows), device=bool(devices()))

    memory = predict(recipe)
    require_fit(recipe, predict, limit, where)
    statistics = {} if data is None else data.statistics
    report = {
        "lengths": "assumed" if data is None else "counted",
        "rows": rows,
        "cut_share": {c: numbers["cut_share"] for c, numbers in statistics.items()},
        "dropped": {} if data is None else data.dropped,
        "steps": recipe.total_steps,
        "steps_per_epoch": recipe.steps_per_epoch(rows),
        "tokens_per_step": _tokens(windows),
        "memory_gib": {name: size / GIB for name, size in memory.parts().items()}
        | {"runtime": RUNTIME / GIB},
        "peak_gib": (memory.total + RUNTIME) / GIB,
        "checkpoint_gib": kept_on_disk(shape, recipe) / GIB,
        "worst_channel": memory.worst,
        "limit_gib": limit / GIB,
        "where": where,
    }
    if options.probe:
        assert data is not None
        assert resolved is not None
        report["probe"] = probe(recipe, data, resolved)
    return report


def require_devices(recipe: TrainingRecipe, data: TrainingData, resolved: str) -> None:
    """Raise InputError where a run needs a tenth more memory than a device of it has.

    A device whose memory is not known, or a model that is not counted, is not judged.
    """
    smallest = _smallest(recipe)
    try:
        shape = ModelShape.load(Path(resolved))
    except InputError:
        return
    if smallest is None:
        return
    windows, (limit, where) = windows_of(recipe, data), smallest

    def predict(changed: TrainingRecipe) -> Memory:
        return peak(shape, changed, loads(changed, windows), device=True)

    require_fit(recipe, predict, limit + limit // 10, where)  # predicted within a tenth


def _data(recipe: TrainingRecipe, lake: Lake, resolved: str, run_dir: Path) -> TrainingData:
    """Return the run's windows, built if necessary."""
    if TrainingData.is_complete(run_dir / DATA):
        return TrainingData.load(run_dir / DATA)
    make_folder(run_dir)
    with alone(run_dir):
        return build(lake, load_tokenizer(resolved), recipe, run_dir / DATA)


def _limit(recipe: TrainingRecipe, given: float | None) -> tuple[int, str]:
    """Return the bytes available to one process of a replica, and of what."""
    processes, found = recipe.ranks.processes, devices()
    replicas = max(1, recipe.diloco.here)
    device_of_each(replicas, found, processes=processes)
    if given is not None:
        return int(given * GIB), "--memory-gib"
    if found:
        if (smallest := _smallest(recipe)) is None:
            raise InputError("the memory of the visible devices is not known; give --memory-gib")
        return smallest
    several = f" / {replicas} replicas" if replicas > 1 else ""
    several += f" / {processes} processes of each" if processes > 1 else ""
    return host_memory() // (replicas * processes), f"this machine's free memory{several}"


def _smallest(recipe: TrainingRecipe) -> tuple[int, str] | None:
    """Return the memory and the name of the smallest device that a run uses here, if known."""
    used = devices()[: max(1, recipe.diloco.here) * recipe.ranks.processes]
    known = [(device.memory, f"device {device.name}") for device in used if device.memory]
    return min(known, default=None)


def _assumed(recipe: TrainingRecipe) -> Windows:
    return {channel: [assumed_rows(recipe, channel)] for channel in recipe.channels.weights()}


def _tokens(windows: Windows) -> float:
    """Return the mean tokens of a step over all channels, without padding."""
    return sum(fmean(sum(row.size for row in window) for window in w) for w in windows.values())


def probe(recipe: TrainingRecipe, data: TrainingData, resolved: str) -> dict[str, float]:
    """Train three steps on the run's first rows and return what they took.

    ``seconds_per_step`` is the mean without the first step, which warms up and measures the
    channels' gradients; ``base_pass_seconds`` is extrapolated to all rows of the run;
    ``hours`` is both over the whole run; ``peak_memory_gib`` is the peak of the process.
    """
    import torch

    from trainers.common.base_pass import base_policy, rows_to_score, score
    from trainers.common.policy import device_memory, load_base
    from trainers.trl.trainer import ComposerTrainer

    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    short = _short(recipe)
    rows = _first(short, recipe, data)
    times: list[float] = []
    seen: list[Mapping[str, Any]] = []

    def on_event(kind: str, step: int, numbers: Mapping[str, Any]) -> None:
        if kind == "step":
            times.append(time.monotonic())
            seen.append(numbers)

    began, scoring = 0.0, 0.0
    of_run = rows_to_score(recipe, data)

    def on_scored(channel: str, done: int, of: int) -> None:
        nonlocal began, scoring
        now = time.monotonic()
        scoring += (now - began) * len(of_run[channel]) / of
        began = now

    tokenizer = load_tokenizer(resolved)
    with tempfile.TemporaryDirectory() as folder, device_memory("the probe"):
        base = base_policy(resolved, recipe, tokenizer)
        began = time.monotonic()
        scores = score(base, short, rows, Path(folder), on_scored)
        del base
        trainer = ComposerTrainer(
            model=load_base(resolved, recipe),
            recipe=short,
            data=rows,
            base=scores,
            output_dir=Path(folder),
            tokenizer=tokenizer,
            on_event=on_event,
        )
        trainer.train()
    seconds = (times[-1] - times[0]) / (len(times) - 1)
    return {
        "steps": len(times),
        "seconds_per_step": seconds,
        "hours": (seconds * recipe.total_steps + scoring) / 3600,
        "base_pass_seconds": scoring,
        "peak_memory_gib": max(float(n.get("peak_memory_mib", 0)) for n in seen) / 1024,
    }


def _short(recipe: TrainingRecipe) -> TrainingRecipe:
    """Return the recipe with three steps of one replica, and every hint kept."""
    channels = recipe.channels.model_dump()
    channels["sdpo"]["hint_gain"] = False  # all of a probe's few hints may fail it
    changed = {
        "channels": channels,
        "diloco": {"replicas": 1, "rounds": 1, "inner_steps": PROBE_STEPS},
        "steps": None,
        "epochs": None,
        "norms_every": PROBE_STEPS,
    }
    return TrainingRecipe.model_validate(recipe.model_dump() | changed)


def _first(short: TrainingRecipe, recipe: TrainingRecipe, data: TrainingData) -> TrainingData:
    """Return the rows of the run's first steps, so that no others are scored."""
    kept: dict[str, Any] = {}
    plans = planned(recipe, data, 0)
    for channel, per_step in short.channels.rows_per_step().items():
        rows = rows_of(data, channel)
        taken = plans[channel][: PROBE_STEPS * per_step]
        kept[CHANNELS[channel][0]] = [rows[i] for i in dict.fromkeys(taken)]
    return TrainingData(**kept)


if __name__ == "__main__":
    sys.exit(main())
