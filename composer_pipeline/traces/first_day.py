"""The first day of which there are sessions: where days begin.

Belongs here: a quick look at a lake and at session files, for whoever has to know before any
stage runs. Does not belong here: the day of a session (``traces.archive.heads``), which reads
records; the first date in a file is never later than that.
"""

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from composer_pipeline.errors import StorageError
from composer_pipeline.lake.place import bucket_errors
from composer_pipeline.lake.store import Lake

#: Claude Code did not exist before; a session with an earlier date has a wrong clock.
EARLIEST = "2025-02-24"
#: Bytes of a file that are looked at: its first records.
_HEAD = 1 << 16
_STAMP = re.compile(rb'"timestamp"\s*:\s*"(\d{4}-\d\d-\d\d)T')


def first_day(lake_url: str, paths: Iterable[Path]) -> str:
    """Return the first day that a lake holds or that session files begin on, ``YYYY-MM-DD``.

    :data:`EARLIEST` where there is neither, and where the lake cannot be asked now: days that
    are too many are empty, and days that are too few would hide sessions.

    Args:
        lake_url: folder or URL of the lake.
        paths: files and folders of sessions; what is missing has none.
    """
    try:
        found = [*Lake(lake_url).days("raw_files"), *_days_of(paths)]
    except (OSError, StorageError):
        return EARLIEST
    except bucket_errors():
        return EARLIEST
    today = str(datetime.now(UTC).date())
    return min((day for day in found if EARLIEST <= day <= today), default=EARLIEST)


def _days_of(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        for file in path.rglob("*.jsonl*") if path.is_dir() else [path]:
            if (found := _STAMP.search(_head(file))) is not None:
                yield found[1].decode()
            elif file.is_file():
                yield str(datetime.fromtimestamp(file.stat().st_mtime, UTC).date())


def _head(file: Path) -> bytes:
    """Return the first bytes of a file; nothing where it cannot be read."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            return stream.read(_HEAD)
    except (OSError, EOFError, zlib.error):
        return b""
