"""Held-out evaluation of a run: before (base model) and after (trained).

Belongs here: what is measured, the cache, and starting the worker. Does not belong here:
loading models (``evaluation.worker``, a process of its own, so that torch stays out
of the caller).

Preference accuracy alone proves nothing: DPO raises it while behaviour falls. It is
reported beside the likelihood of the consensus action, which must not fall.
"""

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.files import replace
from composer_pipeline.lake import Lake
from composer_pipeline.reports import Progress, Report
from composer_pipeline.training.checkout import repo_root
from composer_pipeline.training.process import run_process
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import (
    CHECKPOINT,
    MERGED,
    RECIPE,
    RESULT,
    environment,
    finished,
    report,
    write_json,
)
from composer_pipeline.training.runs.card import CARD, EVALUATION, card, evaluation_of

#: Changes when the measures change.
VERSION = "1"


@dataclass(frozen=True)
class EvaluationReport(Report):
    """Held-out measures of one run.

    ``metrics``: ``pairs`` and ``dropped`` (rows), and with the suffixes ``_before`` and
    ``_after`` ``preference_accuracy`` (share of pairs with the larger summed log-probability
    on the chosen side), ``preference_accuracy_per_token`` (the same, length-normalised),
    ``chosen_nll`` and ``rejected_nll`` (nats per token of the action), ``margin`` (mean
    difference of summed log-probabilities, nats).
    """

    run_dir: Path
    split: str
    metrics: dict[str, float]
    reused: bool


def evaluate(
    lake: Lake,
    run_dir: str | Path,
    *,
    split: str = "validation",
    force: bool = False,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Measure a finished run on the pairs of a split and write ``evaluation.json``.

    Args:
        lake: holds ``dataset_pairs`` with the split.
        run_dir: a finished run.
        split: sessions that training never saw.
        force: measure again although nothing has changed.
        progress: called after each pair, twice a pair: before and after training.

    Raises:
        InputError: the run is not finished, or the split has no pair that fits.
        ComposerError: the worker failed.
    """
    run_dir = Path(run_dir)
    report(run_dir)
    if not lake.read("dataset_pairs", columns=["pair_id"], split=split).num_rows:
        raise InputError(f"table dataset_pairs of lake {lake.url} has no row with split={split}")
    identity = _identity(lake, run_dir, split)
    target = run_dir / EVALUATION
    if target.is_file() and not force:
        known = json.loads(target.read_text(encoding="utf-8"))
        if known["identity"] == identity:
            return EvaluationReport(run_dir, split, known["metrics"], reused=True)
    metrics: dict[str, float] = {}

    def told(event: dict[str, Any]) -> None:
        if "done" in event:
            if progress is not None:
                progress("evaluate", event["done"], event["of"])
        else:
            metrics.update(event)

    command = [sys.executable, "-m", "composer_pipeline.evaluation.worker"]
    run_process(
        [*command, "--lake", lake.url, "--run-dir", str(run_dir), "--split", split],
        cwd=repo_root(),
        env=environment(TrainingRecipe.load(run_dir / RECIPE)),
        what="evaluation",
        on_event=told,
    )
    write_json(target, {"identity": identity, "split": split, "metrics": metrics})
    _renew_cards(run_dir)
    return EvaluationReport(run_dir, split, metrics, reused=False)


def _renew_cards(run_dir: Path) -> None:
    """Let the cards beside the weights say what has been measured now."""
    result, evaluation = finished(run_dir), evaluation_of(run_dir)
    for name in (CHECKPOINT, MERGED):
        if (run_dir / name / CARD).is_file():
            text = card(result, evaluation, merged=name == MERGED)
            replace(run_dir / name / CARD, text)


def _identity(lake: Lake, run_dir: Path, split: str) -> str:
    path = lake.path("dataset_pairs", split=split).removeprefix(lake.root + "/")
    digest = hashlib.blake2b(f"{VERSION}/{split}/".encode(), digest_size=16)
    digest.update(lake.get_bytes(path))
    digest.update((run_dir / RESULT).read_bytes())
    return digest.hexdigest()
