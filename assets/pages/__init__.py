"""What a person reads on an asset's page: metadata values, made in one place.

Belongs here: turning the library's reports and tables into Dagster metadata. Does
not belong here: computing a number.
"""

from assets.pages.freshness import NIGHTLY
from assets.pages.plots import PLOTS, explained, plots_of
from assets.pages.run_page import tell_run
from assets.pages.table_page import TablePage, figures
from assets.pages.values import (
    OWNERS,
    column_schema,
    records,
    run_dir_of,
    table_metadata,
    usd,
)

__all__ = [
    "NIGHTLY",
    "OWNERS",
    "PLOTS",
    "TablePage",
    "column_schema",
    "explained",
    "figures",
    "plots_of",
    "records",
    "run_dir_of",
    "table_metadata",
    "tell_run",
    "usd",
]
