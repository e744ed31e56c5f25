"""Arrow tables as Parquet bytes, the same bytes each time, and tables from them."""

import contextlib
import io
import json
import os
import re
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import accumulate, chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.errors import InputError
from composer_pipeline.files import Replacement, writing
from composer_pipeline.lake.schema import TableSpec

if TYPE_CHECKING:
    import duckdb

_NUMBERS = {pa.int32(): "i", pa.int64(): "q", pa.float64(): "d", pa.uint8(): "B"}
_TIME = pa.timestamp("us", tz="UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MOST_BYTES = 2**31 - 1


def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return an Arrow array of Python values; ``None`` is null, a lone surrogate U+FFFD."""
    # Other types are left to pyarrow, which loads pandas for them.
    if kind == pa.string():
        return _strings(values)
    if kind in _NUMBERS:
        return _numbers(values, kind)
    if kind == pa.bool_():
        present = [value is not None for value in values]
        return _from_buffers(kind, len(values), present, [_bits(map(bool, values))])
    if kind == _TIME:
        present = [value is not None for value in values]
        ticks = array("q", [0 if v is None else (v - _EPOCH) // _MICROSECOND for v in values])
        return _from_buffers(kind, len(values), present, [pa.py_buffer(ticks)])
    if kind == pa.binary() and sum(map(len, filter(None, values))) <= _MOST_BYTES:
        present = [value is not None for value in values]
        filled = [value or b"" for value in values]
        data = pa.py_buffer(b"".join(filled))
        return _from_buffers(kind, len(values), present, [_offsets(filled), data])
    if pa.types.is_list(kind) and kind.value_type in (pa.string(), pa.int32(), pa.bool_()):
        present = [value is not None for value in values]
        filled = [() if value is None else value for value in values]
        items = column(list(chain.from_iterable(filled)), kind.value_type)
        if isinstance(items, pa.Array):
            return _from_buffers(kind, len(values), present, [_offsets(filled)], [items])
    return pa.array(values, kind)


def utf8(values: Sequence[bytes]) -> pa.Array:
    """Return a text column of UTF-8 values; anything else raises ``pyarrow.ArrowInvalid``."""
    buffers = [None, _offsets(values), pa.py_buffer(b"".join(values))]
    found = pa.Array.from_buffers(pa.string(), len(values), buffers)
    found.validate(full=True)
    return found


def constant(value: str, length: int) -> pa.Array:
    """Return a text column that has the same value in each row."""
    return _strings([value] * length)


def numbers(values: Iterable[int], kind: pa.DataType) -> pa.Array:
    """Return a column of numbers, none of them missing."""
    data = array(_NUMBERS[kind], values)
    return pa.Array.from_buffers(kind, len(data), [None, pa.py_buffer(data)])


def _strings(values: Sequence[str | None]) -> pa.Array | pa.ChunkedArray:
    present = [value is not None for value in values]
    filled: Sequence[Any] = values if all(present) else [value or "" for value in values]
    joined = "".join(filled)
    if joined.isascii():
        data = joined.encode()
    else:
        filled = [_encoded(value) for value in filled]
        data = b"".join(filled)
    if len(data) > _MOST_BYTES:
        return pa.array(values, pa.string())
    return _from_buffers(pa.string(), len(values), present, [_offsets(filled), pa.py_buffer(data)])


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _numbers(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    present = [value is not None for value in values]
    if not all(present):
        values = [0 if value is None else value for value in values]
    data = pa.py_buffer(array(_NUMBERS[kind], values))
    return _from_buffers(kind, len(values), present, [data])


def _from_buffers(
    kind: pa.DataType,
    length: int,
    present: list[bool],
    buffers: list[pa.Buffer],
    children: list[pa.Array] | None = None,
) -> pa.Array:
    missing = present.count(False)
    valid = _bits(present) if missing else None
    return pa.Array.from_buffers(kind, length, [valid, *buffers], missing, children=children)


def _offsets(values: Iterable[Any]) -> pa.Buffer:
    return pa.py_buffer(array("i", accumulate(map(len, values), initial=0)))


def _bits(flags: Iterable[bool]) -> pa.Buffer:
    data = bytes(flags)
    whole = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
    return whole.cast(pa.bool_()).buffers()[1]


def table_from_rows(spec: TableSpec, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Build a table from dictionaries; ``list<arrow.json>`` values are objects or JSON text."""
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
    """Return a table with the columns of a schema; missing ones are null."""
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


def plain_table(schema: pa.Schema) -> pa.Table:
    """Return an empty table with storage types in place of extension types, as DuckDB needs."""
    # ``Schema.empty_table`` loads pandas, and refuses ``list<arrow.json>``.
    plain = pa.list_(pa.string())
    kinds = [plain if kind == pa.list_(pa.json_()) else kind for kind in schema.types]
    return pa.Table.from_arrays([column([], kind) for kind in kinds], names=schema.names)


def empty_table(schema: pa.Schema) -> pa.Table:
    """Return an empty table with a schema."""
    columns = [c.cast(kind) for c, kind in zip(plain_table(schema), schema.types, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


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
    """Return ``table`` as Parquet bytes; the same table gives the same bytes."""
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
    """Return the columns that rows are searched by, whose statistics are written."""
    # Statistics of texts would be two thirds of a footer, which is sent with every change.
    return [
        field.name
        for field in schema
        if field.name.endswith("_id")
        or field.name == "day"
        or not (pa.types.is_nested(field.type) or pa.types.is_string(field.type))
    ]


def read_columns(file: Any, schema: pa.Schema, *, threads: bool) -> pa.Table:
    """Read the columns of ``schema`` from an open file; missing ones are null."""
    reader = pq.ParquetFile(file)
    return complete(reader.read(_there(reader, schema), use_threads=threads), schema)


def read_batches(file: Any, schema: pa.Schema, rows: int, *, threads: bool) -> Iterator[pa.Table]:
    """Yield :func:`read_columns` in tables of at most ``rows`` rows."""
    reader = pq.ParquetFile(file)
    columns = _there(reader, schema)
    for batch in reader.iter_batches(rows, columns=columns, use_threads=threads):
        yield complete(pa.Table.from_batches([batch]), schema)


def read_through(file: Any, *, threads: bool) -> int:
    """Read every byte of an open file; return its rows."""
    rows = 0
    for batch in pq.ParquetFile(file).iter_batches(batch_size=1024, use_threads=threads):
        batch.validate(full=True)  # text that is none
        rows += batch.num_rows
    return rows


def _there(reader: pq.ParquetFile, schema: pa.Schema) -> list[str]:
    have = set(reader.schema_arrow.names)
    return [name for name in schema.names if name in have]


#: Rows converted to a table at a time.
_AT_ONCE = 64


class PartitionWriter:
    """Writes one partition in pieces; :meth:`commit` makes it visible as a whole.

    The pieces go to a temporary file: beside the partition on a local disk, in the machine's
    temporary folder for a bucket.
    """

    def __init__(self, place: str, spec: TableSpec, path: str, bucket: Any = None) -> None:
        self._place, self._spec, self._path, self._bucket = place, spec, path, bucket
        self.rows = 0
        self._held: list[Mapping[str, Any]] = []
        self._tables: list[pa.Table] = []
        self._new: Replacement | None = None
        with writing(place):
            if bucket is None:
                self._new = Replacement(Path(path))
                self._file: IO[bytes] = self._new.stream
            else:
                self._file = tempfile.NamedTemporaryFile(  # noqa: SIM115  lives until discard
                    prefix="part.parquet."
                )
        self._parquet = parquet_writer(
            self._file, spec.schema, compact=spec.compact, grouped=spec.grouped
        )

    def write(self, table: pa.Table) -> None:
        """Append rows; the table has the partition's schema."""
        if not table.num_rows:
            return
        self.rows += table.num_rows
        if self._spec.compact:
            table = table.replace_schema_metadata()
            table = table.cast(self._parquet.schema)
        with writing(self._place):
            rows = group_rows(table, compact=self._spec.compact)
            self._parquet.write_table(table, row_group_size=rows)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row; about a row group of them is held in memory."""
        self._held.append(row)
        if len(self._held) == _AT_ONCE:
            self._convert()
            if sum(table.nbytes for table in self._tables) >= ROW_GROUP_BYTES:
                self._flush()

    def _convert(self) -> None:
        if self._held:
            self._tables.append(table_from_rows(self._spec, self._held))
            self._held = []

    def _flush(self) -> None:
        if self._tables:
            self.write(pa.concat_tables(self._tables))
            self._tables = []

    def write_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows and commit them."""
        try:
            for row in rows:
                self.add(row)
        except BaseException:
            self.discard()
            raise
        self.commit()

    def write_group(self, table: pa.Table) -> None:
        """Append a non-empty table as one row group."""
        self.rows += len(table)
        with writing(self._place):
            self._parquet.write_table(table, row_group_size=table.num_rows)

    def commit(self) -> None:
        """Make the partition visible."""
        try:
            self._convert()
            self._flush()
            with writing(self._place):
                self._parquet.close()
                if self._new is not None:
                    self._new.commit()
                else:
                    self._file.flush()
                    self._bucket.put_file(self._file.name, self._path)
        finally:
            self.discard()

    def discard(self) -> None:
        """Drop what was written and not committed."""
        # Closing writes the footer, which a full disk refuses a second time.
        with contextlib.suppress(OSError):
            self._parquet.close()
        with contextlib.suppress(OSError):
            self._file.close()
        if self._new is not None:
            self._new.discard()


class TableFile(PartitionWriter):
    """A file outside of the lake that takes rows one at a time, with only its own columns."""

    def __init__(self, path: Path, columns: Mapping[str, pa.DataType], what: str) -> None:
        spec = TableSpec("", "", (), (), pa.schema(list(columns.items())))
        super().__init__(what, spec, str(path))

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row."""
        super().add({name: row[name] for name in self._spec.schema.names})


_PARTITION = re.compile(r"(?P<table>\w+)(?:/\w+=[^/]*?)??(?:/day=(?P<day>[^/]+))?/part\.parquet")
#: The first and last bytes of a Parquet file.
MAGIC = b"PAR1"
#: The tables that a reparse rewrites from the archive.
FROM_ARCHIVE = ("messages", "chains", "states", "sessions")


class DamagedFile(InputError):
    """A file of the lake is damaged; the message names it and what writes it again."""


def remedy(table: str, day: str) -> str:
    """Return how to repair a damaged partition of a table."""
    if table in FROM_ARCHIVE:
        return f"run composer-pipeline reparse --day {day}"
    stage = {
        "replies": "replay",
        "toolsets": "replay",
        "hints": "pairs",
        "votes": "pairs",
        "pairs": "pairs",
        "normalized_pairs": "normalize",
        "drops": "normalize",
        "preference_statistics": "statistics",
        "near_duplicates": "statistics",
    }.get(table, "dataset" if table.startswith("dataset_") else None)
    if stage is None:
        return "put it back from a backup, or delete it and run composer-pipeline ingest"
    return f"delete it and run composer-pipeline {stage}"


@contextmanager
def reading(url: str, path: str, table: str, day: str) -> Iterator[None]:
    """Raise :class:`DamagedFile`, which names the file, where a read fails."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        why = str(error).partition("\n")[0][:160]
        raise DamagedFile(f"lake {url}: {path} is damaged ({why}); {remedy(table, day)}") from error


@contextmanager
def querying(url: str) -> Iterator[None]:
    """Raise :class:`DamagedFile`, which names the file, where an SQL query fails on one."""
    import duckdb  # 20 MB that a parse does not need

    try:
        yield
    except duckdb.Error as error:
        found = _PARTITION.search(str(error))
        if not found:
            raise
        day = found["day"] or ""
        raise DamagedFile(
            f"lake {url}: {found[0]} is damaged; {remedy(found['table'], day)}"
        ) from error


def cut_short(path: Path) -> bool:
    """Return True if a file exists and does not end as a Parquet file does."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    # Thousands of files are checked when a lake is opened: no buffers, no file objects.
    try:
        size = os.fstat(file).st_size
        if size < 3 * len(MAGIC):
            return True
        return os.pread(file, len(MAGIC), size - len(MAGIC)) != MAGIC
    finally:
        os.close(file)


def connect(
    bucket: Any,
    files: Mapping[str, Sequence[str]],
    empty: Mapping[str, pa.Table],
    alike: bool = False,
) -> "duckdb.DuckDBPyConnection":
    """Return an in-memory DuckDB with a view for each table; see :meth:`Lake.duckdb`."""
    import duckdb  # 20 MB that a parse does not need

    con = duckdb.connect()
    # A view is bound, and its files' footers read, when it is made and whenever it is used.
    con.execute("SET parquet_metadata_cache = true")
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
            f" hive_partitioning=true, hive_types_autocast=false, union_by_name={not alike})"
        )
    return con
