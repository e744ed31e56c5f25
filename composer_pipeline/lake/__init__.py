"""The ground floor: Parquet tables, their schemas, atomic partition writes, DuckDB views.

Import from the modules: ``lake.tables`` (tables) and ``lake.store`` (:class:`Lake`).
"""

from composer_pipeline.lake.columns import column, numbers, utf8
from composer_pipeline.lake.damage import DamagedFile
from composer_pipeline.lake.parquet import encode_parquet, parquet_writer
from composer_pipeline.lake.place import UNFINISHED, bucket_errors
from composer_pipeline.lake.rows import table_from_rows
from composer_pipeline.lake.stamps import build_id, file_stamps, stamp
from composer_pipeline.lake.store import Lake
from composer_pipeline.lake.table_file import TableFile
from composer_pipeline.lake.tables import (
    DATASETS,
    JSON_LIST,
    MESSAGES,
    SCHEMA_VERSION,
    STATES,
    TABLES,
)
from composer_pipeline.lake.violations import (
    doubled_states,
    groups_in_two_splits,
    incomplete_prefixes,
    pairs_without_difference,
)

__all__ = [
    "DATASETS",
    "JSON_LIST",
    "MESSAGES",
    "SCHEMA_VERSION",
    "STATES",
    "TABLES",
    "UNFINISHED",
    "DamagedFile",
    "Lake",
    "TableFile",
    "bucket_errors",
    "build_id",
    "column",
    "doubled_states",
    "encode_parquet",
    "file_stamps",
    "groups_in_two_splits",
    "incomplete_prefixes",
    "numbers",
    "pairs_without_difference",
    "parquet_writer",
    "stamp",
    "table_from_rows",
    "utf8",
]
