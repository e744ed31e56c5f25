"""Sessions taken back: out of the lake as ``forget`` does it, and kept out, here and on the Hub.

Belongs here: the tombstone beside the forgetting. Does not belong here: what is removed from the
lake (``care.forget``), the list of tombstones (``lake.notes``), and the Hub (``publishing``).

The tombstone is there before anything is removed: no harvest takes the session again, no dataset
and no publication has a row of it, and the next publication removes from the Hub what is older
than the tombstone.
"""

import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from composer_pipeline.care.forget import PLAN, ForgetReport, forget
from composer_pipeline.care.who import by_project, is_known
from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.lake.notes import add_withdrawal, remove_withdrawal, withdrawals
from composer_pipeline.reports import Progress, Report

_WHOLE_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
#: What brings the withdrawal to the Hub.
NEXT = ("composer-pipeline dataset", "composer-pipeline publish --repo OWNER/NAME")

Kind = Literal["session", "repository", "text"]


@dataclass(slots=True)
class WithdrawReport(Report):
    """What was withdrawn, or would be with ``dry_run``.

    ``forgotten`` is what :func:`forget` says of the lake; ``None`` where it held nothing any more.
    ``tombstones`` counts those that the lake has now, and ``next`` are the commands that bring the
    withdrawal to each repository on the Hub.
    """

    sessions: list[str]
    dry_run: bool
    at: str = ""
    tombstones: int = 0
    forgotten: ForgetReport | None = None
    next: list[str] = field(default_factory=lambda: list(NEXT))


def withdraw(
    lake: Lake,
    *,
    session: str = "",
    repository: str = "",
    text: str = "",
    dry_run: bool = False,
    ledger: str | Path | None = None,
    progress: Progress | None = None,
) -> WithdrawReport:
    """Take sessions back for good; with none named, finish what was interrupted.

    Args:
        lake: the lake.
        session: one session by its id, or the beginning of it. A whole id may be one that the lake
            does not hold any more: what was published of it is withdrawn all the same.
        repository: every session of a repository, also those that come later: a glob of its path
            or of its last folder.
        text: every session in which this text stands.
        dry_run: say what would go, and change nothing.
        ledger: path or URL of the books; without one no reply is removed from any.
        progress: called with ``("forget", done, steps)``.

    Raises:
        InputError: not exactly one of the three, nothing found, or a replay has calls about the
            sessions in flight; then no tombstone is put.
    """
    named = {"session": session, "repository": repository, "text": text}
    given: list[tuple[Kind, str]] = [(k, v) for k, v in named.items() if v]  # type: ignore[misc]
    if len(given) > 1:
        raise InputError("name one of --session, --repository and --text")
    if not given:
        return _finished(lake, dry_run, ledger, progress)
    kind, what = given[0]
    if kind == "session" and _WHOLE_ID.fullmatch(session) and not is_known(lake, session):
        return _unknown(lake, session, dry_run, ledger, progress)
    run = partial(forget, lake, session=session, project=repository, text=text, ledger=ledger)
    plan = run(dry_run=True)
    report = WithdrawReport(plan.sessions, dry_run, forgotten=plan)
    if dry_run:
        report.tombstones = len(withdrawals(lake))
        return report
    folders = _folders(lake, repository) if kind == "repository" else set[str]()
    made = add_withdrawal(lake, kind, what, plan.sessions, folders)
    try:
        report.forgotten = run(progress=progress)
    except InputError:
        if not lake.exists(PLAN):  # refused before anything was removed
            remove_withdrawal(lake, made)
        raise
    report.at, report.tombstones = made.at, len(withdrawals(lake))
    return report


def _finished(
    lake: Lake, dry_run: bool, ledger: str | Path | None, progress: Progress | None
) -> WithdrawReport:
    """Finish an interrupted one: its tombstone is there."""
    if not lake.exists(PLAN):
        raise InputError("name what to withdraw: --session, --repository or --text")
    done = forget(lake, dry_run=dry_run, ledger=ledger, progress=progress)
    return WithdrawReport(done.sessions, dry_run, tombstones=len(withdrawals(lake)), forgotten=done)


def _unknown(
    lake: Lake,
    session: str,
    dry_run: bool,
    ledger: str | Path | None,
    progress: Progress | None,
) -> WithdrawReport:
    """Put a tombstone for a session that the lake holds nothing of, or no more."""
    report = WithdrawReport([session], dry_run)
    if lake.exists(PLAN):
        report.forgotten = forget(lake, dry_run=dry_run, ledger=ledger, progress=progress)
    if not dry_run:
        report.at = add_withdrawal(lake, "session", session, [session]).at
    report.tombstones = len(withdrawals(lake))
    return report


def _folders(lake: Lake, glob: str) -> set[str]:
    """Return the working directories of the sessions of a repository."""
    sessions = by_project(lake, glob)
    rows = lake.rows("sessions", columns=["session_id", "project"])
    return {row["project"] for row in rows if row["session_id"] in sessions and row["project"]}
