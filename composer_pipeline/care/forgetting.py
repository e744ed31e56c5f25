"""Sessions out of one kind of place: the archive, a day, the tables, the exports.

Belongs here: removing; each function may be run again after a kill. Does not belong here: their
order (``care.forget``) and the books (``replay.ledger``).
"""

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from html import unescape
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from composer_pipeline.files import replace
from composer_pipeline.lake import TABLES, UNFINISHED, Lake, encode_parquet
from composer_pipeline.lake.notes import exports, prune_exports
from composer_pipeline.traces.archive import blob_name, forget_files
from composer_pipeline.traces.one_writer import one_writer


def from_archive(
    lake: Lake, sessions: set[str], pieces: Iterable[str], files: Iterable[str]
) -> None:
    """Remove the manifest's rows of sessions, and the archived pieces that were theirs alone."""
    with one_writer(lake, None):
        _from_table(lake, "raw_files", {"session_id": sessions})
        for piece in pieces:
            lake.remove(blob_name(piece))
        forget_files(lake, files)


def drop_days(lake: Lake, days: Sequence[str]) -> None:
    """Remove the traces of days that have no archived file any more."""
    with one_writer(lake, None):
        for day in days:
            for table in Lake.FROM_ARCHIVE:
                lake.delete(table, day=day)


def from_tables(lake: Lake, sessions: set[str], states: set[str], pairs: set[str]) -> None:
    """Remove the rows of sessions, states and pairs from every table behind the traces."""
    gone = {"session_id": sessions, "state_id": states, "pair_id": pairs, "near": pairs}
    for name, spec in TABLES.items():
        mine = {column: ids for column, ids in gone.items() if column in spec.schema.names}
        if mine and name not in (*Lake.FROM_ARCHIVE, "raw_files"):
            _from_table(lake, name, mine)


def _from_table(lake: Lake, name: str, gone: dict[str, set[str]]) -> None:
    """Remove the rows that have one of the values from each partition of a table."""
    schema = TABLES[name].schema
    for part in lake.partitions(name):
        keys = {key: value for key, value in part.items() if key != "day"}
        days = [part["day"]] if "day" in part else None
        table = lake.read(name, days=days, **keys)
        if (kept := _without(table, gone)) is table:
            continue
        if len(kept) or "day" not in part:
            lake.write(name, kept.select(schema.names).cast(schema), **part)
        else:
            lake.delete(name, **part)


def _without(table: pa.Table, gone: dict[str, set[str]]) -> pa.Table:
    """Return the table without rows that have one of the values; itself where none has."""
    keep = None
    for column, values in gone.items():
        here = pc.is_in(table[column], value_set=pa.array(sorted(values), pa.string()))
        keep = here if keep is None else pc.or_(keep, here)
    assert keep is not None
    return table.filter(pc.invert(keep)) if pc.any(keep).as_py() else table


def remove_leftovers(lake: Lake) -> None:
    """Remove what a killed writer, or a killed build of the dataset, has left."""
    if lake.local:
        for path in Path(lake.root).rglob(".*.tmp"):
            path.unlink(missing_ok=True)
        shutil.rmtree(Path(lake.root, UNFINISHED), ignore_errors=True)


def from_exports(lake: Lake, sessions: set[str], pairs: set[str]) -> list[str]:
    """Remove the rows of sessions from exported files; return the files that had some.

    A file that has none of the columns any more, or is no Parquet, is somebody else's: it stays.
    """
    changed = []
    for path in exports(lake):
        before = path.read_bytes()
        if _is_session(before, sessions) or _shows(before, sessions):
            path.unlink()
            changed.append(str(path))
            continue
        after = (
            _lines(before, sessions | pairs)
            if path.suffix != ".parquet"
            else _rows(path, sessions, pairs)
        )
        if after is None or after == before:
            continue
        if after:
            replace(path, after, str(path))
        else:
            path.unlink()
        changed.append(str(path))
    prune_exports(lake)
    return changed


def _shows(data: bytes, sessions: set[str]) -> bool:
    """Return whether a file is a report (``report``) that shows a pair of one of these sessions."""
    if not data.startswith(b"<!doctype html>"):
        return False
    shown = re.findall(r'data-session="([^"]*)"', data.decode("utf-8", "replace"))
    return not sessions.isdisjoint(map(unescape, shown))


def _is_session(data: bytes, sessions: set[str]) -> bool:
    """Return whether a file is one of these sessions as ``interchange`` writes it."""
    try:
        head = json.loads(data.partition(b"\n")[0])
    except ValueError:
        return False
    if not isinstance(head, dict):
        return False
    if head.get("type") == "session":
        head = head.get("source") or {}
    elif not str(head.get("schema_version", "")).startswith("ATIF"):
        return False
    return head.get("session_id") in sessions


def _rows(path: Path, sessions: set[str], pairs: set[str]) -> bytes | None:
    """Return a Parquet file without the rows; nothing where all go, ``None`` where none does."""
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError):
        return None
    gone = {"session_id": sessions, "pair_id": pairs}
    columns = {name: ids for name, ids in gone.items() if name in table.schema.names}
    if not columns or (kept := _without(table, columns)) is table:
        return None
    return encode_parquet(kept) if len(kept) else b""


def _lines(data: bytes, ids: set[str]) -> bytes:
    """Return JSON lines without those that name a session or a pair; other lines stay."""
    marks = [json.dumps(name).encode() for name in ids]
    lines = data.splitlines(keepends=True)
    return b"".join(line for line in lines if not any(mark in line for mark in marks))
