"""What is wrong with the rows of any table: columns that it does not have, keys that stand twice.

Belongs here: what is asked of every table alike, by its description in ``lake.tables``. Does not
belong here: what must never be true of one table (``lake.violations``).
"""

from collections import Counter
from collections.abc import Iterable

import pyarrow.parquet as pq

from composer_pipeline.lake import TABLES, Lake


def wrong_columns(lake: Lake, table: str, days: Iterable[str] | None, **keys: str) -> list[str]:
    """Return what is wrong with the columns of a table's partitions; footers alone are read.

    A column that an older version did not know yet is not missed.

    Args:
        lake: the lake.
        table: one of its tables.
        days: only these days; all partitions when ``None``.
        keys: fixed partition keys, for example ``teacher``.
    """
    known = TABLES[table].schema
    found = []
    for part in _parts(lake, table, days, keys):
        with lake.open(lake.path(table, **part).removeprefix(lake.root + "/")) as file:
            schema = pq.read_schema(file)
        where = "/".join([table, *part.values()])
        for field in schema:
            if field.name not in known.names:
                found.append(f"{where}: {field.name} is no column")
            elif field.type != known.field(field.name).type:
                found.append(f"{where}: {field.name} is {field.type}")
    return found


def doubled_rows(lake: Lake, table: str, days: Iterable[str] | None, **keys: str) -> list[str]:
    """Return the keys that stand in two rows of a table's partitions; as :func:`wrong_columns`."""
    spec = TABLES[table]
    found = []
    for part in _parts(lake, table, days, keys):
        columns = [name for name in spec.key if name in spec.schema.names]
        rest = {name: value for name, value in part.items() if name != "day"}
        at = [part["day"]] if "day" in part else None
        rows = lake.read(table, days=at, columns=columns, **rest).select(columns).to_pylist()
        counted = Counter(tuple(map(str, row.values())) for row in rows)
        found += [" ".join(row) for row, count in counted.items() if count > 1]
    return found


def _parts(
    lake: Lake, table: str, days: Iterable[str] | None, keys: dict[str, str]
) -> list[dict[str, str]]:
    wanted = None if days is None else set(days)
    return [
        part
        for part in lake.partitions(table, **keys)
        if wanted is None or part.get("day") in wanted
    ]
