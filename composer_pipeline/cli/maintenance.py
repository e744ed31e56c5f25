"""Commands that maintain a lake: verify, reparse, forget, withdraw, doctor."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from composer_pipeline.cli.common import (
    Bar,
    DayFilter,
    JsonOption,
    LakeOption,
    LedgerOption,
    Table,
    app,
    named_ledger,
    open_lake,
    show,
)
from composer_pipeline.errors import ComposerError
from composer_pipeline.files import close_to_others, writing
from composer_pipeline.reports import Report
from composer_pipeline.settings import Settings


@app.command
def verify(
    *,
    only: DayFilter = DayFilter(),  # noqa: B008  frozen
    ledger: LedgerOption = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Verify the whole lake: hashes, counts, redaction, and the ledger against the replies.

    Changes nothing; each problem is reported with its remedy. What publishing would refuse in a
    table or an export is listed by place, session and kind.
    """
    from composer_pipeline.maintenance.verify import verify as run

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
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    ledger: LedgerOption = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Rewrite sessions, states and replies from the raw bytes; costs nothing.

    For a damaged day, a new version of the parser, or changed redaction rules. Run `pairs`
    afterwards: the output of later stages stays until they run. Where other rules redacted a day,
    the report names the exports and releases that hold its sessions as they were.

    Args:
        dry_run: report how many messages would change, by day and kind; write nothing.
    """
    from composer_pipeline.maintenance.forget import reparse as run

    store = open_lake(lake, whole=True)
    with Bar() as progress:
        report = run(
            store,
            days=only.days(store, "raw_files"),
            dry_run=dry_run,
            ledger=named_ledger(store, ledger),
            progress=progress,
        )
    show(report.to_dict(), as_json, "reparse")
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
    """Delete sessions permanently: archive, tables, replies in the ledger, exports.

    Sessions that repeat their records are deleted with them, and no ingest accepts them again.
    Amounts stay in the ledger. Without a selection, an interrupted `forget` is finished. Trained
    models, published datasets and backups are not changed.

    Args:
        session: one session, by its id or a prefix of it.
        project: every session of a project: a glob of its path, or of its last folder.
        text: every session that contains this text.
        dry_run: report what would be deleted; delete nothing.
    """
    from composer_pipeline.maintenance.forget import forget as run

    selected = partial(run, session=session, project=project, text=text, dry_run=dry_run)
    _remove(selected, lake, ledger, as_json, "forget")


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
    """Withdraw sessions permanently: as `forget`, and from all later datasets and publications.

    A tombstone of hashes stays in the lake. The printed commands bring the withdrawal to the Hub: a
    publication after the tombstone has no row of the sessions, and removes older rows from the
    repository's history. Without a selection, an interrupted withdrawal is finished.

    Args:
        session: one session, by its id or a prefix of it; by its full id even if the lake no longer
            holds anything of it.
        repository: every session of a repository, later ones included: a glob of its path, or of
            its last folder.
        text: every session that contains this text.
        dry_run: report what would be deleted; delete nothing.
    """
    from composer_pipeline.maintenance.forget import withdraw as run

    selected = partial(run, session=session, repository=repository, text=text, dry_run=dry_run)
    _remove(selected, lake, ledger, as_json, "withdraw")


def _remove(run: Callable[..., Report], lake: str, ledger: str, as_json: bool, title: str) -> None:
    store = open_lake(lake, whole=True)
    with Bar() as progress:
        report = run(store, ledger=named_ledger(store, ledger), progress=progress)
    show(report.to_dict(), as_json, title)


@app.command
def doctor(
    *,
    fix: Annotated[bool, Parameter(negative="")] = False,
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Check the environment, the keys (present or not), the recipes and the lake.

    Args:
        fix: make the lake's files and folders accessible to their owner only.
    """
    from composer_pipeline.maintenance.doctor import run_checks

    store = open_lake(lake, new=True)
    found: dict[str, Any] = {}
    if fix and store.local:
        with writing(f"lake {store.url}"):
            found["closed"] = close_to_others(Path(store.root))
    checks = run_checks(store, Settings.from_env())
    if as_json:
        show({"checks": checks, **found}, True, "doctor")
    else:
        table = Table("check", "status", "detail")
        for check in checks:
            table.add_row(check["name"], check["status"], check["detail"])
        Console().print(table)
        if fix:
            Console().print(f"closed to others: {found.get('closed', 0)} files and folders")
    if any(check["status"] == "fail" for check in checks):
        raise ComposerError("doctor found a failing check")
