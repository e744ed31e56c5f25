"""Metadata that several assets share: column schemas, row counts, USD, tables.

Belongs here: turning the library's reports into Dagster metadata values. Does not
belong here: computing a number.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import dagster as dg

from composer_pipeline.lake import TABLES

OWNERS = ["team:composer-pipeline"]


def column_schema(table: str) -> dg.TableSchema:
    """Return the table's columns as Dagster shows them."""
    spec = TABLES[table]
    return dg.TableSchema(
        columns=[
            dg.TableColumn(name=f.name, type=str(f.type), description=spec.description_of(f.name))
            for f in spec.schema
        ]
    )


def table_metadata(table: str) -> dict[str, Any]:
    """Return the definition metadata of an asset that writes ``table``."""
    return {"dagster/column_schema": column_schema(table), "table": table}


def usd(picodollars: int) -> float:
    """Return picodollars as USD for a plot; exact amounts stay integers in the lake."""
    return float(Decimal(picodollars) / 10**12)


def records(rows: Sequence[Mapping[str, str | int | float | bool | None]]) -> dg.TableMetadataValue:
    """Return dictionaries with equal keys as a metadata table."""
    return dg.MetadataValue.table([dg.TableRecord(dict(row)) for row in rows])


def run_dir_of(instance: dg.DagsterInstance, asset: str) -> str | None:
    """Return the ``run_dir`` that an asset last reported, or ``None``."""
    event = instance.get_latest_materialization_event(dg.AssetKey(asset))
    if event is None or event.asset_materialization is None:
        return None
    return str(event.asset_materialization.metadata["run_dir"].value)
