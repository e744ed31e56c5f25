"""The report's sections on models: what was trained on this version, and what came of it.

Belongs here: words around a run folder. Does not belong here: which runs (``report.measured``).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_pipeline.evaluation import HEAD, TRAINED, cells_of, pictures
from composer_pipeline.evaluation import table as cells_table
from composer_pipeline.figures import lines
from composer_pipeline.markdown import count
from composer_pipeline.report.html import Html, drawn, el, table
from composer_pipeline.report.sections import absent, section
from composer_pipeline.report.timeline import read_timeline
from composer_pipeline.training.curves import channel_curves, held_out_curve
from composer_pipeline.training.run import about
from composer_pipeline.training.runs.card import evaluation_of

Run = tuple[Path, Mapping[str, Any]]

_NONE = "No model has been trained on this version: run composer-pipeline train, then report again."


def training(runs: Sequence[Run]) -> Html:
    """Return losses and timeline of every run on this version."""
    if not runs:
        return section("training", "Training", absent(_NONE))
    return section("training", "Training", [_run(run_dir, result) for run_dir, result in runs])


def _run(run_dir: Path, result: Mapping[str, Any]) -> Html:
    facts = {name.replace("_", " "): said for name, said in about(run_dir).items()}
    losses = [
        el("div", el("h3", name), drawn(lines({name: points}, width=460), f"{name} by step"),
           el("p", _MEANS.get(name, ""), _class="soft"))
        for name, points in channel_curves(run_dir).items()
    ]  # fmt: skip
    if held := held_out_curve(run_dir):
        picture = drawn(lines({"held out": held}, width=460), "held-out loss by round")
        losses.append(el("div", el("h3", "held-out loss by round"), picture))
    over_time = read_timeline(run_dir)
    restarts = sum((result.get("restarts") or {}).values())
    return el(
        "div",
        el("h3", run_dir.name),
        table(["", "of this run"], [[el("b", name), said] for name, said in facts.items()]),
        el("h3", "Losses by step, mean of the replicas"),
        el("div", losses, _class="grid small") if losses else absent("No step was recorded."),
        el("h3", "DiLoCo: replicas over time"),
        drawn(over_time, "timeline of the replicas") if over_time
        else absent("No timeline was recorded."),
        el("p", f"{count(len(result['commits']))} rounds,"
           f" {count(sum(bool(c['merged']) for c in result['commits']))} merged,"
           f" {count(restarts)} restarts of a replica.", _class="soft"),
        _class="card",
    )  # fmt: skip


_MEANS = {
    "grpo best gain": "log-probability that the best recorded answers gained; above 0 is better",
    "sdpo": "divergence from the same model that also reads the hint",
    "dpo": "loss on pairs; 0.693 is no preference",
    "sft": "loss on the actions to imitate",
}


def evaluation(runs: Sequence[Run]) -> Html:
    """Return what the models do on sessions that training never saw."""
    found = [(run_dir, said) for run_dir, _ in runs if (said := evaluation_of(run_dir))]
    if not found:
        why = (
            "No model of this version has been evaluated: run composer-pipeline evaluate."
            if runs else _NONE
        )  # fmt: skip
        return section("evaluation", "Held-out evaluation", absent(why))
    return section(
        "evaluation", "Held-out evaluation", [_measured(run_dir, said) for run_dir, said in found]
    )


def _measured(run_dir: Path, said: Mapping[str, Any]) -> Html:
    if "cells" not in said:
        return el("div", el("h3", run_dir.name), absent("Evaluated by an earlier version only."))
    cells = cells_of(said)
    drawings = pictures(cells, TRAINED)
    verdicts = [el("p", f"Worse than its base on {s}.", _class="note") for s in said["worse"]]
    verdicts += [el("p", f"Not known whether it is worse on {s}.") for s in said["unknown"]]
    if not verdicts:
        verdicts = [el("p", "Not surely worse than its base on easy or recovery states.")]
    return el(
        "div",
        el("h3", run_dir.name),
        verdicts,
        el("div",
           el("div", el("h3", "Right actions, per cent"),
              drawn(drawings["actions.svg"], "right actions of base and trained model")),
           el("div", el("h3", "Trained minus base, 95 % interval over sessions"),
              drawn(drawings["differences.svg"], "differences")),
           _class="grid"),
        el("details", el("summary", "All measures"),
           table(HEAD, cells_table(cells, TRAINED))),
        _class="card",
    )  # fmt: skip
