"""Sessions out of a lake for good: tables, archive, books, exports.

Belongs here: the order of the steps, and going on after a kill. Does not belong here: which
sessions are meant (``care.who``), and one kind of place (``care.forgetting``).

The plan is written into the lake before anything is removed, and removed when all is done. It
holds ids and names of files, no text. Any later run finishes it first. The sessions go on the list
of the forgotten before their bytes go, so that no harvest brings them back meanwhile.

What a trained model, a published dataset, a backup, or the disk's free blocks hold is not reached.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from composer_pipeline.care import forgetting
from composer_pipeline.care.verify import blobs
from composer_pipeline.care.who import by_id, by_project, by_text, repeating, unnamed_of
from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.lake.notes import exports
from composer_pipeline.replay.ledger import Ledger, existing_ledger
from composer_pipeline.reports import Progress, Report
from composer_pipeline.traces.archive import Forgotten
from composer_pipeline.traces.parse import parse_days

PLAN = "forget.json"
_STEPS = 6


@dataclass(slots=True)
class Plan:
    """What is to go: sessions, their states and pairs, their days, files and archived pieces."""

    sessions: list[str] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    pairs: list[str] = field(default_factory=list)
    days: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ForgetReport(Report):
    """What was forgotten, or would be with ``dry_run``.

    ``repeating`` are sessions that were not named and hold records of those that were: they
    are forgotten too. ``runs`` are training runs of this lake: their weights and their windows
    may come from what is gone, and only removing their folders removes that.
    """

    sessions: list[str]
    repeating: list[str]
    dry_run: bool
    days: list[str]
    states: int
    pairs: int
    archived_files: int
    replies: int = 0
    exports: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)


def forget(
    lake: Lake,
    *,
    session: str = "",
    project: str = "",
    text: str = "",
    dry_run: bool = False,
    ledger: str | Path | None = None,
    progress: Progress | None = None,
) -> ForgetReport:
    """Remove sessions from a lake; with none named, finish what was interrupted.

    Args:
        lake: the lake.
        session: one session by its id, or the beginning of it.
        project: every session of a project: a glob of its path or of its last folder.
        text: every session in which this text stands.
        dry_run: say what would go, and change nothing.
        ledger: path or URL of the books; without one no reply is removed from any.
        progress: called with ``("forget", done, steps)``.

    Raises:
        InputError: not exactly one of the three, nothing found, nothing to finish, or a replay
            has calls about the sessions in flight.
    """
    if sum(map(bool, (session, project, text))) > 1:
        raise InputError("name one of --session, --project and --text")
    opened = existing_ledger(ledger) if ledger else None
    try:
        pending = _pending(lake)
        named: set[str] = set()
        if session:
            named = by_id(lake, session)
        elif project:
            named = by_project(lake, project)
        elif text:
            named = by_text(lake, text, opened)
        elif pending is None:
            raise InputError("name what to forget: --session, --project or --text")
        also = repeating(lake, named)
        plan = _with(lake, pending or Plan(), named | also)
        report = ForgetReport(
            sorted(plan.sessions),
            sorted(also),
            dry_run,
            plan.days,
            len(plan.states),
            len(plan.pairs),
            len(plan.files),
            exports=[str(path) for path in exports(lake)],
            runs=_runs(lake),
        )
        if dry_run:
            return report
        lake.put_bytes(PLAN, json.dumps(asdict(plan), indent=1).encode())
        report.replies = _from_books(lake, opened, plan, first=pending is None)
        _tell(progress, 1)
        _do(lake, plan, progress)
        report.exports = forgetting.from_exports(lake, set(plan.sessions), set(plan.pairs))
        lake.remove(PLAN)
        _tell(progress, 6)
        return report
    finally:
        if opened is not None:
            opened.close()


def _do(lake: Lake, plan: Plan, progress: Progress | None) -> None:
    """Remove everything that is in the lake but the books and the exports."""
    Forgotten(lake).add(plan.sessions)
    _tell(progress, 2)
    forgetting.from_archive(lake, set(plan.sessions), plan.pieces, plan.files)
    _tell(progress, 3)
    left = [day for day in plan.days if day in lake.days("raw_files")]
    parse_days(lake, left)
    forgetting.drop_days(lake, [day for day in plan.days if day not in left])
    _tell(progress, 4)
    forgetting.from_tables(lake, set(plan.sessions), set(plan.states), set(plan.pairs))
    forgetting.remove_leftovers(lake)
    _tell(progress, 5)


def _from_books(lake: Lake, ledger: Ledger | None, plan: Plan, *, first: bool) -> int:
    """Remove what teachers were asked and answered; nothing has begun where a replay runs."""
    if ledger is None:
        return 0
    try:
        return ledger.erase(plan.sessions)
    except InputError:
        if first:
            lake.remove(PLAN)
        raise


def _tell(progress: Progress | None, done: int) -> None:
    if progress is not None:
        progress("forget", done, _STEPS)


def _pending(lake: Lake) -> Plan | None:
    if not lake.exists(PLAN):
        return None
    try:
        return Plan(**json.loads(lake.get_bytes(PLAN)))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"lake {lake.url}: {PLAN} is damaged; delete it and forget again"
        ) from error


def _with(lake: Lake, plan: Plan, sessions: set[str]) -> Plan:
    """Return a plan that has what it had, and what the lake holds of further sessions."""
    every = sessions | set(plan.sessions)
    manifest = lake.rows("raw_files")
    mine = [row for row in manifest if row["session_id"] in every]
    kept = {piece for row in manifest if row["session_id"] not in every for piece in _pieces(row)}
    pieces = {piece for row in mine for piece in _pieces(row)} | set(plan.pieces)
    unnamed = set(blobs(lake)) - kept - pieces
    pieces |= unnamed_of(lake, unnamed, every)
    states = _ids(lake, ("states", "votes", "replies", "hints"), "state_id", every)
    tables = ("pairs", "normalized_pairs", "dataset_pairs")
    days = {row["day"] for row in mine} | _days(lake, every)
    return Plan(
        sessions=sorted(every),
        states=sorted(states | set(plan.states)),
        pairs=sorted(_ids(lake, tables, "pair_id", every) | set(plan.pairs)),
        days=sorted(days | set(plan.days)),
        pieces=sorted(pieces - kept),
        files=sorted({row["path"] for row in mine} | set(plan.files)),
    )


def _pieces(row: dict[str, Any]) -> list[str]:
    # A whole file may be there too, from before it grew by pieces.
    return [*(row["pieces"] or ()), row["sha256"]]


def _ids(lake: Lake, tables: Sequence[str], column: str, sessions: set[str]) -> set[str]:
    return {
        row[column]
        for table in tables
        for row in lake.rows(table, columns=[column, "session_id"])
        if row["session_id"] in sessions
    }


def _days(lake: Lake, sessions: set[str]) -> set[str]:
    rows = lake.rows("sessions", columns=["session_id"])
    return {row["day"] for row in rows if row["session_id"] in sessions}


def _runs(lake: Lake) -> list[str]:
    folder = Path(lake.root) / "runs"
    return sorted(str(path) for path in folder.iterdir()) if lake.local and folder.is_dir() else []
