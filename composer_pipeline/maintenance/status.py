"""What is in a lake, what it cost, and what comes next.

Belongs here: sizes, counts and ages of tables, and the next command. Does not belong here: whether
the bytes are whole (``care.verify``) and the environment (``doctor``).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec

from composer_pipeline.errors import InputError
from composer_pipeline.lake.provenance import Made, Origin, Stamps, changed, notes_of
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.maintenance.forget import PLAN
from composer_pipeline.normalization.stage import normalized_origin, recipe_id_of
from composer_pipeline.preferences.hints import hints_origin
from composer_pipeline.preferences.pairs import pairs_origin
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.reports import Report
from composer_pipeline.states.previews import row_count
from composer_pipeline.teachers.ledger.ledger import budget_report
from composer_pipeline.teachers.replies import WINDOW_DAYS, pending_days, replies_origin
from composer_pipeline.teachers.teachers import Teacher, TeacherSet
from composer_pipeline.traces.archive import days_changed
from composer_pipeline.traces.parse import is_current, is_redacted

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


#: Families that have to answer before a day's pairs are worth making: fewer never agree.
FAMILIES = 2


class Why(msgspec.Struct, frozen=True):
    """Why a day is not current.

    ``kind`` is ``absent`` (it was never made), ``changed`` (its inputs, or what it was made with)
    or ``missing`` (it was made, but for some rows that could not be had).
    """

    said: str
    kind: Literal["absent", "changed", "missing"] = "changed"


#: Day -> why it is not current.
Stale = dict[str, Why]


_NEW_FILES = Why("session files are new", "absent")
_CHANGED_FILES = Why("session files have changed")


def stale_files(lake: Lake, paths: Iterable[Path | str]) -> Stale:
    """Return the days whose session files are new or changed since they were archived.

    Raises:
        InputError: a path is missing, or a folder holds no session.
    """
    known = set(lake.days("raw_files"))
    return {
        day: _CHANGED_FILES if day in known else _NEW_FILES for day in days_changed(lake, paths)
    }


def stale_states(lake: Lake) -> Stale:
    """Return the archived days that this parser and these redaction rules did not write."""
    found: Stale = {}
    for day in lake.days("raw_files"):
        if is_current(lake, day):
            continue
        if lake.partitions("sessions", day=day) and not is_redacted(lake, day):
            found[day] = Why("redacted by other rules than those of now")
        elif lake.partitions("states", day=day):
            found[day] = Why("not parsed from what is archived, or by another parser")
        else:
            found[day] = Why("not parsed yet", "absent")
    return found


def stale_hints(lake: Lake) -> Stale:
    """Return the parsed days whose hints are missing, or made from something else."""
    return _stale(lake, "hints", map(hints_origin, lake.days("states")))


def stale_replies(lake: Lake, teacher_set: TeacherSet, teacher: Teacher) -> Stale:
    """Return the parsed days that a teacher has not answered whole, with its parameters of now."""
    origins = [replies_origin(teacher_set, teacher, day) for day in lake.days("states")]
    notes = notes_of(lake, "replies")
    found = _stale(lake, "replies", origins, notes, absent="not asked")
    for origin in origins:
        made = notes.get(origin.name)
        if made and made.missing and origin.keys["day"] not in found:
            times = f", tried {made.tries} times" if made.tries > 1 else ""
            said = f"{made.missing} replies are missing ({made.why}){times}"
            found[origin.keys["day"]] = Why(said, "missing")
    return dict(sorted(found.items()))


def stale_pairs(lake: Lake, rules: PreferenceRules) -> Stale:
    """Return the days whose votes and pairs are missing, or made from something else.

    Raises:
        InputError: a list of benchmarks cannot be read.
    """
    return _stale(lake, "votes", (pairs_origin(lake, day, rules) for day in days_with_votes(lake)))


def stale_normalized(lake: Lake, recipe: str | Path) -> Stale:
    """Return the days whose pairs are not normalised, or by another recipe.

    Raises:
        InputError: a bad recipe.
    """
    recipe_id = recipe_id_of(recipe)
    return _stale(
        lake, "normalized_pairs", (normalized_origin(day, recipe_id) for day in lake.days("pairs"))
    )


def days_with_votes(lake: Lake) -> list[str]:
    """Return the days that enough families answered, or whose states were voted on before."""
    voted, states = set(lake.days("votes")), set(lake.days("states"))
    return sorted(day for day in states if day in voted or families(lake, day) >= FAMILIES)


def families(lake: Lake, day: str) -> int:
    """Return how many families have a usable reply that votes to a state of a day."""
    rows = lake.read("replies", days=[day], columns=["family", "control", "status"]).to_pylist()
    return len({row["family"] for row in rows if row["status"] == "ok" and not row["control"]})


def missing_replies(lake: Lake, teacher_set: TeacherSet) -> dict[tuple[str, str], Made]:
    """Return (teacher, day) -> the note of what could not be had, though it was asked."""
    notes = notes_of(lake, "replies")
    found = {}
    for teacher in teacher_set.teachers:
        for day in lake.days("states"):
            made = notes.get(replies_origin(teacher_set, teacher, day).name)
            if made is not None and made.missing:
                found[teacher.name, day] = made
    return found


def coverage(lake: Lake, teacher_set: TeacherSet, day: str) -> dict[str, Any]:
    """Return teacher -> ``asked`` states of a day, and those of them that have ``replies``.

    A teacher of a share is asked about its sample alone. What a selection leaves out counts as
    asked: with one, say of a teacher what :func:`stale_replies` says.
    """
    ids = lake.read("states", days=[day], columns=["state_id"])["state_id"].to_pylist()
    rows = lake.read("replies", days=[day], columns=["state_id", "status"]).to_pylist()
    have: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row["status"] != "unknown":
            have[row["teacher"]].add(row["state_id"])
    found = {}
    for teacher in teacher_set.teachers:
        asked = {state_id for state_id in ids if teacher.asks(state_id)}
        found[teacher.name] = {"asked": len(asked), "replies": len(asked & have[teacher.name])}
    return found


def unusable_share(lake: Lake, teacher: str) -> tuple[float, int]:
    """Return which share of a teacher's replies cannot be used, and how many there are."""
    status = lake.read("replies", teacher=teacher, columns=["status"])["status"].to_pylist()
    bad = sum(one != "ok" for one in status)
    return (bad / len(status) if status else 0.0), len(status)


