"""The configurations of the published dataset, and where their files are.

Belongs here: which table of the lake a configuration is, and the path of a file in the
repository. Does not belong here: what a column means (``lake.tables``), what the card says.
"""

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    "replies": "dataset_replies",
    "drops": "dataset_drops",
}


def file_path(config: str, split: str, shard: int = 0, shards: int = 1) -> str:
    """Return the path of a split's file in the repository.

    A single file keeps its simple name whatever is in it; of several each says which it is.
    """
    part = "" if shards == 1 else f"-{shard:05d}-of-{shards:05d}"
    return f"data/{config}/{split}{part}.parquet"


#: Bytes of a file from which on it is cut.
SHARD_BYTES = 256 << 20


def cuts(about: pq.FileMetaData, size: int) -> list[tuple[int, int]]:
    """Return the (first, end) row groups of each file that a partition becomes.

    Args:
        about: its footer.
        size: its bytes.
    """
    whole = [(0, about.num_row_groups)]
    if size <= SHARD_BYTES or about.num_row_groups < 2:
        return whole
    found, first, held = list[tuple[int, int]](), 0, 0
    for number in range(about.num_row_groups):
        group = about.row_group(number)
        more = sum(group.column(i).total_compressed_size for i in range(group.num_columns))
        if number > first and held + more > SHARD_BYTES:
            found.append((first, number))
            first, held = number, 0
        held += more
    return [*found, (first, about.num_row_groups)]


def write_part(lake: Lake, table: str, name: str, part: tuple[int, int], out: IO[bytes]) -> None:
    """Write some row groups of a partition as a file of their own; the same give the same bytes.

    Args:
        lake: the lake.
        table: whose partition it is.
        name: of the partition's file, below the lake's root.
        part: its first row group, and the one behind its last.
        out: gets the file.
    """
    with lake.open(name) as file:
        reader = pq.ParquetFile(file)
        schema = TABLES[table].schema
        with parquet_writer(out, schema, compact=False, grouped=True) as writer:
            for number in range(*part):
                rows = reader.read_row_group(number, use_threads=False)  # of a Python file
                writer.write_table(rows.cast(schema), row_group_size=len(rows))


#: Rows are written to disk when about so many bytes of them have come together. Where a session is
#: parted depends on the session alone: its row groups are the same, whatever came before.
PIECE_BYTES = 8 << 20

_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")
Key = tuple[str, str, str]


class Pieces:
    """Rows by (table, day, session), in the order in which they came; as a context manager.

    Args:
        lake: what a build that was killed left in it goes first.
    """

    def __init__(self, lake: Lake) -> None:
        self._place = f"lake {lake.url}"
        if lake.local:
            self._folder = Path(lake.root) / UNFINISHED
            shutil.rmtree(self._folder, ignore_errors=True)
            with writing(self._place):
                make_folder(self._folder)
        else:
            self._folder = Path(tempfile.mkdtemp(prefix="dataset-build."))
        self._waiting: dict[Key, list[dict[str, Any]]] = defaultdict(list)
        self._size = 0
        self._of: tuple[str, str] = ("", "")  # the session that comes in
        self._its_size = 0
        self._files: dict[Key, list[Path]] = defaultdict(list)
        self._count = 0

    def __enter__(self) -> "Pieces":
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, table: str, day: str, row: dict[str, Any]) -> None:
        """Add a row with its ``session_id``; columns of messages hold JSON texts."""
        session = row["session_id"]
        if self._of != (day, session):
            if self._size > PIECE_BYTES:
                self.flush()
            self._of, self._its_size = (day, session), 0
        self._waiting[table, day, session].append(row)
        size = sum(map(len, row.get("prompt") or ()))
        self._size, self._its_size = self._size + size, self._its_size + size
        if self._its_size > PIECE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        for key, rows in self._waiting.items():
            table = table_from_rows(TABLES[key[0]], rows)
            path = self._folder / f"{self._count:08d}.arrow"
            self._count += 1
            plain = _plain(table)
            with (
                writing(self._place),
                pa.ipc.new_file(str(path), plain.schema, options=_OPTIONS) as file,
            ):
                file.write_table(plain)
            self._files[key].append(path)
        self._waiting.clear()
        self._size = self._its_size = 0

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
    """Return a table whose messages are text; files need not know of JSON."""
    fields = [
        pa.field(f.name, pa.list_(pa.string()) if f.type == JSON_LIST else f.type)
        for f in table.schema
    ]
    return table.cast(pa.schema(fields))


#: Decoded bytes of a row group, unless one row has more; the Hub's viewer refuses 300 MB.
ROW_GROUP_BYTES = 32 << 20

#: (table, day, rows) to the rows that stay.
Keep = Callable[[str, str, pa.Table], pa.Table]


def write_groups(
    write: Callable[[pa.Table], None],
    table: str,
    pieces: Pieces,
    members: Sequence[tuple[str, list[tuple[str, str]]]],
    keep: Keep,
    repository_of: Mapping[str, str],
) -> Iterator[pa.Table]:
    """Write the rows of groups one after the other, and yield each row group that was written.

    Args:
        write: appends a row group to the table's partition.
        table: its name.
        pieces: its rows.
        members: (name of a group, its days and sessions), in the order of the file.
        keep: filters the rows of a piece.
        repository_of: session to what its rows call its repository.
    """
    schema = TABLES[table].schema
    for name, keys in members:
        rows = (
            part
            for day, session in keys
            for piece in pieces.read(table, day, session)
            for part in _halves(_with(keep(table, day, piece), repository_of.get(session, "")))
        )
        for group in _joined(rows):
            whole = _with(group, name, "group_id").cast(schema)
            write(whole)
            yield whole


def _joined(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield parts together, as long as they are no larger than a row group."""
    waiting: list[pa.Table] = []
    size = 0
    for part in parts:
        if waiting and size + part.nbytes > ROW_GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting, size = [], 0
        waiting.append(part)
        size += part.nbytes
    if waiting:
        yield pa.concat_tables(waiting)


def _halves(table: pa.Table) -> Iterator[pa.Table]:
    """Yield parts of a piece that are no larger than a row group, where rows can be parted."""
    if table.nbytes > ROW_GROUP_BYTES and len(table) > 1:
        middle = len(table) // 2
        yield from _halves(table.slice(0, middle))
        yield from _halves(table.slice(middle))
    elif len(table):
        yield table


def _with(table: pa.Table, value: str, name: str = "repository") -> pa.Table:
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at), column([value] * len(table), pa.string()))
