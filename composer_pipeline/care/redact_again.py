"""Changed redaction rules for all that is stored: the traces, and what teachers said.

Belongs here: writing both again from the bytes that they come from. Does not belong here: one of
them (``traces.reparse``, ``replay.engine``).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from composer_pipeline.lake import Lake
from composer_pipeline.redaction import redact_text
from composer_pipeline.replay.engine import write_replies
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
        ledger: where the replies' bytes are; replies stay as they are without one.
        progress: as :func:`composer_pipeline.traces.reparse.reparse`.

    Raises:
        InputError: as :func:`composer_pipeline.traces.reparse.reparse`.
    """
    wanted = None if days is None else list(days)
    report = reparse(lake, wanted, progress=progress)
    opened = existing_ledger(ledger) if ledger else None
    if opened is None:
        return report, 0
    with opened:
        return report, sum(
            _replies_of(lake, opened, part["teacher"], part["day"])
            for part in lake.partitions("replies")
            if wanted is None or part["day"] in wanted
        )


def _replies_of(lake: Lake, ledger: Ledger, teacher: str, day: str) -> int:
    """Write a partition again; rows that no ledger has are kept, their texts redacted."""
    before = lake.rows("replies", teacher=teacher, days=[day])
    known = {row["key"] for row in ledger.rows(teacher, day)}
    own = [_redacted(row) for row in before if row["request_hash"] not in known]
    controls = {teacher: bool(before[0]["control"])} if before else None
    figures = write_replies(lake, ledger, [teacher], [day], own, controls)
    return figures.get(day, {}).get(teacher, {}).get("rows", 0)


def _redacted(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "detail": redact_text(row["detail"] or "")[0]}
