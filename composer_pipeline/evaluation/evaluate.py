"""The stage ``evaluate``: a finished run against its base, on states that it never saw.

``<run>/evaluation/`` holds ``states.parquet`` (the frozen set), ``results.parquet`` (every answer
of both models) and ``report.md`` with its charts; ``<run>/evaluation.json``, written last, holds
the numbers. Measuring happens in ``evaluation.worker``, a process of its own, so that the caller
loads no torch.

Preference accuracy alone proves nothing: DPO raises it while behaviour gets worse.
"""

import hashlib
import json
import stat
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.report import (
    TOLERANCE,
    Cell,
    Verdict,
    markdown,
    pictures,
    summarise,
    verdict,
)
from composer_pipeline.evaluation.results import BASE, read_results
from composer_pipeline.evaluation.select_states import (
    TRAIN,
    limit_per_kind,
    select_states,
    training_content,
)
from composer_pipeline.evaluation.states import (
    EvaluationState,
    check_disjoint,
    content_hash,
    read_states,
    write_states,
)
from composer_pipeline.files import replace
from composer_pipeline.lake.store import Lake
from composer_pipeline.reports import Progress, Report
from composer_pipeline.training.events import run_process
from composer_pipeline.training.model_card import CARD, EVALUATION, card, evaluation_of
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import repo_root
from composer_pipeline.training.rows import CHANNELS, TrainingData, column_of
from composer_pipeline.training.run import (
    CHECKPOINT,
    DATA,
    MERGED,
    RECIPE,
    RESULT,
    environment,
    finished,
    write_json,
)
from composer_pipeline.versions import EVALUATION_VERSION

#: The arm that is compared with the base.
TRAINED = "trained"
FOLDER, STATES, RESULTS, REPORT = "evaluation", "states.parquet", "results.parquet", "report.md"


@dataclass(frozen=True)
class EvaluationReport(Report):
    """The evaluation of one run."""

    run_dir: Path
    split: str
    states_hash: str
    #: Measured states by kind, and dropped ones by reason.
    states: dict[str, int]
    sessions: int
    dropped: dict[str, int]
    max_new_tokens: int
    cells: tuple[Cell, ...]
    #: The cells as flat numbers: ``<kind>_<measure>_before``, ``_after`` and ``_difference``.
    metrics: dict[str, float]
    #: Sentences of the verdict.
    worse: tuple[str, ...]
    unknown: tuple[str, ...]
    reused: bool = False

    @property
    def folder(self) -> Path:
        """The folder of the frozen states, the results and the report."""
        return self.run_dir / FOLDER


