"""DuckDB views over the tables of a lake.

Belongs here: one view for each table. Does not belong here: which files a table has
(``lake.store``).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    import duckdb


def connect(
    bucket: Any, files: Mapping[str, Sequence[str]], empty: Mapping[str, pa.Table]
) -> "duckdb.DuckDBPyConnection":
    """Return an in-memory DuckDB with a view for each table.

    Args:
        bucket: the file system of a bucket; ``None`` for a local disk.
        files: table to the paths of its files, or patterns of them.
        empty: the tables without a file, with their columns and no row.
    """
    import duckdb  # 20 MB that a parse does not need

    con = duckdb.connect()
    if bucket is not None:
        con.register_filesystem(bucket)
    for name, paths in files.items():
        if name in empty:
            con.register(f"_empty_{name}", empty[name])
            con.execute(f"CREATE VIEW {name} AS SELECT * FROM _empty_{name}")
            continue
        listed = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
        con.execute(
            f"CREATE VIEW {name} AS SELECT * FROM read_parquet([{listed}],"
            " hive_partitioning=true, hive_types_autocast=false, union_by_name=true)"
        )
    return con
