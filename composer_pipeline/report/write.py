"""The report's file: what is counted once, the page, and where it lies.

Belongs here: the order of the sections, and the file. Does not belong here: a section's words. The
same lake and runs give the same bytes; nothing depends on the clock or the machine.
"""

import hashlib
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from composer_pipeline import __version__
from composer_pipeline.charts import lines
from composer_pipeline.dataset.manifest import Build, check_statistics, read_build
from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.evaluate import TRAINED
from composer_pipeline.evaluation.report import HEAD, cells_of, pictures
from composer_pipeline.evaluation.report import table as cells_table
from composer_pipeline.files import replace
from composer_pipeline.lake.exports import remember_exports
from composer_pipeline.lake.provenance import build_id
from composer_pipeline.lake.store import Lake
from composer_pipeline.markdown import count, dollars
from composer_pipeline.publishing.card import (
    Facts,
    Source,
    facts_of,
    funnel,
    statistics_of,
    votes_by_tool,
)
from composer_pipeline.publishing.publish import take_files
from composer_pipeline.report import sections
from composer_pipeline.report import sections as measured
from composer_pipeline.report.html import CSS, POLICY, Html, drawn, el, join, table
from composer_pipeline.report.sections import absent, section
from composer_pipeline.report.timeline import read_timeline
from composer_pipeline.reports import Progress, Report
from composer_pipeline.states.previews import cut
from composer_pipeline.training.curves import channel_curves, held_out_curve
from composer_pipeline.training.model_card import evaluation_of
from composer_pipeline.training.run import about

#: Pairs that are shown.
SHOWN = 20
_CHARS, _LINES = 1600, 40
_SEEN_CHARS, _SEEN_LINES = 1200, 24
#: Below this likeness of both sides, marks would be noise.
_ALIKE = 0.35

Row = dict[str, Any]
_KEYS = ["pair_id", "tier", "outcome", "tool_chosen", "tool_rejected"]
_SAID = ["pair_id", "session_id", "task", "chosen_text", "rejected_text", "prompt",
         "chosen_models", "rejected_model", "tier", "turn", "n_agree", "n_families", "outcome",
         "simulated"]  # fmt: skip
_OUTCOMES = {
    "student_bad": "the trace shows that the agent's action failed, was corrected or undone",
    "student_ok": "the tests that the agent's action ran passed",
    "unknown": "the trace says nothing of the agent's action",
}


def pairs(files: Sequence[Source]) -> Html:
    """Return the section: pairs of every tool and tier in turn, the same ones for equal files."""
    shown = [_pair(number, row) for number, row in enumerate(_chosen(files), 1)]
    return section(
        "pairs",
        f"{count(len(shown))} pairs",
        el("p", "Drawn so that each of the agent's tools has its turn. Coloured is what the other"
           " side lacks.", _class="soft"),
        shown,
    )  # fmt: skip


def _chosen(files: Iterable[Source]) -> list[Row]:
    """Read the pairs that are shown: first keys of all of them, then whole rows of a few."""
    groups: dict[tuple[str, ...], list[tuple[str, str]]] = defaultdict(list)
    sources = [file for file in files if file.config == "pairs"]
    for file in sources:
        for batch in pq.ParquetFile(file.local).iter_batches(8192, columns=_KEYS):
            for row in batch.to_pylist():
                kind = (row["tool_rejected"] or "", row["tool_chosen"] or "")
                draw = hashlib.blake2b(row["pair_id"].encode(), digest_size=8).hexdigest()
                # Of each kind those that teach most come first.
                order = f"{row['outcome'] != 'student_bad':d}{row['tier'] != 'gold':d}{draw}"
                groups[kind].append((order, row["pair_id"]))
    queues = [sorted(group) for _, group in sorted(groups.items())]
    queues.sort(key=lambda queue: (-len(queue), queue))
    drawn = [queue[turn][1] for turn in range(SHOWN) for queue in queues if turn < len(queue)]
    wanted = {name: at for at, name in enumerate(drawn[:SHOWN])}
    return sorted(_rows(sources, wanted), key=lambda row: wanted[row["pair_id"]])


def _rows(sources: Iterable[Source], wanted: dict[str, int]) -> Iterator[Row]:
    """Yield whole rows of some pairs, reading only the row groups that hold one."""
    for file in sources:
        reader = pq.ParquetFile(file.local)
        for group in range(reader.num_row_groups):
            names = reader.read_row_group(group, ["pair_id"])["pair_id"].to_pylist()
            picks = [at for at, name in enumerate(names) if name in wanted]
            if picks:
                yield from reader.read_row_group(group, _SAID).take(picks).to_pylist()


