"""The files of the published dataset: configurations, paths, shards, and writing their rows."""

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.files import make_folder, writing
from composer_pipeline.lake.parquet import column, parquet_writer, table_from_rows
from composer_pipeline.lake.place import UNFINISHED
from composer_pipeline.lake.schema import JSON_LIST, TABLES
from composer_pipeline.lake.store import Lake

#: Configuration of the published dataset to table of the lake; the first is the default.
CONFIGS: dict[str, str] = {
    "pairs": "dataset_pairs",
    "pairs_8k": "dataset_pairs_8k",
    "groups": "dataset_groups",
    "hints": "dataset_hints",
    "sft": "dataset_sft",
    "successes": "dataset_successes",
    "kto": "dataset_kto",
    "replies": "dataset_replies",
    "drops": "dataset_drops",
}

#: Size in bytes above which a file is split.
SHARD_BYTES = 256 << 20
#: Rows are written to disk when about this many bytes have come together. Where a session is cut
#: depends on the session alone, so its row groups are the same whatever came before.
PIECE_BYTES = 8 << 20
#: Decoded bytes of a row group, unless one row has more; the Hub's viewer refuses 300 MB.
ROW_GROUP_BYTES = 32 << 20

_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


def file_path(config: str, split: str, shard: int = 0, shards: int = 1) -> str:
    """Return the path of a split's file in the repository."""
    part = "" if shards == 1 else f"-{shard:05d}-of-{shards:05d}"
    return f"data/{config}/{split}{part}.parquet"


def shard_bounds(footer: pq.FileMetaData, size: int) -> list[tuple[int, int]]:
    """Return the (first, end) row groups of each file into which a partition is split."""
    if size <= SHARD_BYTES or footer.num_row_groups < 2:
        return [(0, footer.num_row_groups)]
    found, first, held = list[tuple[int, int]](), 0, 0
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        more = sum(group.column(i).total_compressed_size for i in range(group.num_columns))
        if number > first and held + more > SHARD_BYTES:
            found.append((first, number))
            first, held = number, 0
        held += more
    return [*found, (first, footer.num_row_groups)]


def write_shard(lake: Lake, table: str, name: str, part: Sequence[int], out: IO[bytes]) -> None:
    """Write the (first, end) row groups of the partition file ``name`` as a file of their own."""
    with lake.open(name) as file:
        reader = pq.ParquetFile(file)
        schema = TABLES[table].schema
        with parquet_writer(out, schema, compact=False, grouped=True) as writer:
            for number in range(*part):
                rows = reader.read_row_group(number, use_threads=False)  # of a Python file
                writer.write_table(rows.cast(schema), row_group_size=len(rows))


class Pieces:
    """Rows on disk by (table, day, session), in their order of arrival; a context manager."""

    def __init__(self, lake: Lake) -> None:
        self._place = f"lake {lake.url}"
        if lake.local:
            self._folder = Path(lake.root) / UNFINISHED
            shutil.rmtree(self._folder, ignore_errors=True)  # of a build that was killed
            with writing(self._place):
                make_folder(self._folder)
        else:
            self._folder = Path(tempfile.mkdtemp(prefix="dataset-build."))
        self._waiting: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
        self._waiting_size = 0
        self._current: tuple[str, str] = ("", "")  # day and session of the last row
        self._current_size = 0
        self._files: dict[tuple[str, str, str], list[Path]] = defaultdict(list)
        self._count = 0

    def __enter__(self) -> "Pieces":
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, table: str, day: str, row: dict[str, Any]) -> None:
        """Add a row with its ``session_id``; columns of messages hold JSON texts."""
        session = row["session_id"]
        if self._current != (day, session):
            if self._waiting_size > PIECE_BYTES:
                self.flush()
            self._current, self._current_size = (day, session), 0
        self._waiting[table, day, session].append(row)
        size = sum(map(len, row.get("prompt") or ()))
        self._waiting_size += size
        self._current_size += size
        if self._current_size > PIECE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the waiting rows."""
        for key, rows in self._waiting.items():
            plain = _plain(table_from_rows(TABLES[key[0]], rows))
            path = self._folder / f"{self._count:08d}.arrow"
            self._count += 1
            with (
                writing(self._place),
                pa.ipc.new_file(str(path), plain.schema, options=_OPTIONS) as file,
            ):
                file.write_table(plain)
            self._files[key].append(path)
        self._waiting.clear()
        self._waiting_size = self._current_size = 0

    def keys(self, table: str) -> list[tuple[str, str]]:
        """Return the (day, session) of a table's rows, sorted."""
        return sorted(key[1:] for key in self._files if key[0] == table)

    def read(self, table: str, day: str, session: str) -> Iterator[pa.Table]:
        """Yield the rows of a session and day, some megabytes at a time."""
        schema = TABLES[table].schema
        for path in self._files[table, day, session]:
            with pa.memory_map(str(path)) as source:
                yield pa.ipc.open_file(source).read_all().cast(schema)


def _plain(table: pa.Table) -> pa.Table:
    """Return a table whose messages are text: Arrow files need not know of JSON."""
    fields = [
        pa.field(f.name, pa.list_(pa.string()) if f.type == JSON_LIST else f.type)
        for f in table.schema
    ]
    return table.cast(pa.schema(fields))


def row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of tables in row groups of at most :data:`ROW_GROUP_BYTES`, or of one row."""
    waiting: list[pa.Table] = []
    size = 0
    for part in (part for table in tables for part in _halves(table)):
        if waiting and size + part.nbytes > ROW_GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting, size = [], 0
        waiting.append(part)
        size += part.nbytes
    if waiting:
        yield pa.concat_tables(waiting)


def _halves(table: pa.Table) -> Iterator[pa.Table]:
    """Yield parts of a table that are no larger than a row group, where rows can be divided."""
    if table.nbytes > ROW_GROUP_BYTES and len(table) > 1:
        middle = len(table) // 2
        yield from _halves(table.slice(0, middle))
        yield from _halves(table.slice(middle))
    elif len(table):
        yield table


def filled(table: pa.Table, name: str, value: str) -> pa.Table:
    """Return a table with one value in a whole column."""
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at), column([value] * len(table), pa.string()))
