"""Arrow tables as Parquet bytes, the same bytes each time, and tables from them.

Belongs here: writer settings, and reading the columns of a file that may be older than they are.
Does not belong here: partitions and where they are (``lake.store``), and what columns there are
(``lake.tables``).
"""

import io
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.lake.rows import complete

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


def encode_parquet(table: pa.Table, *, compact: bool = False, grouped: bool = False) -> bytes:
    """Return ``table`` as Parquet bytes with the writer settings of the lake.

    zstd-3, a 64 MiB dictionary limit, content-defined chunking and a page index: 38
    times smaller than the default push on prefix-expanded states, and deterministic.
    ``compact`` and ``grouped`` are those of the :class:`TableSpec`.
    """
    sink = io.BytesIO()
    with parquet_writer(sink, table.schema, compact=compact, grouped=grouped) as writer:
        # An empty row group makes `datasets` fail on the file; none at all loads as no rows.
        if table.num_rows:
            writer.write_table(table, row_group_size=group_rows(table, compact=compact))
        if not compact and not grouped:
            writer.add_key_value_metadata({"content_defined_chunking": json.dumps(CDC)})
    return sink.getvalue()


def group_rows(table: pa.Table, *, compact: bool) -> int:
    """Return how many rows a row group holds, from the bytes that a row takes."""
    size: int = table.nbytes
    rows: int = table.num_rows
    if compact:
        # Groups of equal size: a small rest would compress badly.
        groups = max(1, round(size / COMPACT_GROUP_BYTES))
        return max(1, -(-rows // groups))
    return max(1, ROW_GROUP_BYTES // max(1, size // max(1, rows)))


def parquet_writer(
    sink: Any, schema: pa.Schema, *, compact: bool, grouped: bool = False
) -> pq.ParquetWriter:
    """Open a Parquet writer with the settings of the lake; see :func:`encode_parquet`."""
    if not compact:
        return pq.ParquetWriter(
            sink,
            schema,
            compression="zstd",
            compression_level=3,
            use_dictionary=True,
            dictionary_pagesize_limit=64 << 20,
            write_page_index=True,
            write_statistics=_searched(schema) if grouped else True,
            use_content_defined_chunking=False if grouped else CDC,
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


def _searched(schema: pa.Schema) -> list[str]:
    """Return the columns that rows are looked for by: their least and greatest values are kept.

    Of texts they would be two thirds of a footer, and a footer is sent again with every change.
    """
    return [
        field.name
        for field in schema
        if field.name.endswith("_id")
        or field.name == "day"
        or not (pa.types.is_nested(field.type) or pa.types.is_string(field.type))
    ]


def read_columns(file: Any, schema: pa.Schema, *, threads: bool) -> pa.Table:
    """Return the columns of ``schema`` of an open file; those that it lacks are null."""
    reader = pq.ParquetFile(file)
    return complete(reader.read(_there(reader, schema), use_threads=threads), schema)


def read_batches(file: Any, schema: pa.Schema, rows: int, *, threads: bool) -> Iterator[pa.Table]:
    """Yield :func:`read_columns` in tables of at most so many rows."""
    reader = pq.ParquetFile(file)
    columns = _there(reader, schema)
    for batch in reader.iter_batches(rows, columns=columns, use_threads=threads):
        yield complete(pa.Table.from_batches([batch]), schema)


def read_through(file: Any, *, threads: bool) -> int:
    """Read every byte of an open file; return its rows."""
    batches = pq.ParquetFile(file).iter_batches(batch_size=1024, use_threads=threads)
    return sum(batch.num_rows for batch in batches)


def _there(reader: pq.ParquetFile, schema: pa.Schema) -> list[str]:
    have = set(reader.schema_arrow.names)
    return [name for name in schema.names if name in have]
