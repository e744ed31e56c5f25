"""Reading and writing the lake: one Parquet file a partition, replaced atomically.

Belongs here: paths, atomic writes, reads, DuckDB views, blobs of the archive. Does
not belong here: what the columns mean (``lake.tables``) and which rows to write.

A partition becomes visible in one step: a temporary file in the same folder and
``os.replace`` on a local disk, one PUT in a bucket. A reader sees the old file or
the new one. Files are byte-deterministic: the same table gives the same bytes.
"""

import io
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.errors import InputError
from composer_pipeline.lake.columns import column, constant
from composer_pipeline.lake.tables import TABLES, TableSpec

if TYPE_CHECKING:
    import duckdb

#: Content-defined chunking, equal to ``datasets.config.DEFAULT_CDC_OPTIONS``.
CDC = {"min_chunk_size": 256 * 1024, "max_chunk_size": 1024 * 1024, "norm_level": 0}

#: Decoded bytes of a row group stay below the Hub viewer's limit.
ROW_GROUP_BYTES = 64 << 20

#: Compact tables: small row groups, so that a reader of one prefix decodes little else.
COMPACT_GROUP_BYTES = 4 << 20
COMPACT_LEVEL = 7

#: Lengths apart from texts and small steps of numbers: both compress better, and faster.
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
    with _parquet_writer(sink, table.schema, compact=compact) as writer:
        # An empty row group makes `datasets` fail on the file; none at all loads as no rows.
        if table.num_rows:
            writer.write_table(table, row_group_size=_group_rows(table, compact=compact))
        if not compact:
            writer.add_key_value_metadata({"content_defined_chunking": json.dumps(CDC)})
    return sink.getvalue()