def _pair(number: int, row: Row) -> Html:
    rejected, chosen = (_cut(row[f"{side}_text"]) for side in ("rejected", "chosen"))
    left, right = _marked(rejected, chosen)
    models = ", ".join(dict.fromkeys(row["chosen_models"] or [])) or "not recorded"
    seen = _seen(row["prompt"])
    about = (
        f"Turn {row['turn']}; {row['tier']}: {row['n_agree']} of {row['n_families']} families"
        f" agree; {_OUTCOMES.get(row['outcome'] or 'unknown', row['outcome'])}"
        + ("; simulated teachers" if row["simulated"] else "")
    )
    return el(
        "article",
        el("p", f"{number}. ", cut(row["task"] or "(no task in words)", 320, 4),
           _class="task"),
        el("p", about, _class="about"),
        el("details", el("summary", "What the agent saw last"), el("pre", seen)) if seen else "",
        el("div",
           _side("no", f"rejected: the agent ({row['rejected_model'] or 'not recorded'})", left),
           _side("yes", f"chosen: {models}", right), _class="sides"),
        _class="card pair", id=f"pair-{number}", data_pair=row["pair_id"],
        data_session=row["session_id"],
    )  # fmt: skip


def _side(kind: str, title: str, body: Html) -> Html:
    return el("div", el("h4", title), el("pre", body), _class=f"side {kind}")


def _seen(prompt: Sequence[Any] | None) -> str:
    """Return the words of a prompt's last message."""
    if not prompt:
        return ""
    message = json.loads(prompt[-1]) if isinstance(prompt[-1], str) else prompt[-1]
    return cut(str(message.get("content") or ""), _SEEN_CHARS, _SEEN_LINES)


def _cut(text: str | None) -> str:
    return cut(text or "", _CHARS, _LINES)


def _marked(left: str, right: str) -> tuple[Html, Html]:
    """Return both texts with the words that the other lacks marked, where they are alike at all."""
    a, b = (re.findall(r"\w+|\s+|[^\w\s]", text) for text in (left, right))
    found = SequenceMatcher(None, a, b, autojunk=False)
    if left == right or found.ratio() < _ALIKE:
        return el("span", left), el("span", right)
    one: list[str | Html] = []
    other: list[str | Html] = []
    for op, start, end, at, to in found.get_opcodes():
        for parts, words in ((one, "".join(a[start:end])), (other, "".join(b[at:to]))):
            if words:
                parts.append(words if op == "equal" or not words.strip() else el("mark", words))
    return el("span", one), el("span", other)


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


_LINKS = {
    "funnel": "Funnel", "agreement": "Agreement", "teachers": "Teachers", "errors": "Failures",
    "separability": "Style", "training": "Training", "evaluation": "Evaluation", "pairs": "Pairs",
    "making": "How it was made",
}  # fmt: skip


@dataclass(frozen=True)
class ReportFile(Report):
    """Where a report is, of which dataset version, and what it had nothing of."""

    path: Path
    version: str
    pairs: int
    runs: list[str]
    missing: list[str]


def default_place(lake: Lake) -> Path:
    """Return where the report of the lake's dataset version goes: beside its runs.

    Raises:
        InputError: the lake has no dataset.
    """
    version = build_id(lake)
    if not version:
        raise InputError(f"lake {lake.url} has no dataset; run composer-pipeline dataset")
    root = Path(lake.root) if lake.local else Path()
    return root / "reports" / f"dataset-{version}.html"


def write_report(
    lake: Lake,
    out: str | Path = "",
    *,
    run_root: str | Path = "",
    progress: Progress | None = None,
) -> ReportFile:
    """Write the dataset version that is in the lake as one HTML file.

    The file needs nothing else and loads nothing. Only its owner may read it, as everything of a
    lake; ``forget`` removes it when a session goes that it shows.

    Args:
        lake: has the dataset, and what it was made of.
        out: the file; by default ``reports/dataset-<version>.html`` in the lake.
        run_root: folder of training runs; those on this version are in the report. By default the
            lake's ``runs``.
        progress: called with ``("report", done, steps)``.

    Raises:
        InputError: there is no dataset, it is half built or older than what it is made of, it has
            no pair, or the file cannot be there.
        StorageError: the file cannot be written.
    """
    build = read_build(lake)
    path = Path(out).expanduser() if out else default_place(lake)
    if not any(file.config == "pairs" for file in build.files):
        raise InputError(f"lake {lake.url}: the dataset has no pair; there is nothing to report")
    root = Path(run_root) if run_root else Path(lake.root if lake.local else ".") / "runs"
    _tell(progress, 0)
    with tempfile.TemporaryDirectory(prefix="report-") as folder:
        files = take_files(lake, build, Path(folder))
        facts = facts_of(files)
        _tell(progress, 1)
        runs: list[Run] = [*measured.runs_on(lake, root)]
        statistics = _statistics(lake, build)
        data = _data(lake, facts, statistics)
        body = [*data, training(runs), evaluation(runs), pairs(files)]
    _tell(progress, 2)
    text = _page(build, facts, runs, body)
    remember_exports(lake, [path], "--out")
    replace(path, text, f"--out {path}")
    _tell(progress, 3)
    missing = [*([] if statistics else ["statistics"]), *([] if runs else ["training"])]
    return ReportFile(path, build.id, facts.of("pairs"), [run.name for run, _ in runs], missing)


