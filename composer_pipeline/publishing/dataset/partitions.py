"""Pieces put together as the tables' files, ordered by group of sessions.

Belongs here: the order of rows and where a row group ends. Does not belong here: which rows there
are and in which split (``dataset.build``).

A row group ends where a group of sessions ends. So where the rows of a session go, the bytes of
all other groups stay as they were, and an upload that knows them sends little again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from composer_pipeline.lake import TABLES, column
from composer_pipeline.publishing.dataset.pieces import Pieces

#: Decoded bytes of a row group, unless one row has more; the Hub's viewer refuses 300 MB.
ROW_GROUP_BYTES = 32 << 20

#: (table, day, rows) to the rows that stay.
Keep = Callable[[str, str, pa.Table], pa.Table]


def write_groups(
    write: Callable[[pa.Table], None],
    table: str,
    pieces: Pieces,
    members: Sequence[tuple[str, list[tuple[str, str]]]],
    keep: Keep,
    repository_of: Mapping[str, str],
) -> Iterator[pa.Table]:
    """Write the rows of groups one after the other, and yield each row group that was written.

    Args:
        write: appends a row group to the table's partition.
        table: its name.
        pieces: its rows.
        members: (name of a group, its days and sessions), in the order of the file.
        keep: filters the rows of a piece.
        repository_of: session to what its rows call its repository.
    """
    schema = TABLES[table].schema
    for name, keys in members:
        rows = (
            part
            for day, session in keys
            for piece in pieces.read(table, day, session)
            for part in _halves(_with(keep(table, day, piece), repository_of.get(session, "")))
        )
        for group in _joined(rows):
            whole = _with(group, name, "group_id").cast(schema)
            write(whole)
            yield whole


def _joined(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield parts together, as long as they are no larger than a row group."""
    waiting: list[pa.Table] = []
    size = 0
    for part in parts:
        if waiting and size + part.nbytes > ROW_GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting, size = [], 0
        waiting.append(part)
        size += part.nbytes
    if waiting:
        yield pa.concat_tables(waiting)


def _halves(table: pa.Table) -> Iterator[pa.Table]:
    """Yield parts of a piece that are no larger than a row group, where rows can be parted."""
    if table.nbytes > ROW_GROUP_BYTES and len(table) > 1:
        middle = len(table) // 2
        yield from _halves(table.slice(0, middle))
        yield from _halves(table.slice(middle))
    elif len(table):
        yield table


def _with(table: pa.Table, value: str, name: str = "repository") -> pa.Table:
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at), column([value] * len(table), pa.string()))
