"""What a person reads on an asset's page: metadata values, made in one place.

Belongs here: turning the library's reports and tables into Dagster metadata. Does
not belong here: computing a number.
"""

from assets.pages.values import (
    OWNERS,
    column_schema,
    numbers,
    records,
    run_dir_of,
    table_metadata,
    usd,
)

__all__ = [
    "OWNERS",
    "column_schema",
    "numbers",
    "records",
    "run_dir_of",
    "table_metadata",
    "usd",
]
