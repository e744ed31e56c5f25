"""The head of a file: its session and its day.

Belongs here: reading until both are known, the rule for days. Does not belong here:
finding files (``traces.archive.discover``).

The day of a session is the UTC date of its first timestamped record. Files of one
session (also its subagents, which carry the parent's session id) share the earliest
day among them; a day that the lake already knows wins over everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from composer_pipeline.errors import InputError
from composer_pipeline.traces.archive.discover import SourceFile
from composer_pipeline.traces.reading import KNOWN_TYPES, LineStats, parse_time, read_any

#: Records after the first with session and time that are read for a working directory.
MOST_WITHOUT_FOLDER = 20


@dataclass(frozen=True, slots=True)
class Head:
    """What the first records of a file say; ``session_id`` and ``cwd`` may be empty."""

    is_session: bool
    session_id: str
    day: str | None
    cwd: str = ""


def read_head(source: SourceFile) -> Head:
    """Read a file until its session and its first timestamp are known.

    Raises:
        InputError: a file that was named explicitly cannot be read.
    """
    session_id, moment, is_session, cwd, after = "", None, False, "", 0
    try:
        with source.open() as lines:
            for record in read_any(lines, LineStats()):
                known = record.type in KNOWN_TYPES or bool(record.session_id or record.uuid)
                is_session = is_session or (record.type is not None and known)
                session_id = session_id or record.session_id or ""
                moment = moment or parse_time(record.timestamp)
                cwd = cwd or record.cwd or ""
                if is_session and session_id and moment:
                    after += 1
                    if cwd or after > MOST_WITHOUT_FOLDER:
                        break
    except OSError as error:
        if source.explicit:
            raise InputError(f"{source.file} cannot be read: {error.strerror}") from error
        return Head(False, "", None)
    return Head(is_session, session_id, moment.date().isoformat() if moment else None, cwd)


def fallback_day(source: SourceFile) -> str:
    """Return the day of a file without any timestamp: when it was last written."""
    return datetime.fromtimestamp(source.mtime_ns / 1e9, UTC).date().isoformat()


def assign_days(sessions: Sequence[tuple[str, str]], known: dict[str, str]) -> dict[str, str]:
    """Return session id to day.

    Args:
        sessions: ``(session id, day of the file's first timestamp)`` of each file.
        known: days that the lake already has.
    """
    days = dict(known)
    for session_id, day in sessions:
        if session_id not in known:
            days[session_id] = min(day, days.get(session_id, day))
    return days
