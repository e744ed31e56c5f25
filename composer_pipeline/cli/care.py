"""Commands that look after a lake: verify, reparse, forget, withdraw."""

from collections.abc import Callable
from functools import partial
from typing import Annotated

from cyclopts import Parameter

from composer_pipeline.cli.common import (
    Bar,
    JsonOption,
    LakeOption,
    LedgerOption,
    app,
    named_ledger,
    open_lake,
    show,
)
from composer_pipeline.cli.filters import DayFilter
from composer_pipeline.errors import ComposerError
from composer_pipeline.reports import Report


@app.command
def verify(
    *,
    only: DayFilter = DayFilter(),  # noqa: B008  frozen
    ledger: LedgerOption = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Read the whole lake: hashes, counts, redaction, and the ledger against the replies.

    Nothing is changed; what is wrong is named with what mends it.
    """
    from composer_pipeline.care import verify as run

    store = open_lake(lake, whole=True)
    with Bar() as progress:
        report = run(
            store,
            only.days(store, "raw_files"),
            ledger=named_ledger(store, ledger),
            progress=progress,
        )
    show(report.to_dict(), as_json, "verify")
    if report.problems:
        raise ComposerError(f"verify found {len(report.problems)} problems")


@app.command
def reparse(
    *,
    only: DayFilter = DayFilter(),  # noqa: B008  frozen
    ledger: LedgerOption = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write sessions, states and replies again from the raw bytes; costs nothing.

    For a damaged day, a new version of the parser, or changed redaction rules. Run `pairs` after
    it: what later stages made stays until they run.
    """
    from composer_pipeline.care import redact_again

    store = open_lake(lake, whole=True)
    with Bar() as progress:
        report, replies = redact_again(
            store,
            only.days(store, "raw_files"),
            ledger=named_ledger(store, ledger),
            progress=progress,
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

    named = partial(run, session=session, project=project, text=text, dry_run=dry_run)
    _take_out(named, lake, ledger, as_json, "forget")


@app.command
def withdraw(
    *,
    session: str = "",
    repository: str = "",
    text: str = "",
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    ledger: LedgerOption = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Take sessions back for good: as `forget`, and no dataset and no publication has them again.

    A tombstone stays in the lake, made of hashes. The commands that it prints bring the withdrawal
    to the Hub: a publication after the tombstone has no row of the sessions, and removes the older
    ones from the repository's history. With none named, an interrupted one is finished.

    Args:
        session: one session, by its id or the beginning of it; by its whole id also where the lake
            holds nothing of it any more.
        repository: every session of a repository, also later ones: a glob of its path, or of its
            last folder.
        text: every session in which this text stands.
        dry_run: say what would go; remove nothing.
    """
    from composer_pipeline.care import withdraw as run

    named = partial(run, session=session, repository=repository, text=text, dry_run=dry_run)
    _take_out(named, lake, ledger, as_json, "withdraw")


def _take_out(
    run: Callable[..., Report], lake: str, ledger: str, as_json: bool, title: str
) -> None:
    """Take sessions out of a lake and its books, and show what that did."""
    store = open_lake(lake, whole=True)
    with Bar() as progress:
        report = run(store, ledger=named_ledger(store, ledger), progress=progress)
    show(report.to_dict(), as_json, title)