def _stale(
    lake: Lake,
    table: str,
    origins: Iterable[Origin],
    notes: Mapping[str, Made] | None = None,
    absent: str = "not made yet",
) -> Stale:
    stamps = Stamps(lake)
    notes = notes_of(lake, table) if notes is None else notes
    found: Stale = {}
    for origin in origins:
        made = notes.get(origin.name)
        if made is None and not stamps.of((table, origin.keys)):
            found[origin.keys["day"]] = Why(absent, "absent")
        elif whys := changed(origin, made, stamps):
            found[origin.keys["day"]] = Why(_told(whys))
    return found


def _told(whys: Sequence[str]) -> str:
    more = f" and {len(whys) - 3} more" if len(whys) > 3 else ""
    return "; ".join(whys[:3]) + more


#: Nights in which a teacher may fail at a day before no night asks it again. A new state, another
#: parameter, a backfill and ``composer-pipeline replay`` ask it all the same.
TRIES = 5


def harvest_days(lake: Lake, paths: Iterable[Path | str]) -> list[str]:
    """Return the days that a harvest has work on: at the source, in the archive or in the states.

    Raises:
        InputError: a path is missing, or a folder holds no session.
    """
    return sorted({*stale_files(lake, paths), *stale_states(lake), *stale_hints(lake)})


def replay_days(
    lake: Lake, teacher_set: TeacherSet, today: date, *, tries: int = TRIES
) -> dict[str, list[str]]:
    """Return day -> the teachers to ask about it, of the last month.

    With a selection, which decides by all answers together, a day's teachers are asked together.

    Args:
        lake: has the states.
        teacher_set: the teacher file.
        today: the last day of the month, in UTC.
        tries: nights in which a teacher may fail at a day.
    """
    first = str(today - timedelta(days=WINDOW_DAYS))
    notes, stamps = notes_of(lake, "replies"), Stamps(lake)
    wanted: dict[str, list[str]] = defaultdict(list)
    for teacher in teacher_set.teachers:
        for day in stale_replies(lake, teacher_set, teacher):
            origin = replies_origin(teacher_set, teacher, day)
            made = notes.get(origin.name)
            over = made is not None and made.tries >= tries
            if not first <= day <= str(today) or (over and not changed(origin, made, stamps)):
                continue
            wanted[day].append(teacher.name)
    everybody = [teacher.name for teacher in teacher_set.teachers]
    together = teacher_set.selection.active
    return {day: everybody if together else names for day, names in sorted(wanted.items())}


def pairs_days(lake: Lake, rules: PreferenceRules, recipe: str | Path) -> list[str]:
    """Return the days whose pairs or normalised pairs have to be made.

    Raises:
        InputError: a list of benchmarks cannot be read, or a bad recipe.
    """
    return sorted({*stale_pairs(lake, rules), *stale_normalized(lake, recipe)})


#: Asset -> the table of which it has one partition a day.
TABLE_OF: Mapping[str, str] = {
    "raw_sessions": "raw_files",
    "trace_states": "states",
    "error_hints": "hints",
    "preference_pairs": "pairs",
    "normalized_pairs": "normalized_pairs",
}


def days_held(lake: Lake, teacher_set: TeacherSet | None) -> dict[str, list[str]]:
    """Return asset -> the days that it is done with; teachers by ``teacher_replies/NAME``.

    A teacher is done with a day that it was asked about whole and answered whole.
    """
    found = {asset: lake.days(table) for asset, table in TABLE_OF.items()}
    notes = notes_of(lake, "replies")
    for teacher in teacher_set.teachers if teacher_set else []:
        whole = {
            name.rpartition("day=")[2].removesuffix(".json")
            for name, made in notes.items()
            if name.startswith(f"made/replies/teacher={teacher.name}/") and not made.missing
        }
        held = set(lake.days("replies", teacher=teacher.name))
        found[f"teacher_replies/{teacher.name}"] = sorted(whole & held)
    return found


def rows_of(lake: Lake, asset: str, day: str) -> int:
    """Return the rows of an asset's day; only the end of a file is read."""
    kind, _, teacher = asset.partition("/")
    keys = {"teacher": teacher, "day": day} if teacher else {"day": day}
    return row_count(lake, "replies" if teacher else TABLE_OF[kind], **keys) or 0


def empty_days(lake: Lake, paths: Iterable[Path | str], days: Iterable[str]) -> list[str]:
    """Return those of ``days`` that have no session, neither archived nor at the source."""
    try:
        coming = set(stale_files(lake, paths))
    except InputError:  # no sessions at the source
        coming = set()
    known = {*lake.days("raw_files"), *lake.days("states")} | coming
    return sorted(set(days) - known)
