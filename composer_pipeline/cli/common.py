"""What all commands share: the app, common options, progress and printing."""

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import rich.progress
from cyclopts import App, Parameter
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table as _RichTable
from rich.text import Text

from composer_pipeline import __version__
from composer_pipeline.errors import InputError
from composer_pipeline.lake.place import check_day
from composer_pipeline.lake.store import Lake
from composer_pipeline.money import to_pico, to_usd
from composer_pipeline.reports import Progress
from composer_pipeline.settings import Settings

if TYPE_CHECKING:
    from composer_pipeline.teachers.report import Snapshot


#: Cells up to this length are never broken, and longer ones only between or within longer words.
SHORT = 12
_STYLES = {"good": "green", "current": "green", "look": "yellow", "stale": "yellow",
           "refused": "bold red", "not measured": "dim", "not yet": "dim"}  # fmt: skip


def coloured(word: str, rest: str = "") -> Text:
    """Return a verdict or a state in its colour, and text after it without."""
    return Text.assemble((word, _STYLES.get(word, "")), rest)


class Table(_RichTable):
    """A ``rich`` table that cuts nothing; strings, including title and headers, are not markup.

    Columns without room follow below, beside the first ``keys`` columns again.
    """

    def __init__(
        self, *headers: Any, title: str | Text | None = None, keys: int = 1, **options: Any
    ) -> None:
        self.keys = keys
        title = Text(title) if isinstance(title, str) else title
        super().__init__(*headers, title=title, **options)

    def add_column(self, header: Any = "", **options: Any) -> None:  # type: ignore[override]
        """Add a column; a string is not markup."""
        head = Text(header) if isinstance(header, str) else header
        super().add_column(head, **{"overflow": "fold"} | options)

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row; strings are not markup."""
        super().add_row(
            *(Text(cell) if isinstance(cell, str) else cell for cell in cells), **options
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table, in parts if it is too wide."""

        def measure(thing: RenderableType) -> Measurement:
            return Measurement.get(console, options.update(max_width=100_000), thing)

        width = options.max_width
        if self.expand or len(self.columns) < self.keys + 2 or measure(self).maximum <= width:
            yield from super().__rich_console__(console, options)
            return
        least, most = [], []
        for column in self.columns:
            found = [measure(cell) for cell in column.cells]
            words = [m.maximum if m.maximum <= SHORT else min(m.minimum, SHORT) for m in found]
            least.append(max(1, measure(column.header).minimum, *words))
            most.append(max(0, measure(column.header).maximum, *(m.maximum for m in found)))
        left, title = list(range(self.keys, len(least))), self.title
        while left:
            widths = {at: least[at] for at in (*range(self.keys), left.pop(0))}
            while left:
                more = widths | {left[0]: least[left[0]]}
                if measure(self._part(more)).maximum > width:
                    break
                widths = more
                left.pop(0)
            room = width - measure(self._part(widths)).maximum
            # Columns that need little get it, the others share what is left.
            for done, at in enumerate(sorted(widths, key=lambda at: most[at] - least[at])):
                given = max(0, min(most[at] - least[at], room // (len(widths) - done)))
                widths[at] += given
                room -= given
            yield self._part(widths, title)
            title = None

    def _part(self, widths: Mapping[int, int], title: Any = None) -> "Table":
        """Return some columns in given widths."""
        part = copy(self)
        part.columns, part.rows, part.title = [], [], title
        columns = [self.columns[at] for at in widths]
        for column, width in zip(columns, widths.values(), strict=True):
            part.add_column(column.header, justify=column.justify, width=width)
        for row, *cells in zip(self.rows, *(column.cells for column in columns), strict=True):
            part.add_row(*cells, style=row.style, end_section=row.end_section)
        return part


#: Seconds between two lines of progress without a terminal.
LINE_S = 10.0


class LiveReplay:
    """Shows snapshots in place on a terminal; elsewhere a line every ten seconds."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._console = console
        self._terminal = console.is_terminal
        self._printed_s = 0.0

    def __enter__(self) -> "LiveReplay":
        if self._terminal:
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._terminal:
            self._live.__exit__(kind, error, trace)

    def __call__(self, snapshot: "Snapshot") -> None:
        """Show a snapshot."""
        if self._terminal:
            self._live.update(table(snapshot), refresh=True)
        elif snapshot.elapsed_s - self._printed_s >= LINE_S:
            self._printed_s = snapshot.elapsed_s
            self._console.print(snapshot.line(), markup=False, highlight=False, soft_wrap=True)


def table(snapshot: "Snapshot") -> Table:
    """Return a snapshot as a table: money in the title, one row per teacher."""
    rows = Table(
        title=(
            f"{snapshot.phase}, {snapshot.elapsed_s:.0f} s: ${snapshot.settled_usd:.4f} settled,"
            f" ${snapshot.reserved_usd:.4f} reserved of ${snapshot.ceiling_usd:.2f}"
        ),
        title_justify="left",
    )
    for name in ("teacher", "done", "cached", "unknown", "in flight", "p50", "p95", "cache read"):
        rows.add_column(name, justify="left" if name == "teacher" else "right")
    for name, teacher in snapshot.by_teacher.items():
        state = "" if teacher.state == "ok" else f" ({teacher.state})"
        rows.add_row(
            name + state,
            f"{teacher.done}/{teacher.total}",
            str(teacher.cached),
            str(teacher.unknown),
            f"{teacher.in_flight}/{teacher.window}",
            _ms(teacher.latency_p50_ms),
            _ms(teacher.latency_p95_ms),
            "" if teacher.cache_read_share is None else f"{teacher.cache_read_share:.0%}",
        )
    return rows


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} ms"


NOTHING = "-"


def readable(value: Any, name: str = "") -> str:
    """Return a value as text, with one line per entry of a mapping or list."""
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {_inline(item, key)}" for key, item in value.items()) or NOTHING
    if isinstance(value, list | tuple):
        return "\n".join(_inline(item, name) for item in value) or NOTHING
    return _inline(value, name)


def _inline(value: Any, name: str) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_inline(item, key)}" for key, item in value.items()) or NOTHING
    if isinstance(value, list | tuple):
        return ", ".join(_inline(item, name) for item in value) or NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name.endswith("picodollars"):
        return f"{to_usd(value)} USD"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return NOTHING if value in (None, "") else str(value)


if "COLUMNS" in os.environ:
    # On a dumb terminal rich reads the width only together with the height.
    os.environ.setdefault("LINES", "24")


def _default(value: Any) -> str | None:
    """Return a default as help shows it; ``None`` for one that only means "not given"."""
    return None if value in ("", (), 0, False, None) else str(value)


app = App(
    name="composer-pipeline",
    version=__version__,
    default_parameter=Parameter(show_default=_default, negative=""),
    help="Sessions of coding agents in, preference datasets and trained models out.",
)

LakeOption = Annotated[str, Parameter(name="--lake", help="Folder or fsspec URL (COMPOSER_LAKE).")]
LedgerOption = Annotated[
    str, Parameter(name="--ledger", help="Path or postgresql:// URL (COMPOSER_LEDGER).")
]
JsonOption = Annotated[bool, Parameter(name="--json", negative="", help="One JSON object.")]
err = Console(stderr=True)


def open_lake(url: str, *, new: bool = False, whole: bool = False) -> Lake:
    """Return the lake of ``--lake`` or else of the settings."""
    lake = Lake(url or Settings.from_env().lake)
    if not lake.is_there() and not new:
        raise InputError(
            f"{lake.url} is not a lake; set one with --lake or COMPOSER_LAKE, or create one with"
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
    """Return the ledger's path or URL."""
    from composer_pipeline.teachers.ledger.ledger import ledger_target

    named = ledger or Settings.from_env().ledger
    return ledger_target(open_lake(lake, new=bool(named)), named)


def named_ledger(lake: Lake, ledger: str) -> str | Path | None:
    """Return the ledger's path or URL; ``None`` for a bucket without one."""
    from composer_pipeline.teachers.ledger.ledger import ledger_target

    named = ledger or Settings.from_env().ledger
    return ledger_target(lake, named) if named or lake.local else None


def at_least(least: int, value: int, option: str) -> int:
    """Return an option's value, which must be at least ``least``."""
    if value < least:
        raise InputError(f"{option} must be at least {least}, got {value}")
    return value


def check_port(port: int) -> None:
    """Refuse what is no TCP port."""
    if at_least(0, port, "--port") > 65535:
        raise InputError(f"--port must be at most 65535, got {port}")


def show(report: Mapping[str, Any], as_json: bool, title: str) -> None:
    """Print a report as one JSON object, or as a two-column table without the days."""
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
    """A progress bar with the remaining time on a terminal; elsewhere a line every ten seconds."""

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
        began = printed = self._clock()

        def report(label: str, done: int, total: int) -> None:
            nonlocal printed
            if label not in self.tasks:
                self.tasks[label] = self.bar.add_task(label, total=total or None)
            self.bar.update(self.tasks[label], completed=done, total=total or None)
            now = self._clock()
            if not err.is_terminal and now - printed >= LINE_S:
                printed = now
                of = f" of {total:,}" if total else ""
                line = f"{label}: {done:,}{of}, {now - began:.0f} s"
                err.print(line, markup=False, highlight=False)

        return report

    def __exit__(self, *exc: object) -> None:
        self.bar.__exit__(None, None, None)


def usd(text: str, option: str) -> Decimal:
    """Parse an amount above 0."""
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


@Parameter(name="*")
@dataclass(frozen=True)
class DayFilter:
    """Days, by date or by range."""

    day: Annotated[Sequence[str], Parameter(help="Only this day (YYYY-MM-DD); repeatable.")] = ()
    since: Annotated[str, Parameter(help="Only this day and later ones.")] = ""
    until: Annotated[str, Parameter(help="Only this day and earlier ones.")] = ""

    def typed(self) -> list[str]:
        """Return the options as they are typed on a command line."""
        values = [(name, getattr(self, name)) for name in ("since", "until", "session", "project")
                  if getattr(self, name, "")]  # fmt: skip
        values += [("day", day) for day in self.day]
        return [f"--{name} {shlex.quote(value)}" for name, value in values]

    def days(self, lake: Lake, table: str = "states") -> list[str] | None:
        """Return the selected days; ``None`` for all."""
        for text in self.day:
            check_day(text, "--day")
        for option, text in (("--since", self.since), ("--until", self.until)):
            if text:
                check_day(text, option)
        if not (self.day or self.since or self.until):
            return None
        have = lake.days(table)
        last = self.until or "9999-12-31"
        found = {day for day in self.day or have if self.since <= day <= last}
        if found.isdisjoint(have):
            words = [", ".join(self.day)] if self.day else []
            words += [f"since {self.since}"] if self.since else []
            words += [f"until {self.until}"] if self.until else []
            what = _TABLE_WORDS.get(table, table)
            raise InputError(f"lake {lake.url} has no {what} of {' '.join(words)}")
        return sorted(found)


_TABLE_WORDS = {"raw_files": "archived session"}


@Parameter(name="*")
@dataclass(frozen=True)
class SessionFilter(DayFilter):
    """Days, and sessions by project or by a prefix of their id."""

    session: Annotated[str, Parameter(help="Only this session; a prefix of its id is enough.")] = ""
    project: Annotated[
        str, Parameter(help="Only this project: a glob of its path or of its last folder.")
    ] = ""

    def sessions(self, lake: Lake) -> set[str] | None:
        """Return the selected sessions, of any day; ``None`` for all."""
        from composer_pipeline.maintenance.forget import of_project

        if not (self.session or self.project):
            return None
        rows = lake.select("SELECT DISTINCT session_id, project FROM states")
        found = {
            row["session_id"]
            for row in rows
            if row["session_id"].startswith(self.session)
            and (not self.project or of_project(row["project"] or "", self.project))
        }
        if not found:
            words = [f"session {self.session!r}"] if self.session else []
            words += [f"project {self.project!r}"] if self.project else []
            raise InputError(f"lake {lake.url} has no states of {' of '.join(words)}")
        return found
