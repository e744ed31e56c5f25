"""What every command shares: the app, its common options, and how a report is printed.

Does not belong here: a command.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

import rich.progress
from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from composer_pipeline import __version__
from composer_pipeline.cli.views.progress import LINE_S
from composer_pipeline.cli.views.report import readable
from composer_pipeline.cli.views.table import Table
from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.money import to_pico
from composer_pipeline.reports import Progress
from composer_pipeline.settings import Settings

if "COLUMNS" in os.environ:
    # Of a dumb terminal rich takes the width only together with the height.
    os.environ.setdefault("LINES", "24")


def _default(value: Any) -> str | None:
    """Return a default as help shows it; nothing for what only means "not given"."""
    return None if value in ("", (), 0, False, None) else str(value)


app = App(
    name="composer-pipeline",
    version=__version__,
    default_parameter=Parameter(show_default=_default, negative=""),
    help="Claude Code sessions in, preference datasets and trained models out.",
)

LakeOption = Annotated[str, Parameter(name="--lake", help="Folder or fsspec URL (COMPOSER_LAKE).")]
LedgerOption = Annotated[
    str, Parameter(name="--ledger", help="Path or postgresql:// URL (COMPOSER_LEDGER).")
]
JsonOption = Annotated[bool, Parameter(name="--json", negative="", help="One JSON object.")]
err = Console(stderr=True)


def open_lake(url: str, *, new: bool = False, whole: bool = False) -> Lake:
    """Return the lake of ``--lake``, else of the settings.

    Args:
        url: what ``--lake`` says.
        new: whether the command may begin a lake, or does without one.
        whole: whether it sees damaged days too, to mend them.

    Raises:
        InputError: there is none, or its place cannot be reached.
    """
    lake = Lake(url or Settings.from_env().lake)
    if not lake.is_there() and not new:
        raise InputError(
            f"{lake.url} holds no lake; name one with --lake or COMPOSER_LAKE, or make one with"
            " composer-pipeline init or ingest"
        )
    if not (new or whole):
        for day, file in lake.leave_out_damaged().items():
            err.print(
                f"warning: day {day} is left out: {file} is damaged; run composer-pipeline"
                f" reparse --day {day}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
    return lake


def ledger_of(lake: str, ledger: str) -> str | Path:
    """Return where the ledger is: ``--ledger``, the settings, or in the lake, which must be there.

    Raises:
        InputError: as :func:`open_lake`.
    """
    from composer_pipeline.replay.ledger import ledger_target

    named = ledger or Settings.from_env().ledger
    return ledger_target(open_lake(lake, new=bool(named)), named)


def named_ledger(lake: Lake, ledger: str) -> str | Path | None:
    """Return where the ledger is; ``None`` for a bucket without one."""
    from composer_pipeline.replay.ledger import ledger_target

    named = ledger or Settings.from_env().ledger
    return ledger_target(lake, named) if named or lake.local else None


def at_least(least: int, value: int, option: str) -> int:
    """Return a number of an option.

    Raises:
        InputError: it is too small; the message names ``option``.
    """
    if value < least:
        raise InputError(f"{option} must be at least {least}, got {value}")
    return value


def show(report: Mapping[str, Any], as_json: bool, title: str) -> None:
    """Print a report as one JSON object, or as a table of two columns without the days."""
    if as_json:
        sys.stdout.write(json.dumps(report, ensure_ascii=False, default=str) + "\n")
        return
    table = Table(title=title, show_header=False, title_justify="left")
    for key, value in report.items():
        if key.startswith("by_day"):
            continue
        table.add_row(key, readable(value, key))
    Console().print(table)


class Bar:
    """A progress bar with the time left on a terminal; elsewhere a line each ten seconds.

    Args:
        clock: seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock

    def __enter__(self) -> Progress:
        self.bar = rich.progress.Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=err,
            disable=not err.is_terminal,
        )
        self.bar.__enter__()
        self.tasks: dict[str, Any] = {}
        began = told = self._clock()

        def report(label: str, done: int, total: int) -> None:
            nonlocal told
            if label not in self.tasks:
                self.tasks[label] = self.bar.add_task(label, total=total or None)
            self.bar.update(self.tasks[label], completed=done, total=total or None)
            now = self._clock()
            if not err.is_terminal and now - told >= LINE_S:
                told = now
                of = f" of {total:,}" if total else ""
                line = f"{label}: {done:,}{of}, {now - began:.0f} s"
                err.print(line, markup=False, highlight=False)

        return report

    def __exit__(self, *exc: object) -> None:
        self.bar.__exit__(None, None, None)


def usd(text: str, option: str) -> Decimal:
    """Read an amount above 0.

    Raises:
        InputError: it is none; the message names ``option``.
    """
    try:
        value = Decimal(text)
    except InvalidOperation as error:
        raise InputError(f"{option}: {text!r} is not an amount in USD") from error
    if not value.is_finite() or value <= 0:
        raise InputError(f"{option} must be above 0, got {text}")
    try:
        to_pico(value)
    except InputError as error:
        raise InputError(f"{option}: {error}") from error
    return value
