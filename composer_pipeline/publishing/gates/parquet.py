"""A Parquet file read as its readers will: row group by row group, every column of every row.

Belongs here: where something private stands in it. Does not belong here: whether a value is
private (``publishing.gates.scan``) and what rows of a dataset must be like
(``publishing.gates.rows``).
"""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from composer_pipeline.publishing.gates.refused import PublishRefused, private
from composer_pipeline.publishing.gates.scan import Scanner

#: Rows that are decoded at once.
BATCH = 32


def opened(content: bytes | Path, where: str) -> pq.ParquetFile:
    """Open a Parquet file.

    Raises:
        PublishRefused: it is none.
    """
    try:
        return pq.ParquetFile(content if isinstance(content, Path) else io.BytesIO(content))
    except (pa.ArrowInvalid, OSError) as error:
        raise PublishRefused(f"{where} is no Parquet file that can be read") from error


def check_parquet(file: pq.ParquetFile, where: str, scanner: Scanner) -> None:
    """Refuse a file in which anything private stands: cells, names of columns, metadata.

    Args:
        file: the file.
        where: what it is called in a refusal.
        scanner: what is clean already.

    Raises:
        PublishRefused: something is private; the message names row, column and session.
    """
    schema = file.schema_arrow
    texts = [*schema.names, *(str(text) for text in _metadata(schema))]
    for text in texts:
        if kinds := scanner.of_text(text):
            raise private(f"{where}: its schema", kinds)
    first = 0
    for batch in batches(file):
        for name in schema.names:
            for row, kinds in _private(batch.column(name), scanner):
                session = _session(batch, row, scanner)
                said = f", session {session}" if session else ""
                raise private(f"{where}: row {first + row}{said}, column {name}", kinds, session)
        first += batch.num_rows


def batches(file: pq.ParquetFile, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in order, at most :data:`BATCH` at once, never all of them."""
    for number in range(file.metadata.num_row_groups):
        yield from file.iter_batches(
            batch_size=BATCH, row_groups=[number], columns=columns, use_threads=False
        )


def _metadata(schema: pa.Schema) -> Iterator[str]:
    for fields in (schema.metadata, *(schema.field(i).metadata for i in range(len(schema)))):
        for key, value in (fields or {}).items():
            if key != b"ARROW:schema":  # the schema itself, encoded
                yield key.decode("utf-8", "replace")
                yield value.decode("utf-8", "replace")


def _private(column: pa.Array, scanner: Scanner) -> Iterator[tuple[int, list[str]]]:
    """Yield (row, kinds) of the first private cell; distinct values are looked at once."""
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    values = pc.list_flatten(column) if is_list else column
    is_json = "json" in str(values.type)
    values = values.storage if isinstance(values, pa.ExtensionArray) else values
    if not _is_text(values.type):
        values = _printed(values)
        if values is None:
            return
    for value in values.unique().to_pylist():
        if value is None:
            continue
        try:
            kinds = scanner.of_json(value) if is_json else scanner.of_text(value)
        except json.JSONDecodeError:
            kinds = ["what is no JSON"]
        if kinds:
            at = pc.index(values, pa.scalar(value, values.type)).as_py()
            yield (pc.list_parent_indices(column)[at].as_py() if is_list else at), kinds
            return


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _printed(values: pa.Array) -> pa.Array | None:
    """Return values of another type as texts; ``None`` for numbers, flags and times."""
    kind = values.type
    if (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_temporal(kind)
        or pa.types.is_null(kind)
    ):
        return None
    return pa.array([None if v is None else _text(v) for v in values.to_pylist()], pa.string())


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _session(batch: pa.RecordBatch, row: int, scanner: Scanner) -> str:
    """Return the session of a row, where the table names it and may."""
    if "session_id" not in batch.schema.names:
        return ""
    session = str(batch.column("session_id")[row].as_py() or "")
    return "" if scanner.of_text(session) else session
