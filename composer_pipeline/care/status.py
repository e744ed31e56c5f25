"""What is in a lake, what it cost, and what comes next.

Belongs here: sizes, counts and ages of tables, and the next command. Does not belong here: whether
the bytes are whole (``care.verify``) and the environment (``doctor``).
"""

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from composer_pipeline.care.forget import PLAN
from composer_pipeline.lake import TABLES, Lake
from composer_pipeline.replay.ledger import budget_report
from composer_pipeline.replay.pending_days import pending_days
from composer_pipeline.reports import Report
from composer_pipeline.traces.parse import is_redacted

#: Each stage with the tables that it reads and one that it writes, in the order of the pipeline.
_STAGES = (
    ("pairs", ("states", "replies"), "votes"),
    ("normalize", ("pairs",), "normalized_pairs"),
    ("dataset", ("normalized_pairs", "hints"), "dataset_pairs"),
)
_TIMES = ("mtime", "last_modified", "LastModified", "created")


@dataclass(slots=True)
class StatusReport(Report):
    """What a lake holds; bytes by table and days, rows of the tables people count, USD, stages.

    ``stages`` says ``current``, ``none``, or what is newer than what the stage wrote; ``next`` is
    the command to go on with.
    """

    lake: str
    bytes: dict[str, int]
    days: dict[str, Any]
    rows: dict[str, int]
    usd: dict[str, str]
    stages: dict[str, str] = field(default_factory=dict)
    next: str = ""


def status(lake: Lake, *, ledger: str | Path | None = None) -> StatusReport:
    """Say what a lake holds and what comes next; reads sizes, footers and the books.

    Args:
        lake: the lake.
        ledger: path or URL of the books; no amounts without one.
    """
    bytes_, newest = _files(lake)
    days = lake.days("sessions")
    report = StatusReport(
        lake.url,
        {**{name: size for name, size in bytes_.items() if size}, "total": sum(bytes_.values())},
        {"count": len(days), "first": days[0] if days else "", "last": days[-1] if days else ""},
        lake.select(_COUNTS)[0],
        _money(ledger),
    )
    for stage, reads, writes in _STAGES:
        late = [table for table in reads if newest.get(table, 0) > newest.get(writes, math.inf)]
        report.stages[stage] = (
            "none" if writes not in newest else f"older than {late[0]}" if late else "current"
        )
    report.next = _next(lake, report)
    return report


_COUNTS = "SELECT (SELECT count(DISTINCT session_id) FROM sessions) AS sessions, " + ", ".join(
    f"(SELECT count(*) FROM {table}) AS {table}"
    for table in ("states", "replies", "hints", "pairs", "normalized_pairs", "dataset_pairs")
)


def _files(lake: Lake) -> tuple[dict[str, int], dict[str, float]]:
    """Return bytes by table, and when each table was last written."""
    sizes: dict[str, int] = {}
    newest: dict[str, float] = {}
    for path, about in lake.fs.find(lake.root, detail=True).items():
        name = str(path).removeprefix(lake.root + "/").partition("/")[0]
        sizes[name] = sizes.get(name, 0) + int(about.get("size") or 0)
        if name in TABLES:
            newest[name] = max(newest.get(name, 0.0), _seconds(about))
    return dict(sorted(sizes.items(), key=lambda item: -item[1])), newest


def _seconds(about: dict[str, Any]) -> float:
    found = next((about[key] for key in _TIMES if about.get(key)), 0.0)
    return found.timestamp() if isinstance(found, datetime) else float(found)


def _money(ledger: str | Path | None) -> dict[str, str]:
    if ledger is None:
        return {}
    for row in budget_report(ledger)["scopes"]:
        if row["scope"] == "global":
            return {name.removesuffix("_usd"): str(row[name]) for name in _AMOUNTS if row[name]}
    return {"spent": "0"}


_AMOUNTS = ("spent_usd", "reserved_usd", "unknown_usd", "ceiling_usd")


def _next(lake: Lake, report: StatusReport) -> str:
    """Return the command that goes on."""
    days = lake.days("raw_files")
    if lake.exists(PLAN):
        return "composer-pipeline forget  (it was interrupted)"
    if not days:
        return "composer-pipeline ingest ~/.claude/projects"
    if stale := [day for day in days if not is_redacted(lake, day)]:
        return "composer-pipeline reparse" + (f" --day {stale[0]}" if len(stale) == 1 else "")
    if report.stages["pairs"] == "none" and not report.rows["replies"]:
        return "composer-pipeline plan  (then replay --max-usd USD)"
    for stage, said in report.stages.items():
        if said != "current":
            return f"composer-pipeline {stage}"
    if pending_days(lake, datetime.now(UTC).date()):
        return "composer-pipeline replay --max-usd USD  (days without replies), or train"
    return "composer-pipeline train"
