"""The archive of some days to ``sessions``, ``messages``, ``chains`` and ``states``.

Belongs here: the stage, file after file. Does not belong here: one file
(``traces.parse.files``) and a day's partitions (``traces.parse.tables``).

A day's partitions are a function of the manifest's rows of that day and of the parser:
parsing again writes the same bytes.
"""

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.redaction import json_redactor
from composer_pipeline.reports import Progress, Report
from composer_pipeline.traces.graph import Redactor
from composer_pipeline.traces.one_writer import one_writer
from composer_pipeline.traces.parse.files import OnFile, Row, parse_file
from composer_pipeline.traces.parse.tables import row_order, write_day
from composer_pipeline.traces.states import Extracted, MessageStore, Rows

#: Objects that the garbage collector tracks, before it looks for cycles among the new ones.
_COLLECT_AFTER = 200_000


@dataclass(slots=True)
class ParseReport(Report):
    """What parsing wrote: numbers for each day, and redactions by kind."""

    days: list[str] = field(default_factory=list)
    by_day: dict[str, dict[str, int]] = field(default_factory=dict)
    redactions: Counter[str] = field(default_factory=Counter)
    redactions_by_day: dict[str, dict[str, int]] = field(default_factory=dict)

    def day(self, day: str) -> dict[str, int]:
        """Return the numbers of one day: files, sessions, states, messages, and more."""
        return dict(self.by_day.get(day, {}))

    @property
    def states(self) -> int:
        """States written, over all days."""
        return sum(counts["states"] for counts in self.by_day.values())


def parse_days(
    lake: Lake,
    days: Iterable[str] | None = None,
    *,
    progress: Progress | None = None,
    on_file: OnFile | None = None,
) -> ParseReport:
    """Replace the parsed partitions of some days from the archive.

    Files are read one at a time; of each only its rows and the day's distinct messages
    stay in memory. A day without archived files is left alone.

    Args:
        lake: the lake.
        days: days to parse; all harvested days when ``None``.
        progress: called with ``("parse", done, total)`` after each file.
        on_file: called with the SHA-256 of each file and what it holds.

    Raises:
        InputError: a day is not written ``YYYY-MM-DD``, or the archive lacks a blob.
    """
    wanted = None if days is None else sorted({_checked(day) for day in days})
    if wanted == []:
        return ParseReport()
    with one_writer(lake, progress):
        return _parse_days(lake, wanted, progress, on_file)


def _parse_days(
    lake: Lake, days: list[str] | None, progress: Progress | None, on_file: OnFile | None
) -> ParseReport:
    have = lake.days("raw_files")
    wanted = have if days is None else days
    manifests: dict[str, list[Row]] = {day: [] for day in wanted if day in have}
    for row in lake.rows("raw_files", days=manifests):
        manifests[row["day"]].append(row)
    total = sum(map(len, manifests.values()))
    report = ParseReport()
    redactor = Redactor(json_redactor())
    agent_calls: dict[str, dict[str, str]] = {}
    done = 0

    def parsed(row: Row, store: MessageStore, states: Rows) -> list[Extracted]:
        nonlocal done
        found = parse_file(lake, row, store, states, redactor, on_file, agent_calls)
        done += 1
        if progress is not None:
            progress("parse", done, total)
        return found

    with _rare_collections():
        for day, rows in manifests.items():
            agent_calls.clear()
            writer = lake.writer("messages", day=day)
            try:
                store = MessageStore(writer.write)
                states = Rows()
                files: list[Extracted] = []
                for row in sorted(rows, key=row_order):
                    files += parsed(row, store, states)
                store.flush()
                # A state comes after its chain and its messages.
                writer.commit()
            finally:
                writer.discard()
            report.days.append(day)
            report.by_day[day] = write_day(lake, day, files, store, states)
            report.redactions.update(store.counts)
            report.redactions_by_day[day] = dict(store.counts)
    return report


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Let the garbage collector run rarely.

    A graph is freed by its reference counts. Looking for cycles among its objects again
    and again, while a file is read, takes one twentieth of the time and finds none.
    """
    before = gc.get_threshold()
    gc.set_threshold(_COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _checked(day: str) -> str:
    try:
        datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError as error:
        raise InputError(f"day {day!r} is not written YYYY-MM-DD") from error
    return day
