"""One pyarrow schema for each table of the lake; the single source of column facts.

Belongs here: tables, their keys, their partition keys, their columns with a
description each. Dagster's column metadata, the schema checks and the README's
tables are all made from this folder. Does not belong here: reading and writing
(``lake.store``), and how a row is computed (the room that writes the table).

Columns are only ever added. Partition keys are part of the path, never of the file.
Message columns are ``list<arrow.json>``: one JSON document a message, which
``datasets`` reads as ``List(Json())`` and TRL trains on as it is.
"""

from composer_pipeline.errors import InputError
from composer_pipeline.lake.tables.datasets import (
    DATASET_DROPS,
    DATASET_GROUPS,
    DATASET_HINTS,
    DATASET_PAIRS,
    DATASET_PAIRS_8K,
    DATASET_REPLIES,
    DATASET_SFT,
    DATASET_SUCCESSES,
)
from composer_pipeline.lake.tables.pairs import DROPS, NORMALIZED_PAIRS, PAIRS
from composer_pipeline.lake.tables.preferences import (
    HINTS,
    NEAR_DUPLICATES,
    PREFERENCE_STATISTICS,
    VOTES,
)
from composer_pipeline.lake.tables.replies import (
    REPLIES,
    TOOLSETS,
)
from composer_pipeline.lake.tables.spec import JSON_LIST, TIMESTAMP, TableSpec
from composer_pipeline.lake.tables.states import CHAINS, STATES
from composer_pipeline.lake.tables.traces import MESSAGES, RAW_FILES, SESSIONS

__all__ = [
    "CHAINS",
    "DATASETS",
    "DATASET_DROPS",
    "DATASET_GROUPS",
    "DATASET_HINTS",
    "DATASET_PAIRS",
    "DATASET_PAIRS_8K",
    "DATASET_REPLIES",
    "DATASET_SFT",
    "DATASET_SUCCESSES",
    "DROPS",
    "HINTS",
    "JSON_LIST",
    "MESSAGES",
    "NEAR_DUPLICATES",
    "NORMALIZED_PAIRS",
    "PAIRS",
    "PREFERENCE_STATISTICS",
    "RAW_FILES",
    "REPLIES",
    "SCHEMA_VERSION",
    "SESSIONS",
    "STATES",
    "TABLES",
    "TIMESTAMP",
    "TOOLSETS",
    "VOTES",
    "TableSpec",
    "spec_of",
]

SCHEMA_VERSION = 3

TABLES: dict[str, TableSpec] = {
    spec.name: spec
    for spec in (
        RAW_FILES,
        SESSIONS,
        MESSAGES,
        CHAINS,
        STATES,
        TOOLSETS,
        REPLIES,
        HINTS,
        PAIRS,
        NORMALIZED_PAIRS,
        DROPS,
        DATASET_PAIRS,
        DATASET_PAIRS_8K,
        DATASET_GROUPS,
        DATASET_HINTS,
        DATASET_SFT,
        DATASET_SUCCESSES,
        DATASET_REPLIES,
        DATASET_DROPS,
        VOTES,
        PREFERENCE_STATISTICS,
        NEAR_DUPLICATES,
    )
}
#: The tables that trainers read; each has a split and a whole prompt in every row.
DATASETS = tuple(
    spec.name for spec in (DATASET_PAIRS, DATASET_GROUPS, DATASET_HINTS, DATASET_SUCCESSES)
)


def spec_of(table: str) -> TableSpec:
    """Return the table's spec.

    Raises:
        InputError: there is no such table.
    """
    if table not in TABLES:
        raise InputError(f"unknown table {table!r}; known: {', '.join(TABLES)}")
    return TABLES[table]
