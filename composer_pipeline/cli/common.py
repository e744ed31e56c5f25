"""What every command shares: the app, its common options, and how a report is printed.

Does not belong here: a command.
"""

import json
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from composer_pipeline import __version__
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import Settings

app = App(
    name="composer-pipeline",
    version=__version__,
    help="Claude Code sessions in, preference datasets and trained models out.",
)

LakeOption = Annotated[str, Parameter(name="--lake", help="Folder or fsspec URL (COMPOSER_LAKE).")]
LedgerOption = Annotated[
    str, Parameter(name="--ledger", help="Path or postgresql:// URL (COMPOSER_LEDGER).")
]
JsonOption = Annotated[bool, Parameter(name="--json", negative="", help="One JSON object.")]
Report = Callable[[str, int, int], None]
err = Console(stderr=True)


def open_lake(url: str) -> Lake:
    """Return the lake of ``--lake``, else of the settings."""
    return Lake(url or Settings.from_env().lake)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: amounts and paths as text."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    return value


def show(report: Mapping[str, Any], as_json: bool, title: str) -> None:
    """Print a report as one JSON object, or as a table of two columns."""
    shown = plain(report)
    if as_json:
        sys.stdout.write(json.dumps(shown, ensure_ascii=False) + "\n")
        return
    table = Table(title=title, show_header=False, title_justify="left")
    for key, value in shown.items():
        text = (
            json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
        )
        table.add_row(key, text)
    Console().print(table)


class Bar:
    """A rich progress bar on a terminal; silent elsewhere."""

    def __enter__(self) -> Report:
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=err,
            disable=not err.is_terminal,
        )
        self.bar.__enter__()
        self.tasks: dict[str, Any] = {}

        def report(label: str, done: int, total: int) -> None:
            if label not in self.tasks:
                self.tasks[label] = self.bar.add_task(label, total=total or None)
            self.bar.update(self.tasks[label], completed=done, total=total or None)

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
    return value