def evaluate(
    lake: Lake,
    run_dir: str | Path,
    *,
    split: str = "validation",
    states: str | Path | None = None,
    per_kind: int | None = None,
    max_new_tokens: int | None = None,
    tolerance: float = TOLERANCE,
    force: bool = False,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Measure a finished run and its base, and write ``evaluation.json`` and the report.

    Args:
        lake: holds what the run was trained on, and the split.
        run_dir: a finished run.
        split: sessions that training never saw; its states are taken.
        states: an evaluation set (``write_states``) instead of the split's states.
        per_kind: at most so many states of each kind, chosen by a hash.
        max_new_tokens: tokens of an answer; by default the recipe's ``data.max_completion_tokens``.
        tolerance: share of easy or recovery states that may be lost compared with the base.
        force: measure again although nothing has changed.
        progress: called as (label, measurements done, their number).

    Raises:
        InputError: the run is not finished, no state is known or fits, the states overlap the
            training data, or an option is out of range.
        ComposerError: the worker failed.
    """
    run_dir = Path(run_dir)
    finished(run_dir)
    for name, number in (("per_kind", per_kind), ("max_new_tokens", max_new_tokens)):
        if number is not None and number < 1:
            raise InputError(f"{name} must be at least 1, not {number}")
    if not 0 <= tolerance < 1:
        raise InputError(f"tolerance must be in [0, 1), not {tolerance}")
    if states is not None:
        chosen, split = limit_per_kind(read_states(states), per_kind), f"file {Path(states).name}"
    else:
        chosen = select_states(lake, split, per_kind=per_kind)
    _check_unseen(lake, run_dir, chosen)
    recipe = TrainingRecipe.load(run_dir / RECIPE)
    limit = max_new_tokens or recipe.data.max_completion_tokens
    folder = run_dir / FOLDER
    states_hash = content_hash(chosen)
    identity = _identity(run_dir, states_hash, limit, tolerance)
    known = evaluation_of(run_dir)
    if known is not None and known.get("identity") == identity and not force:
        return _report(run_dir, known, reused=True)
    write_states(folder / STATES, chosen)
    dropped = _work(run_dir, recipe, limit, progress)
    results = read_results(folder / RESULTS)
    cells = summarise(results, base=BASE)
    found = verdict(cells, TRAINED, tolerance=tolerance)
    measured = results[TRAINED]
    value: dict[str, Any] = {
        "version": EVALUATION_VERSION, "identity": identity, "split": split,
        "states_hash": states_hash,
        "states": dict(sorted(Counter(result.kind for result in measured).items())),
        "sessions": len({result.session_id for result in measured}),
        "dropped": dict(sorted(Counter(dropped.values()).items())),
        "max_new_tokens": limit, "cells": msgspec.to_builtins(cells), "metrics": _metrics(cells),
        "worse": found.worse, "unknown": found.unknown,
    }  # fmt: skip
    _write_report(folder, recipe, cells, found, value)
    write_json(run_dir / EVALUATION, value)
    _renew_cards(run_dir)
    return _report(run_dir, value)


def _check_unseen(lake: Lake, run_dir: Path, states: Sequence[EvaluationState]) -> None:
    # The run's own rows are checked too: the dataset may have been rebuilt since.
    check_disjoint(states, *training_content(lake))
    if not TrainingData.is_complete(run_dir / DATA):
        return
    data = TrainingData.load(run_dir / DATA)
    seen = {row for name, _ in CHANNELS.values() for row in column_of(getattr(data, name), "id")}
    for row in lake.iter_rows("dataset_pairs", columns=["pair_id", "state_id"]):
        if row["pair_id"] in seen:  # pairs have ids of their own
            seen.add(row["state_id"])
    both = sorted(state.state_id for state in states if state.state_id in seen)
    if both:
        raise InputError(
            f"the evaluation set overlaps training: {run_dir.name} was trained on {len(both)} of"
            f" its states ({both[0]}{', …' if len(both) > 1 else ''}); the dataset was split"
            f" differently then; train again on its split {TRAIN}"
        )


def _work(
    run_dir: Path, recipe: TrainingRecipe, limit: int, progress: Progress | None
) -> dict[str, str]:
    # Returns the reason for each state id that could not be measured.
    dropped: dict[str, str] = {}

    def on_event(event: dict[str, Any]) -> None:
        if "dropped" in event:
            dropped.update(event["dropped"])
        elif progress is not None:
            progress("evaluate", event["done"], event["of"])

    command = [sys.executable, "-m", "composer_pipeline.evaluation.worker"]
    run_process(
        [*command, "--run-dir", str(run_dir), "--max-new-tokens", str(limit)],
        cwd=repo_root(),
        env=environment(recipe),
        what="evaluation",
        on_event=on_event,
    )
    return dropped


def _write_report(
    folder: Path, recipe: TrainingRecipe, cells: Sequence[Cell], found: Verdict,
    value: dict[str, Any],
) -> None:  # fmt: skip
    counts = ", ".join(f"{count} {kind}" for kind, count in value["states"].items())
    dropped = ", ".join(f"{count} {reason}" for reason, count in value["dropped"].items())
    about = {
        "recipe": recipe.name, "base": Path(recipe.model).name,
        "states": f"{counts}, of {value['sessions']} sessions ({value['split']})",
        "left out": dropped or "none", "hash of the states": value["states_hash"],
        "answers": f"greedy, at most {value['max_new_tokens']} tokens",
    }  # fmt: skip
    for name, (_, svg) in pictures(cells, TRAINED).items():
        replace(folder / name, svg)
    replace(folder / REPORT, markdown(cells, TRAINED, found, about))


def _metrics(cells: Sequence[Cell]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for cell in cells:
        name = f"{cell.kind}_{cell.measure}"
        numbers[f"{name}_{'before' if cell.arm == BASE else 'after'}"] = cell.value.mean
        if cell.difference is not None:
            numbers[f"{name}_difference"] = cell.difference.mean
    return numbers


def _report(run_dir: Path, value: dict[str, Any], *, reused: bool = False) -> EvaluationReport:
    fields = {**value, "run_dir": str(run_dir), "reused": reused}
    return msgspec.convert(fields, EvaluationReport, dec_hook=lambda kind, text: kind(text))


def _renew_cards(run_dir: Path) -> None:
    # The cards beside the weights show the evaluation.
    result, evaluation = finished(run_dir), evaluation_of(run_dir)
    for name in (CHECKPOINT, MERGED):
        path = run_dir / name / CARD
        if path.is_file():
            mode = stat.S_IMODE(path.stat().st_mode)
            replace(path, card(result, evaluation, merged=name == MERGED))
            path.chmod(mode)  # as readable as the model


def _identity(run_dir: Path, states_hash: str, limit: int, tolerance: float) -> str:
    options = json.dumps([EVALUATION_VERSION, states_hash, limit, tolerance])
    digest = hashlib.blake2b(options.encode(), digest_size=16)
    digest.update((run_dir / RESULT).read_bytes())
    return digest.hexdigest()