def _tell(progress: Progress | None, done: int) -> None:
    if progress:
        progress("report", done, 3)


def _statistics(lake: Lake, build: Build) -> dict[tuple[str, str, str, str], dict[str, Any]]:
    """Return the statistics of this build; nothing where they were measured on another."""
    try:
        check_statistics(lake, build)
    except InputError:
        return {}
    return statistics_of(lake)


def _data(
    lake: Lake, facts: Facts, statistics: dict[tuple[str, str, str, str], dict[str, Any]]
) -> list[Html]:
    days = facts.days
    return [
        sections.funnel(funnel(facts, statistics), facts, statistics),
        sections.agreement(votes_by_tool(lake)[:12], statistics),
        sections.teachers(measured.replies_by_teacher(lake, days), measured.unusable(lake, days)),
        sections.failures(measured.errors(lake, days)),
        sections.separability(statistics),
    ]


def _page(build: Build, facts: Facts, runs: Sequence[Run], body: Sequence[Html]) -> str:
    title = f"Dataset {build.id}"
    span = f"{min(facts.days)} to {max(facts.days)}" if facts.days else "no day"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="generator", content=f"composer-pipeline {__version__}"),
        el("title", title),
        Html(f"<style>{CSS}</style>"),
    )
    main = el(
        "main",
        el("header",
           el("h1", title),
           el("p", f"Preference pairs from {count(len(facts.sessions))} sessions of coding agents,"
              f" {span}."),
           el("nav", [el("a", name, href=f"#{key}") for key, name in _LINKS.items()])),
        _tiles(facts, runs),
        _simulated(facts),
        body,
        _making(build),
    )  # fmt: skip
    return f"<!doctype html>\n{el('html', head, el('body', main), lang='en')}\n"


def _tiles(facts: Facts, runs: Sequence[Run]) -> Html:
    splits = {s: sum(n for (c, split), n in facts.rows.items() if (c, split) == ("pairs", s))
              for s in ("train", "validation")}  # fmt: skip
    billed = sum(t.cost_usd for t in facts.teachers.values())
    tiles: Mapping[str, str] = {
        f"pairs: {count(splits['train'])} train, {count(splits['validation'])} validation": count(
            facts.of("pairs")
        ),
        "states with recorded answers": count(facts.of("groups")),
        "error turns with a hint": count(facts.of("hints")),
        "sessions": count(len(facts.sessions)),
        "repositories" if len(facts.repositories) != 1 else "repository": count(
            len(facts.repositories)
        ),
        "teachers": count(len(facts.teachers)),
        "billed for the answers in it": dollars(billed),
        "models trained on it" if len(runs) != 1 else "model trained on it": count(len(runs)),
    }
    return el(
        "div",
        [el("div", el("b", number), el("span", said), _class="tile")
         for said, number in tiles.items()],
        _class="tiles",
    )  # fmt: skip


def _simulated(facts: Facts) -> Html:
    if not facts.simulated:
        return join([])
    return el(
        "p",
        f"Simulated: {count(facts.simulated)} of {count(facts.marked)} rows come from simulated"
        " teachers: scripts that answer over the real protocol, for demonstrations and tests. What"
        " those were billed is simulated too.",
        _class="note",
    )


def _making(build: Build) -> Html:
    rows = [
        [el("code", file.path), count(file.rows), f"{file.bytes:,}", el("code", file.sha256[:16])]
        for file in build.files
    ]
    return el(
        "section",
        el("h2", "How it was made"),
        el("div", table(["file", "rows", "bytes", "SHA-256 begins"], rows), _class="card"),
        el("footer", f"Version {build.id}, tables of schema {build.schema_version}, written by"
           f" composer-pipeline {__version__}. Equal data gives the same file. Texts are redacted"
           " as the dataset is; rules do not find every name of a person in prose."),
        id="making",
    )  # fmt: skip
