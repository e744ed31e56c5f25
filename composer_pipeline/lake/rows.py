"""Rows to Arrow tables and back.

Belongs here: conversions. Does not belong here: bytes of a file (``lake.parquet``), and what
columns there are (``lake.tables``).
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from composer_pipeline.errors import InputError
from composer_pipeline.lake.columns import column
from composer_pipeline.lake.tables import TableSpec

_TIME = pa.timestamp("us", tz="UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def table_from_rows(spec: TableSpec, rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Build a table with ``spec``'s schema from dictionaries.

    Values of ``list<arrow.json>`` columns are lists of Python objects or of JSON text;
    objects are written as compact JSON with their key order kept.

    Raises:
        InputError: a row has a column that the schema does not know.
    """
    known = set(spec.schema.names)
    for row in rows:
        if not known.issuperset(row) and (unknown := set(row) - known):
            raise InputError(f"table {spec.name} has no column {sorted(unknown)[0]!r}")
    columns = []
    for field in spec.schema:
        values = [row.get(field.name) for row in rows]
        if field.type == pa.list_(pa.json_()):
            text = [None if v is None else [_json_text(item) for item in v] for v in values]
            columns.append(column(text, pa.list_(pa.string())).cast(field.type))
        else:
            columns.append(column(values, field.type))
    return pa.Table.from_arrays(columns, schema=spec.schema)


def complete(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the columns of a schema; those that an old file lacks are null."""
    have = set(table.column_names)
    columns = [
        table.column(f.name).cast(f.type) if f.name in have else pa.nulls(len(table), f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def rows_from_table(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows as dictionaries, JSON message columns decoded to objects, times in UTC."""
    times = [field.name for field in table.schema if field.type == _TIME]
    plain = table
    for name in times:  # pyarrow would load pandas for them, and take five times as long
        plain = plain.set_column(
            plain.schema.get_field_index(name), name, plain[name].cast("int64")
        )
    rows: list[dict[str, Any]] = plain.to_pylist()
    for row in rows:
        for name in times:
            if row[name] is not None:
                row[name] = _EPOCH + timedelta(microseconds=row[name])
    names = [f.name for f in table.schema if f.type == pa.list_(pa.json_())]
    for row in rows:
        for name in names:
            if row[name] is not None:
                row[name] = [json.loads(item) for item in row[name]]
    return rows


def _json_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def empty_table(schema: pa.Schema) -> pa.Table:
    """``Schema.empty_table`` for schemas with ``list<arrow.json>``, which pyarrow refuses."""
    columns = []
    for field in schema:
        plain = pa.list_(pa.string()) if field.type == pa.list_(pa.json_()) else field.type
        columns.append(column([], plain).cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def plain_table(table: pa.Table) -> pa.Table:
    """Storage types in place of extension types, which DuckDB cannot register empty."""
    fields = [
        pa.field(f.name, pa.list_(pa.string()) if f.type == pa.list_(pa.json_()) else f.type)
        for f in table.schema
    ]
    return pa.schema(fields).empty_table()
