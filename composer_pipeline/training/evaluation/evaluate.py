"""Held-out evaluation of a run: before (base model) and after (trained).

Belongs here: what is measured, the cache, and starting the worker. Does not belong here:
loading models (``training.evaluation.worker``, a process of its own, so that torch stays out
of the caller).

Preference accuracy alone proves nothing: DPO raises it while behaviour falls. It is
reported beside the likelihood of the consensus action, which must not fall.
"""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.training.identity import repo_root
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import RECIPE, RESULT, environment, report, write_json

EVALUATION = "evaluation.json"
#: Changes when the measures change.
VERSION = "1"


@dataclass(frozen=True)
class EvaluationReport:
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
    lake: Lake, run_dir: str | Path, *, split: str = "validation", force: bool = False
) -> EvaluationReport:
    """Measure a finished run on the pairs of a split and write ``evaluation.json``.

    Args:
        lake: holds ``dataset_pairs`` with the split.
        run_dir: a finished run.
        split: sessions that training never saw.
        force: measure again although nothing has changed.

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
    recipe = TrainingRecipe.load(run_dir / RECIPE)
    command = [sys.executable, "-m", "composer_pipeline.training.evaluation.worker"]
    done = subprocess.run(
        [*command, "--lake", lake.url, "--run-dir", str(run_dir), "--split", split],
        cwd=repo_root(),
        env={**os.environ, **environment(recipe)},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no output"]
        kind = InputError if done.returncode == 2 else ComposerError
        raise kind(lines[-1].removeprefix("error: "))
    metrics: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    write_json(target, {"identity": identity, "split": split, "metrics": metrics})
    return EvaluationReport(run_dir, split, metrics, reused=False)


def _identity(lake: Lake, run_dir: Path, split: str) -> str:
    path = lake.path("dataset_pairs", split=split).removeprefix(lake.root + "/")
    digest = hashlib.blake2b(f"{VERSION}/{split}/".encode(), digest_size=16)
    digest.update(lake.get_bytes(path))
    digest.update((run_dir / RESULT).read_bytes())
    return digest.hexdigest()