def _group_rows(table: pa.Table, *, compact: bool) -> int:
    size: int = table.nbytes
    rows: int = table.num_rows
    if compact:
        # Groups of equal size: a small rest would compress badly.
        groups = max(1, round(size / COMPACT_GROUP_BYTES))
        return max(1, -(-rows // groups))
    return max(1, ROW_GROUP_BYTES // max(1, size // max(1, rows)))


def _parquet_writer(sink: Any, schema: pa.Schema, *, compact: bool) -> pq.ParquetWriter:
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


class Lake:
    """A folder or a bucket of Parquet tables.

    Args:
        url: a local path, or any fsspec URL (``s3://``, ``gs://`` and ``az://`` go
            through obstore's fsspec adapter and need the ``cloud`` extra). Credentials
            and the endpoint come from the environment, as obstore reads them: for S3
            ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_REGION``,
            ``AWS_ENDPOINT_URL``, and ``AWS_ALLOW_HTTP=true`` for a plain-HTTP endpoint.
        storage_options: passed to the filesystem; never printed.
    """

    def __init__(self, url: str | os.PathLike[str] = "lake", **storage_options: Any) -> None:
        text = os.fspath(url)
        protocol = text.split("://", 1)[0] if "://" in text else "file"
        if protocol in ("s3", "gs", "az"):
            _register_obstore()
            # The default keeps a wrong endpoint waiting for three minutes.
            storage_options.setdefault(
                "retry_config", {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}
            )
        if protocol == "file":
            text = str(Path(text.removeprefix("file://")).expanduser().absolute())
        self.url = text
        self.local = protocol == "file"
        self.fs: Any
        self.fs, root = fsspec.core.url_to_fs(text, **storage_options)
        self.root = str(root).rstrip("/")

    def __repr__(self) -> str:
        return f"Lake({self.url!r})"

    # -- paths ---------------------------------------------------------------

    def path(self, table: str, **keys: str) -> str:
        """Return the path of a partition's file inside the filesystem.

        Raises:
            InputError: the table is unknown or a partition key is missing.
        """
        spec = spec_of(table)
        if set(keys) != set(spec.partition_keys):
            raise InputError(
                f"table {table} is partitioned by {', '.join(spec.partition_keys)},"
                f" got {', '.join(keys) or 'nothing'}"
            )
        parts = [f"{key}={_safe(keys[key])}" for key in spec.partition_keys]
        return "/".join([self.root, table, *parts, "part.parquet"])

    def partitions(self, table: str, **keys: str) -> list[dict[str, str]]:
        """Return the keys of the partitions that exist, sorted, filtered by ``keys``."""
        spec = spec_of(table)
        base = f"{self.root}/{table}"
        levels = [
            f"{key}={_safe(keys[key]) if key in keys else '*'}" for key in spec.partition_keys
        ]
        found = []
        for path in self.fs.glob("/".join([base, *levels, "part.parquet"])):
            parts = str(path).split("/")[-len(levels) - 1 : -1]
            found.append(dict(part.split("=", 1) for part in parts))
        return sorted(found, key=lambda part: tuple(part.values()))

    def days(self, table: str, **keys: str) -> list[str]:
        """Return the days for which ``table`` has a partition, sorted."""
        return sorted({part["day"] for part in self.partitions(table, **keys)})

    # -- blobs and files -------------------------------------------------------

    def put_bytes(self, name: str, data: bytes) -> None:
        """Write a file below the lake's root so that it appears whole or not at all.

        Raises:
            InputError: the lake is not writable.
        """
        self.put_stream(name, io.BytesIO(data))

    def put_stream(self, name: str, data: IO[bytes]) -> None:
        """Write a file from a stream of bytes, as :meth:`put_bytes`.

        Raises:
            InputError: the lake is not writable.
        """
        path = f"{self.root}/{name}"
        try:
            if not self.local:
                self.fs.pipe_file(path, data.read())
                return
            target = Path(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
            try:
                with temporary.open("wb") as file:
                    shutil.copyfileobj(data, file, 1 << 20)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"lake {self.url} is not writable: {_reason(error)}") from error

    def get_bytes(self, name: str) -> bytes:
        """Read a file below the lake's root.

        Raises:
            FileNotFoundError: there is no such file.
        """
        data: bytes = self.fs.cat_file(f"{self.root}/{name}")
        return data

    def open(self, name: str) -> Any:
        """Open a file below the lake's root for reading bytes, as a context manager.

        Raises:
            FileNotFoundError: there is no such file.
        """
        return self.fs.open(f"{self.root}/{name}", "rb")

    def exists(self, name: str) -> bool:
        """Say whether a file exists below the lake's root."""
        return bool(self.fs.exists(f"{self.root}/{name}"))

    def check_writable(self) -> None:
        """Prove that the lake can be written, and leave nothing behind.

        A local lake that does not exist yet is not created by the check.

        Raises:
            InputError: it cannot be written.
        """
        if self.local:
            folder = Path(self.root)
            while not folder.exists():
                folder = folder.parent
            if not folder.is_dir():
                raise InputError(f"lake {self.url} is not writable: {folder} is not a folder")
            probe = folder / f".probe-{uuid.uuid4().hex}"
            try:
                probe.touch()
            except OSError as error:
                raise InputError(f"lake {self.url} is not writable: {_reason(error)}") from error
            probe.unlink()
        else:
            name = f".probe-{uuid.uuid4().hex}"
            self.put_bytes(name, b"")
            self.fs.rm_file(f"{self.root}/{name}")

    # -- tables ----------------------------------------------------------------

    def write(self, table: str, data: pa.Table | Sequence[dict[str, Any]], **keys: str) -> int:
        """Replace one partition atomically; return the bytes written.

        Raises:
            InputError: wrong keys, unknown columns, a schema that differs, or a lake
                that is not writable.
        """
        spec = spec_of(table)
        arrow = data if isinstance(data, pa.Table) else table_from_rows(spec, data)
        if not arrow.schema.equals(spec.schema):
            raise InputError(f"table {table}: the columns to write differ from its schema")
        # Metadata of a pyarrow schema is not part of equality; write the table's own.
        arrow = arrow.cast(spec.schema)
        payload = encode_parquet(arrow, compact=spec.compact)
        self.put_bytes(self.path(table, **keys).removeprefix(self.root + "/"), payload)
        return len(payload)

    def writer(self, table: str, **keys: str) -> "PartitionWriter":
        """Return a writer that replaces one partition piece by piece, atomically at the end.

        Raises:
            InputError: wrong keys, or a lake that is not writable.
        """
        return PartitionWriter(self, spec_of(table), self.path(table, **keys))

    def read(
        self,
        table: str,
        *,
        days: Iterable[str] | None = None,
        columns: Sequence[str] | None = None,
        **keys: str,
    ) -> pa.Table:
        """Read partitions into one table; partition keys are appended as columns.

        Args:
            table: the table's name.
            days: only these days (for tables with a ``day``); all when ``None``.
            columns: only these columns of the file; partition keys come in any case.
            keys: fixed partition keys, for example ``teacher="qwen"``.

        A table without a partition gives an empty table with the right columns.
        Columns that a partition written by an older version lacks are null.
        """
        spec = spec_of(table)
        wanted = None if days is None else set(days)
        names = list(spec.schema.names if columns is None else columns)
        schema = pa.schema([spec.schema.field(name) for name in names])
        pieces = []
        for part in self.partitions(table, **keys):
            if wanted is not None and part.get("day") not in wanted:
                continue
            with self.fs.open(self.path(table, **part), "rb") as file:
                reader = pq.ParquetFile(file)
                have = set(reader.schema_arrow.names)
                piece = reader.read(columns=[name for name in names if name in have])
            arrays = [
                piece.column(f.name).cast(f.type)
                if f.name in have
                else pa.nulls(piece.num_rows, f.type)
                for f in schema
            ]
            piece = pa.Table.from_arrays(arrays, schema=schema)
            for key in spec.partition_keys:
                piece = piece.append_column(key, constant(part[key], len(piece)))
            pieces.append(piece)
        if pieces:
            return pa.concat_tables(pieces)
        extra = [pa.field(key, pa.string()) for key in spec.partition_keys]
        return _empty(pa.schema([*schema, *extra]))

    def rows(self, table: str, **kwargs: Any) -> list[dict[str, Any]]:
        """Read like :meth:`read`, as dictionaries with JSON message columns decoded."""
        return rows_from_table(self.read(table, **kwargs))

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one SQL query over the lake's views and return its rows.

        Args:
            sql: DuckDB SQL; see :meth:`duckdb` for the views.
            parameters: values for the query's ``?`` marks.
        """
        # A connection that is still open when Python ends makes duckdb report leaks.
        with self.duckdb() as con:
            rows: list[tuple[Any, ...]] = con.execute(sql, list(parameters)).fetchall()
            return rows

    def sql_source(self, table: str, **keys: str) -> str:
        """Return the DuckDB table function that reads one partition, without its keys.

        For connections of :meth:`duckdb`; a view has to list and open all partitions.
        """
        path = f"{self._prefix()}{self.path(table, **keys)}".replace("'", "''")
        return f"read_parquet('{path}', hive_partitioning=false)"

    def _prefix(self) -> str:
        if self.local:
            return ""
        protocol = self.fs.protocol
        return f"{protocol if isinstance(protocol, str) else protocol[0]}://"

    def duckdb(self) -> "duckdb.DuckDBPyConnection":
        """Return an in-memory DuckDB with one view for each table of the lake.

        A table without a partition is a view with its columns and no row. Partition
        keys are text columns.
        """
        import duckdb  # 20 MB that a parse does not need

        con = duckdb.connect()
        prefix = self._prefix()
        if not self.local:
            con.register_filesystem(self.fs)
        for name, spec in TABLES.items():
            levels = "/".join(f"{key}=*" for key in spec.partition_keys)
            if self.partitions(name):
                glob = f"{prefix}{self.root}/{name}/{levels}/part.parquet".replace("'", "''")
                con.execute(
                    f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{glob}',"
                    " hive_partitioning=true, hive_types_autocast=false, union_by_name=true)"
                )
            else:
                empty = self.read(name)
                con.register(f"_empty_{name}", _plain(empty))
                con.execute(f"CREATE VIEW {name} AS SELECT * FROM _empty_{name}")
        return con


class PartitionWriter:
    """Writes one partition in pieces; :meth:`commit` makes it visible, whole.

    The pieces go to a temporary file: beside the partition on a local disk, in the
    machine's temporary folder for a bucket. A writer that is dropped leaves nothing.
    """

    def __init__(self, lake: Lake, spec: TableSpec, path: str) -> None:
        self.lake, self.spec, self.path = lake, spec, path
        self.rows = 0
        try:
            folder = None
            if lake.local:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                folder = str(Path(path).parent)
            # The name must outlive the handle until it is renamed.
            self._file = tempfile.NamedTemporaryFile(  # noqa: SIM115
                dir=folder, prefix=".part.parquet.", suffix=".tmp", delete=False
            )
        except OSError as error:
            raise InputError(f"lake {lake.url} is not writable: {_reason(error)}") from error
        self._parquet = _parquet_writer(self._file, spec.schema, compact=spec.compact)

    def write(self, table: pa.Table) -> None:
        """Append rows; the table has the partition's schema."""
        if table.num_rows:
            self.rows += table.num_rows
            if self.spec.compact:
                table = table.replace_schema_metadata()
                table = table.cast(self._parquet.schema)
            rows = _group_rows(table, compact=self.spec.compact)
            self._parquet.write_table(table, row_group_size=rows)

    def commit(self) -> None:
        """Make the partition visible.

        Raises:
            InputError: the lake is not writable.
        """
        try:
            self._parquet.close()
            self._file.flush()
            if self.lake.local:
                os.fsync(self._file.fileno())
                self._file.close()
                Path(self._file.name).chmod(0o644)
                Path(self._file.name).replace(self.path)
            else:
                self._file.close()
                self.lake.fs.put_file(self._file.name, self.path)
        except OSError as error:
            raise InputError(f"lake {self.lake.url} is not writable: {_reason(error)}") from error
        finally:
            self.discard()

    def discard(self) -> None:
        """Drop what was written and not committed."""
        self._parquet.close()
        self._file.close()
        Path(self._file.name).unlink(missing_ok=True)


def spec_of(table: str) -> TableSpec:
    """Return the table's spec.

    Raises:
        InputError: there is no such table.
    """
    if table not in TABLES:
        raise InputError(f"unknown table {table!r}; known: {', '.join(TABLES)}")
    return TABLES[table]


def _empty(schema: pa.Schema) -> pa.Table:
    """``Schema.empty_table`` for schemas with ``list<arrow.json>``, which pyarrow refuses."""
    columns = []
    for field in schema:
        plain = pa.list_(pa.string()) if field.type == pa.list_(pa.json_()) else field.type
        columns.append(column([], plain).cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _plain(table: pa.Table) -> pa.Table:
    """Storage types in place of extension types, which DuckDB cannot register empty."""
    fields = [
        pa.field(f.name, pa.list_(pa.string()) if f.type == pa.list_(pa.json_()) else f.type)
        for f in table.schema
    ]
    return pa.schema(fields).empty_table()


def _reason(error: OSError) -> str:
    """One line of why a write failed; a bucket's own message has a page of debugging."""
    return error.strerror or str(error).partition("\n")[0][:200] or type(error).__name__


def _safe(value: str) -> str:
    if not value or any(char in value for char in "/\\=*?[]") or value.startswith("."):
        raise InputError(f"{value!r} cannot be a partition value")
    return value


def _register_obstore() -> None:
    try:
        from obstore.fsspec import register
    except ImportError as error:
        raise InputError(
            "a bucket as lake needs: pip install 'composer-pipeline[cloud]'"
        ) from error
    register(["s3", "gs", "az"])
