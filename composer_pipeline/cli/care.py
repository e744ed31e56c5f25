"""Commands that look after a lake: verify, reparse, forget."""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from composer_pipeline.cli.common import (
    Bar,
    JsonOption,
    LakeOption,
    LedgerOption,
    app,
    is_day,
    named_ledger,
    open_lake,
    show,
)
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake import Lake


@app.command
def verify(
    *,
    day: Sequence[str] = (),
    ledger: LedgerOption = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Read the whole lake: hashes, counts, redaction, and the ledger against the replies.

    Nothing is changed; what is wrong is named with what mends it.

    Args:
        day: only these days (YYYY-MM-DD).
    """
    from composer_pipeline.care import verify as run

    store = open_lake(lake, whole=True)
    with Bar() as progress:
        report = run(
            store, archived_days(store, day), ledger=named_ledger(store, ledger), progress=progress
        )
    show(report.to_dict(), as_json, "verify")
    if report.problems:
        raise ComposerError(f"verify found {len(report.problems)} problems")


@app.command
def reparse(
    *,
    day: Sequence[str] = (),
    ledger: LedgerOption = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write sessions, states and replies again from the raw bytes; costs nothing.

    For a damaged day, a new version of the parser, or changed redaction rules. Run `pairs` after
    it: what later stages made stays until they run.

    Args:
        day: only these days (YYYY-MM-DD).
    """
    from composer_pipeline.care import redact_again

    store = open_lake(lake, whole=True)
    with Bar() as progress:
        report, replies = redact_again(
            store, archived_days(store, day), ledger=named_ledger(store, ledger), progress=progress
        )
    show({**report.to_dict(), "replies": replies}, as_json, "reparse")
    if report.failed:
        failed = next(iter(report.failed.values()))
        raise ComposerError(f"{len(report.failed)} days were not written: {failed}")


@app.command
def forget(
    *,
    session: str = "",
    project: str = "",
    text: str = "",
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    ledger: LedgerOption = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Remove sessions for good: archive, tables, the ledger's bytes, exports.

    Sessions that repeat their records go with them, and no ingest takes them again. Amounts stay in
    the ledger. With none named, an interrupted `forget` is finished. Trained models, what was
    published, and backups are not reached.

    Args:
        session: one session, by its id or the beginning of it.
        project: every session of a project: a glob of its path, or of its last folder.
        text: every session in which this text stands.
        dry_run: say what would go; remove nothing.
    """
    from composer_pipeline.care import forget as run

    store = open_lake(lake, whole=True)
    with Bar() as progress:
        report = run(
            store,
            session=session,
            project=project,
            text=text,
            dry_run=dry_run,
            ledger=named_ledger(store, ledger),
            progress=progress,
        )
    show(report.to_dict(), as_json, "forget")


def archived_days(lake: Lake, days: Sequence[str]) -> list[str] | None:
    """Return the days of ``--day``; ``None`` for all.

    Raises:
        InputError: one is no date, or the archive has no session of it.
    """
    have = set(lake.days("raw_files"))
    for day in days:
        if not is_day(day):
            raise InputError(f"--day {day!r} is no date of the form YYYY-MM-DD")
        if day not in have:
            raise InputError(f"lake {lake.url} has no archived session of {day}")
    return sorted(set(days)) or None
