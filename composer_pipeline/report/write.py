"""The report's file: what is counted once, the page, and where it lies.

Belongs here: the order of the sections, and the file. Does not belong here: a section's words. The
same lake and runs give the same bytes; nothing depends on the clock or the machine.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_pipeline import __version__
from composer_pipeline.errors import InputError
from composer_pipeline.files import replace
from composer_pipeline.lake import Lake, build_id
from composer_pipeline.lake.notes import remember_exports
from composer_pipeline.markdown import count, dollars
from composer_pipeline.publishing import (
    Build,
    Facts,
    check_statistics,
    facts_of,
    funnel,
    read_build,
    statistics_of,
    take_files,
    votes_by_tool,
)
from composer_pipeline.report import measured, sections
from composer_pipeline.report.html import Html, el, join, table
from composer_pipeline.report.pairs import pairs
from composer_pipeline.report.style import CSS, POLICY
from composer_pipeline.report.training import Run, evaluation, training
from composer_pipeline.reports import Progress, Report

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
