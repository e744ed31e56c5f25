"""Where a table's rows are, how many, and the query that reads them.

Belongs here: paths, queries, counts from Parquet's own metadata. Does not belong here: rows.
"""

import glob

import pyarrow.parquet as pq

from composer_pipeline.lake import TABLES, Lake


def place_of(lake: Lake, table: str, **keys: str) -> str:
    """Return the file of a partition; a key that is not given stands as ``*``."""
    parts = [f"{key}={keys.get(key, '*')}" for key in TABLES[table].partition_keys]
    return "/".join([lake.url.rstrip("/"), table, *parts, "part.parquet"])


def query_of(lake: Lake, table: str, **keys: str) -> str:
    """Return DuckDB SQL that shows the rows; any DuckDB runs it, for a bucket with its httpfs."""
    root = glob.escape(lake.url.rstrip("/"))  # DuckDB reads brackets of a path as a pattern
    place = root + place_of(lake, table, **keys).removeprefix(lake.url.rstrip("/"))
    quoted = place.replace("'", "''")
    return f"SELECT * FROM read_parquet('{quoted}') LIMIT 20;"


def row_count(lake: Lake, table: str, **keys: str) -> int | None:
    """Return the rows of the partitions with these keys, or ``None`` where there is none.

    Only the ends of the files are read.
    """
    every = keys.keys() >= set(TABLES[table].partition_keys)
    total = None
    for part in [keys] if every else lake.partitions(table, **keys):
        try:
            with lake.open(lake.path(table, **part).removeprefix(lake.root + "/")) as file:
                total = (total or 0) + pq.read_metadata(file).num_rows
        except FileNotFoundError:
            continue
    return total
