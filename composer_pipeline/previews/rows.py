"""A few rows of one partition, without reading the rest of it.

Belongs here: which rows, and reading only their columns. Does not belong here: their words
(``previews.tables``).
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.lake import Lake

Row = dict[str, Any]


def sample(lake: Lake, table: str, columns: Sequence[str], rows: int, **keys: str) -> list[Row]:
    """Return rows of a partition, spread evenly over its first row group, its first and last too.

    None where there is no such partition. Columns that an older file lacks are ``None``.
    """
    try:
        with lake.open(_name(lake, table, **keys)) as file:
            # Without a buffer ahead and without threads: the file is a Python object.
            reader = pq.ParquetFile(file)
            if not reader.metadata.num_rows:
                return []
            have = [name for name in columns if name in reader.schema_arrow.names]
            group = reader.read_row_group(0, have, use_threads=False)
    except FileNotFoundError:
        return []
    count = min(rows, len(group))
    picks = [index * (len(group) - 1) // max(1, count - 1) for index in range(count)]
    found: list[Row] = group.take(picks).to_pylist()
    return [dict.fromkeys(columns) | row for row in found]


def of_values(
    lake: Lake, table: str, columns: Sequence[str], key: str, values: Iterable[Any], **keys: str
) -> dict[Any, Row]:
    """Return the rows whose ``key`` is one of some values, by it.

    Row groups without such a value are passed over, where the file knows their bounds.
    """
    wanted = sorted(set(values))
    if not wanted:
        return {}
    try:
        with lake.open(_name(lake, table, **keys)) as file:
            reader = pq.ParquetFile(file)
            at = reader.schema_arrow.names.index(key)
            groups = [n for n in range(reader.num_row_groups) if _may_hold(reader, n, at, wanted)]
            if not groups:
                return {}
            names = list(dict.fromkeys([key, *columns]))
            found = reader.read_row_groups(groups, names, use_threads=False)
    except FileNotFoundError:
        return {}
    is_one = pa.compute.is_in(found[key], value_set=pa.array(wanted, found.schema.field(key).type))
    return {row[key]: row for row in found.filter(is_one).to_pylist()}


def _may_hold(reader: pq.ParquetFile, group: int, column: int, wanted: Sequence[Any]) -> bool:
    bounds = reader.metadata.row_group(group).column(column).statistics
    if bounds is None or not bounds.has_min_max:
        return True
    return any(bounds.min <= value <= bounds.max for value in wanted)


def _name(lake: Lake, table: str, **keys: str) -> str:
    return lake.path(table, **keys).removeprefix(lake.root + "/")
