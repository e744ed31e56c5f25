"""Reading and writing the lake: one Parquet file a partition, replaced atomically.

A partition becomes visible in one step: a rename on a local disk, one PUT in a bucket. The same
table gives the same bytes.
"""

import glob
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from errno import EISDIR
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.errors import InputError
from composer_pipeline.files import make_folder, replacing, writing
from composer_pipeline.lake.parquet import (
    FROM_ARCHIVE,
    DamagedFile,
    PartitionWriter,
    connect,
    constant,
    cut_short,
    empty_table,
    encode_parquet,
    plain_table,
    querying,
    read_batches,
    read_columns,
    read_through,
    reading,
    rows_from_table,
    table_from_rows,
)
from composer_pipeline.lake.place import (
    BUILD,
    MARKER,
    address,
    bucket_lock,
    check_bucket,
    check_day,
    check_days,
    check_folder,
    file_system,
    folder_lock,
    holds_lake,
    is_day,
    partition_folders,
    remove_empty,
    safe_value,
)
from composer_pipeline.lake.schema import TABLES, spec_of

if TYPE_CHECKING:
    import duckdb

#: Up to this many days are looked up one by one instead of listing all.
FEW_DAYS = 8


class Lake:
    """A folder or a bucket of Parquet tables.

    Args:
        url: a local path, or any fsspec URL (``s3://``, ``gs://`` and ``az://`` go
            through obstore's fsspec adapter and need the ``cloud`` extra). Credentials
            and the endpoint come from the environment, as obstore reads them: for S3
            ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_REGION``,
            ``AWS_ENDPOINT_URL``, and ``AWS_ALLOW_HTTP=true`` for a plain-HTTP endpoint.
        storage_options: passed to the filesystem; never printed.

    Methods that write raise :class:`StorageError` where the lake cannot be written and leave what
    was there; methods that read raise :class:`DamagedFile` where a file is not as it was written.
    """

    MARKER, BUILD, FROM_ARCHIVE = MARKER, BUILD, FROM_ARCHIVE

    def __init__(self, url: str | os.PathLike[str] = "lake", **storage_options: Any) -> None:
        self.url, self.local = address(os.fspath(url))
        self.fs: Any
        self.fs, self.root = file_system(self.url, storage_options)
        self._left_out: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Lake({self.url!r})"

    def is_there(self) -> bool:
        """Return True if the place holds a lake; a folder of other things is not one."""
        return holds_lake(self.fs, self.root, self.url)

    def damaged_file(self, day: str) -> str:
        """Return a truncated file of a day's traces, or an empty string."""
        for table in FROM_ARCHIVE if self.local else ():
            if cut_short(Path(self.path(table, day=day))):
                return self.file_name(table, day=day)
        return ""

    def leave_out_damaged(self) -> dict[str, str]:
        """Hide the days whose traces have a damaged file, and return them with the file."""
        if not self.local:  # a PUT is never partial
            return {}
        days = {day for table in FROM_ARCHIVE for day in self.days(table)}
        found = {day: self.damaged_file(day) for day in sorted(days)}
        self._left_out = {day: file for day, file in found.items() if file}
        return dict(self._left_out)

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
        if "day" in keys:
            check_day(keys["day"], f"table {table}: day")
        parts = [f"{key}={safe_value(keys[key])}" for key in spec.partition_keys]
        return "/".join([self.root, table, *parts, "part.parquet"])

    def file_name(self, table: str, **keys: str) -> str:
        """Return :meth:`path` relative to the lake's root, as :meth:`open` takes it."""
        return self.path(table, **keys).removeprefix(self.root + "/")

    def partitions(self, table: str, **keys: str) -> list[dict[str, str]]:
        """Return the keys of the partitions that exist, sorted, filtered by ``keys``."""
        spec = spec_of(table)
        levels = [
            f"{key}={safe_value(keys[key])}" if key in keys else f"{key}=*"
            for key in spec.partition_keys
        ]
        found = []
        for parts in partition_folders(self.fs, f"{self.root}/{table}", levels):
            keys_of = dict(part.split("=", 1) for part in parts)
            day = keys_of.get("day")
            if day is not None and not is_day(day):  # verify finds it
                continue
            if table not in FROM_ARCHIVE or day not in self._left_out:
                found.append(keys_of)
        return sorted(found, key=lambda part: tuple(part.values()))

    def days(self, table: str, **keys: str) -> list[str]:
        """Return the days for which ``table`` has a partition, sorted."""
        return sorted({part["day"] for part in self.partitions(table, **keys)})

    def chosen_days(self, table: str, days: Iterable[str] | None) -> list[str]:
        """Return days that a caller gives, checked, sorted and each once; else a table's.

        Raises:
            InputError: the days are one string, or one is no date of the form ``YYYY-MM-DD``.
        """
        return self.days(table) if days is None else check_days(days)

    # -- blobs and files -------------------------------------------------------

    def put_bytes(self, name: str, data: bytes) -> None:
        """Write a file below the lake's root so that it appears whole or not at all."""
        self.put_stream(name, io.BytesIO(data))

    def put_stream(self, name: str, data: IO[bytes]) -> None:
        """Write a file from a stream of bytes, as :meth:`put_bytes`."""
        path = f"{self.root}/{name}"
        if self.local:
            with replacing(Path(path), f"lake {self.url}") as stream:
                shutil.copyfileobj(data, stream, 1 << 20)
            return
        with writing(f"lake {self.url}"):
            self.fs.pipe_file(path, data.read())

    def get_bytes(self, name: str) -> bytes:
        """Read a file below the lake's root."""
        data: bytes = self.fs.cat_file(f"{self.root}/{name}")
        return data

    def open(self, name: str) -> Any:
        """Open a file below the lake's root for reading bytes, as a context manager."""
        return self.fs.open(f"{self.root}/{name}", "rb")

    def exists(self, name: str) -> bool:
        """Return True if a file exists below the lake's root."""
        return bool(self.fs.exists(f"{self.root}/{name}"))

    def check_writable(self) -> None:
        """Check that the lake can be written, and leave nothing behind.

        A local lake that does not exist yet is not created by the check.

        Raises:
            InputError: a file is where its folder should be.
        """
        if self.local:
            check_folder(Path(self.root), f"lake {self.url}")
        else:
            check_bucket(self.fs, self.root, f"lake {self.url}")

    def locked(
        self, name: str, waiting: Callable[[], None] = lambda: None
    ) -> AbstractContextManager[None]:
        """Hold one of the lake's locks for a block, over processes and machines.

        For a stage that reads what it then replaces. Not reentrant.

        Args:
            name: of the lock.
            waiting: called once if another process holds it.
        """
        if self.local:
            return folder_lock(Path(self.root), name, waiting)
        return bucket_lock(self.url, name, waiting)

    # -- tables ----------------------------------------------------------------

    def tables(self) -> dict[str, int]:
        """Return the rows of each table that has a partition, by name."""
        rows: dict[str, int] = {}
        for name in TABLES:
            for part in self.partitions(name):
                with self._file(name, part) as file:
                    rows[name] = rows.get(name, 0) + pq.read_metadata(file).num_rows
        return rows

    def write(self, table: str, data: pa.Table | Sequence[dict[str, Any]], **keys: str) -> int:
        """Replace one partition atomically; return the bytes written.

        Raises:
            InputError: wrong keys, unknown columns or a schema that differs.
        """
        spec = spec_of(table)
        arrow = data if isinstance(data, pa.Table) else table_from_rows(spec, data)
        if not arrow.schema.equals(spec.schema):
            raise InputError(f"table {table}: the columns to write differ from its schema")
        # Metadata of a pyarrow schema is not part of equality; write the table's own.
        arrow = arrow.cast(spec.schema)
        payload = encode_parquet(arrow, compact=spec.compact, grouped=spec.grouped)
        self.put_bytes(self.file_name(table, **keys), payload)
        return len(payload)

    def delete(self, table: str, **keys: str) -> None:
        """Remove one partition, if it exists, and its folders that are then empty."""
        self.remove(self.file_name(table, **keys))
        if self.local:
            remove_empty(Path(self.path(table, **keys)).parent, Path(self.root))

    def remove(self, name: str) -> None:
        """Remove a file below the lake's root, if it exists."""
        with writing(f"lake {self.url}"), suppress(FileNotFoundError):
            self.fs.rm_file(f"{self.root}/{name}")

    def writer(self, table: str, **keys: str) -> PartitionWriter:
        """Return a writer that replaces one partition piece by piece, atomically at the end.

        Raises:
            InputError: wrong keys.
        """
        bucket = None if self.local else self.fs
        place = f"lake {self.url}"
        return PartitionWriter(place, spec_of(table), self.path(table, **keys), bucket)

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
            columns: only these columns of the file; partition keys are always added.
            keys: fixed partition keys, for example ``teacher="qwen"``.

        A table without a partition gives an empty table with the right columns.
        Columns that a partition lacks are null.
        """
        spec = spec_of(table)
        wanted = None if days is None else set(days)
        names = list(spec.schema.names if columns is None else columns)
        schema = pa.schema([spec.schema.field(name) for name in names])
        pieces = []
        for part in self._parts(table, wanted, keys):
            try:
                piece = self._piece(table, part, schema)
            except DamagedFile:
                if self.local:
                    raise
                # Several requests read an object, and it may have been replaced between two.
                piece = self._piece(table, part, schema)
            for key in spec.partition_keys:
                piece = piece.append_column(key, constant(part[key], len(piece)))
            pieces.append(piece)
        if pieces:
            return pa.concat_tables(pieces)
        extra = [pa.field(key, pa.string()) for key in spec.partition_keys]
        return empty_table(pa.schema([*schema, *extra]))

    def _piece(self, table: str, part: dict[str, str], schema: pa.Schema) -> pa.Table:
        """Return the columns of ``schema`` of one partition's file."""
        with self._file(table, part) as file:
            return read_columns(file, schema, threads=self.local)

    def _parts(
        self, table: str, days: set[str] | None, keys: dict[str, str]
    ) -> list[dict[str, str]]:
        """Return the partitions to read."""
        if days is None or len(days) > FEW_DAYS or "day" not in spec_of(table).partition_keys:
            parts = self.partitions(table, **keys)
            return [part for part in parts if days is None or part.get("day") in days]
        found = [part for day in days for part in self.partitions(table, **{**keys, "day": day})]
        return sorted(found, key=lambda part: [*part.values()])

    def check_file(self, table: str, **keys: str) -> int:
        """Read every byte of a partition; return its rows."""
        with self._file(table, keys) as file:
            return read_through(file, threads=self.local)

    @contextmanager
    def _file(self, table: str, part: dict[str, str]) -> Iterator[Any]:
        """Open a partition's file; errors name it."""
        path, shown = self.path(table, **part), self.file_name(table, **part)
        # Threads of Arrow that hold an object of Python's can abort a process that ends: a file
        # on disk is opened by Arrow itself, and one in a bucket is read by one thread.
        with (
            reading(self.url, shown, table, part.get("day", "")),
            pa.OSFile(os.fsencode(path)) if self.local else self.fs.open(path, "rb") as file,
        ):
            yield file

    def rows(self, table: str, **kwargs: Any) -> list[dict[str, Any]]:
        """Read like :meth:`read`, as dictionaries with JSON message columns decoded."""
        return rows_from_table(self.read(table, **kwargs))

    def iter_rows(
        self, table: str, *, columns: Sequence[str] | None = None, **keys: str
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows of :meth:`rows` without holding more than a row group of them.

        Args:
            table: the table's name.
            columns: only these columns of the file.
            keys: fixed partition keys, for example ``split="train"``.
        """
        for piece, part in self.batches(table, columns, 64, **keys):
            for row in rows_from_table(piece):
                yield {**row, **part}

    def batches(
        self, table: str, columns: Sequence[str] | None, rows: int, **keys: str
    ) -> Iterator[tuple[pa.Table, dict[str, str]]]:
        """Yield tables of at most ``rows`` rows, each with its partition's keys."""
        spec = spec_of(table)
        schema = pa.schema([spec.schema.field(n) for n in columns or spec.schema.names])
        for part in self.partitions(table, **keys):
            with self._file(table, part) as file:
                for piece in read_batches(file, schema, rows, threads=self.local):
                    yield piece, part

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one SQL query over the lake's views and return its rows.

        Args:
            sql: DuckDB SQL; see :meth:`duckdb` for the views.
            parameters: values for the query's ``?`` marks.
        """
        return self._executed(sql, parameters)[1]

    def select(self, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Return the rows of :meth:`query` by the names of their columns."""
        names, rows = self._executed(sql, parameters)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _executed(
        self, sql: str, parameters: Sequence[Any]
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        # A connection that is still open when Python ends makes duckdb report leaks.
        with querying(self.url), self.duckdb(named=sql) as con:
            found = con.execute(sql, list(parameters))
            return [column[0] for column in found.description or ()], found.fetchall()

    def _prefix(self) -> str:
        if self.local:
            return ""
        protocol = self.fs.protocol
        return f"{protocol if isinstance(protocol, str) else protocol[0]}://"

    def duckdb(self, *, named: str = "", alike: bool = False) -> "duckdb.DuckDBPyConnection":
        """Return an in-memory DuckDB with one view for each table of the lake.

        A table without a partition is a view with its columns and no row. Partition
        keys are text columns.

        Args:
            named: SQL; only the tables that it names get a view, which opens every file of a table.
            alike: a query fails where a table's files differ in a column that it names. Without
                it the column is null there.
        """
        # Listed once: another process may write a table's first partition meanwhile.
        words = set(re.findall(r"\w+", named)) or TABLES.keys()
        files = {name: self._files_of(name) for name in TABLES if name in words}
        empty = {
            name: plain_table(self.read(name).schema) for name, paths in files.items() if not paths
        }
        return connect(self.fs if not self.local else None, files, empty, alike)

    def _files_of(self, table: str) -> list[str]:
        """Return the paths or patterns of a table's files, as DuckDB reads them."""
        parts = self.partitions(table)
        if self._left_out and table in FROM_ARCHIVE:
            return [self._prefix() + glob.escape(self.path(table, **part)) for part in parts]
        any_of = {"day": "????-??-??"}
        keys = TABLES[table].partition_keys
        levels = "/".join(f"{key}={any_of.get(key, '*')}" for key in keys)
        pattern = f"{self._prefix()}{glob.escape(self.root)}/{table}/{levels}/part.parquet"
        return [pattern] if parts else []


def doubled_states(lake: Lake) -> list[str]:
    """Return the state ids that occur twice, over all days."""
    return _ids(lake, "SELECT state_id FROM states GROUP BY state_id HAVING count(*) > 1")


def incomplete_prefixes(lake: Lake) -> list[str]:
    """Return states whose chain is too short, and chains that lack a message."""
    return _ids(
        lake,
        """
        SELECT s.state_id FROM states s LEFT JOIN chains c USING (chain_id, day)
        WHERE s.n_messages + CAST(s.action IS NULL AS INT) > coalesce(len(c.messages), 0)
        UNION ALL
        SELECT u.chain_id FROM (SELECT chain_id, day, unnest(messages) AS n FROM chains) u
        ANTI JOIN messages m USING (n, day)
        """,
    )


def pairs_without_difference(lake: Lake) -> list[str]:
    """Return the pairs that prefer an action to itself."""
    return _ids(
        lake, "SELECT pair_id FROM pairs WHERE CAST(chosen AS VARCHAR) = CAST(rejected AS VARCHAR)"
    )


def groups_in_two_splits(lake: Lake) -> list[str]:
    """Return the groups and sessions that are in two splits of the dataset."""
    return _ids(
        lake,
        """
        WITH every AS (
          SELECT group_id, session_id, split FROM dataset_pairs
          UNION ALL SELECT group_id, session_id, split FROM dataset_groups
          UNION ALL SELECT group_id, session_id, split FROM dataset_successes
          UNION ALL SELECT group_id, session_id, split FROM dataset_hints)
        SELECT group_id FROM every GROUP BY group_id HAVING count(DISTINCT split) > 1
        UNION SELECT session_id FROM every GROUP BY session_id HAVING count(DISTINCT split) > 1
        """,
    )


def _ids(lake: Lake, sql: str) -> list[str]:
    return [str(row[0]) for row in lake.query(sql)]


#: Lists the files outside of the lake that hold its rows, so that ``forget`` reaches them.
EXPORTS = "exports.json"


def check_outside(lake: Lake, path: Path, what: str) -> None:
    """Refuse a file inside the lake, but for reports; ``what`` names the option."""
    root, real = Path(lake.root).resolve(), path.expanduser().resolve()
    if lake.local and real.is_relative_to(root) and not real.is_relative_to(root / "reports"):
        raise InputError(f"{what} {path} is inside lake {lake.url}: write it elsewhere")


def remember_exports(lake: Lake, paths: Iterable[Path], what: str) -> None:
    """List files before they are written, and make their folders; ``what`` names the option."""
    absolute = {path.absolute() for path in paths}
    for path in absolute:
        check_outside(lake, path, what)
        with writing(f"{what} {path}"):
            make_folder(path.parent)
            if path.is_dir():
                raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
    known = set(json.loads(lake.get_bytes(EXPORTS))) if lake.exists(EXPORTS) else set()
    if more := set(map(str, absolute)) - known:
        lake.put_bytes(EXPORTS, json.dumps(sorted(known | more), indent=1).encode())


def exports(lake: Lake) -> list[Path]:
    """Return the listed files that still exist."""
    if not lake.exists(EXPORTS):
        return []
    return [path for path in map(Path, json.loads(lake.get_bytes(EXPORTS))) if path.is_file()]


def prune_exports(lake: Lake) -> None:
    """Take files that no longer exist off the list: a name may tell what was in one."""
    if lake.exists(EXPORTS):
        left = sorted(map(str, exports(lake)))
        lake.put_bytes(EXPORTS, json.dumps(left, indent=1).encode())
