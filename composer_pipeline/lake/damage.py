"""Files of a lake that cannot be read as they should.

Belongs here: the error that names one, and the cheap look that finds a file cut short. Does not
belong here: mending (``traces.reparse``).
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from composer_pipeline.errors import InputError

_PARTITION = re.compile(r"(?P<table>\w+)(?:/\w+=[^/]*?)??(?:/day=(?P<day>[^/]+))?/part\.parquet")
#: How a Parquet file begins and ends.
MAGIC = b"PAR1"
#: The tables that a reparse writes again from the archive.
FROM_ARCHIVE = ("messages", "chains", "states", "sessions")


class DamagedFile(InputError):
    """A file of the lake is damaged; the message names it and what writes it again."""


def remedy(table: str, day: str) -> str:
    """Return what a person does about a damaged partition of a table."""
    if table in FROM_ARCHIVE:
        return f"run composer-pipeline reparse --day {day}"
    stage = {
        "replies": "replay",
        "toolsets": "replay",
        "hints": "pairs",
        "votes": "pairs",
        "pairs": "pairs",
        "normalized_pairs": "normalize",
        "drops": "normalize",
        "preference_statistics": "statistics",
        "near_duplicates": "statistics",
    }.get(table, "dataset" if table.startswith("dataset_") else None)
    if stage is None:
        return "put it back from a backup, or delete it and run composer-pipeline ingest"
    return f"delete it and run composer-pipeline {stage}"


@contextmanager
def reading(url: str, path: str, table: str, day: str) -> Iterator[None]:
    """Name the file that cannot be read.

    Args:
        url: of the lake.
        path: of the file, below the lake's root.
        table: whose file it is.
        day: of the partition, where it has one.

    Raises:
        DamagedFile: it is cut short or its bytes are not what was written.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        why = str(error).partition("\n")[0][:160]
        raise DamagedFile(f"lake {url}: {path} is damaged ({why}); {remedy(table, day)}") from error


@contextmanager
def querying(url: str) -> Iterator[None]:
    """Name the file that an SQL query could not read.

    Raises:
        DamagedFile: as :func:`reading`.
    """
    import duckdb  # 20 MB that a parse does not need

    try:
        yield
    except duckdb.Error as error:
        found = _PARTITION.search(str(error))
        if not found:
            raise
        day = found["day"] or ""
        raise DamagedFile(
            f"lake {url}: {found[0]} is damaged; {remedy(found['table'], day)}"
        ) from error


def cut_short(path: Path) -> bool:
    """Say whether a file that is there does not end as a Parquet file does."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    # Thousands of files are looked at when a lake is opened: no buffers, and no file objects.
    try:
        size = os.fstat(file).st_size
        if size < 3 * len(MAGIC):
            return True
        return os.pread(file, len(MAGIC), size - len(MAGIC)) != MAGIC
    finally:
        os.close(file)
