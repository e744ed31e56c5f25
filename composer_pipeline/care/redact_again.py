"""Changed redaction rules for all that is stored: the traces, and what teachers said.

Belongs here: writing both again from the bytes that they come from. Does not belong here: one of
them (``traces.reparse``, ``replay.engine``).
"""

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

from composer_pipeline.lake import Lake
from composer_pipeline.replay.engine import redacted_row, write_replies
from composer_pipeline.replay.ledger import Ledger, existing_ledger
from composer_pipeline.reports import Progress
from composer_pipeline.traces.reparse import ReparseReport, reparse


def redact_again(
    lake: Lake,
    days: Iterable[str] | None = None,
    *,
    ledger: str | Path | None = None,
    progress: Progress | None = None,
) -> tuple[ReparseReport, int]:
    """Write the traces and the replies of days again; return the report and the reply rows.

    What later stages made of them stays until ``pairs`` is run.

    Args:
        lake: the lake.
        days: all days of the archive when ``None``.
        ledger: where the replies' bytes are; rows that it does not have are redacted as they stand.
        progress: as :func:`composer_pipeline.traces.reparse.reparse`.

    Raises:
        InputError: as :func:`composer_pipeline.traces.reparse.reparse`.
    """
    wanted = None if days is None else list(days)
    report = reparse(lake, wanted, progress=progress)
    opened = existing_ledger(ledger) if ledger else None
    with opened or nullcontext():
        return report, sum(
            _replies_of(lake, opened, part["teacher"], part["day"])
            for part in lake.partitions("replies")
            if wanted is None or part["day"] in wanted
        )


def _replies_of(lake: Lake, ledger: Ledger | None, teacher: str, day: str) -> int:
    """Write a partition again, and return its rows."""
    before = lake.rows("replies", teacher=teacher, days=[day])
    known = {row["key"] for row in ledger.rows(teacher, day)} if ledger else set()
    own = [redacted_row(row) for row in before if row["request_hash"] not in known]
    if ledger is None:
        keys = ("teacher", "day")
        rows = [{name: value for name, value in row.items() if name not in keys} for row in own]
        lake.write("replies", rows, teacher=teacher, day=day)
        return len(rows)
    controls = {teacher: bool(before[0]["control"])} if before else None
    figures = write_replies(lake, ledger, [teacher], [day], own, controls)
    return figures.get(day, {}).get(teacher, {}).get("rows", 0)
