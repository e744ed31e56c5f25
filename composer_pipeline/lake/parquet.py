"""Rows to Arrow to bytes and back, byte-deterministic.

Belongs here: writer settings and conversions. Does not belong here: partitions and where
they are (``lake.store``), and what columns there are (``lake.tables``).
"""
import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.errors import InputError
from composer_pipeline.lake.columns import column
from composer_pipeline.lake.tables import TableSpec

if TYPE_CHECKING:
    pass

#: Content-defined chunking, equal to ``datasets.config.DEFAULT_CDC_OPTIONS``.
CDC = {"min_chunk_size": 256 * 1024, "max_chunk_size": 1024 * 1024, "norm_level": 0}


#: Decoded bytes of a row group stay below the Hub viewer's limit.
ROW_GROUP_BYTES = 64 << 20


#: Compact tables: small row groups, so that a reader of one prefix decodes little else.
COMPACT_GROUP_BYTES = 4 << 20


COMPACT_LEVEL = 7


_TEXT, _STEPS = "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BINARY_PACKED"
_ENCODED = {
    **dict.fromkeys(("hash", "json", "state_id", "message_id", "digest"), _TEXT),
    **dict.fromkeys(("n", "ts", "n_chars", "n_messages", "turn"), _STEPS),
}


def encode_parquet(table: pa.Table, *, compact: bool = False) -> bytes:
    """Return ``table`` as Parquet bytes with the writer settings of the lake.

    zstd-3, a 64 MiB dictionary limit, content-defined chunking and a page index: 38
    times smaller than the default push on prefix-expanded states, and deterministic.
    ``compact`` is :attr:`TableSpec.compact`.
    """
    sink = io.BytesIO()
    with parquet_writer(sink, table.schema, compact=compact) as writer:
        # An empty row group makes `datasets` fail on the file; none at all loads as no rows.
        if table.num_rows:
            writer.write_table(table, row_group_size=group_rows(table, compact=compact))
        if not compact:
            writer.add_key_value_metadata({"content_defined_chunking": json.dumps(CDC)})
    return sink.getvalue()


def group_rows(table: pa.Table, *, compact: bool) -> int:
    size: int = table.nbytes
    rows: int = table.num_rows
    if compact:
        # Groups of equal size: a small rest would compress badly.
        groups = max(1, round(size / COMPACT_GROUP_BYTES))
        return max(1, -(-rows // groups))
    return max(1, ROW_GROUP_BYTES // max(1, size // max(1, rows)))


def parquet_writer(sink: Any, schema: pa.Schema, *, compact: bool) -> pq.ParquetWriter:
    if not compact:
        return pq.ParquetWriter(
            sink,
            schema,
            compression="zstd",
            compression_level=3,
            use_dictionary=True,
            dictionary_pagesize_limit=64 << 20,
            write_page_index=True,
            use_content_defined_chunking=CDC,
        )
    # Ids and long texts are nearly all distinct: a dictionary of them costs space.
    plain = {*_ENCODED, "messages"}
    return pq.ParquetWriter(
        sink,
        schema.remove_metadata(),
        compression="zstd",
        compression_level=COMPACT_LEVEL,
        use_dictionary=[name for name in schema.names if name not in plain],
        column_encoding={n: how for n, how in _ENCODED.items() if n in schema.names} or None,
        write_statistics=[name for name in schema.names if name in ("n", "state_id")],
        store_schema=False,
        data_page_size=COMPACT_GROUP_BYTES,
    )


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


def rows_from_table(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows as dictionaries, JSON message columns decoded to objects."""
    rows: list[dict[str, Any]] = table.to_pylist()
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
