"""Rows of the dataset on disk, until all is known about where they belong.

Belongs here: temporary files by table, day and session. Does not belong here: which of the rows
stay (``dataset.build``) and the tables' own files (``dataset.partitions``).

A row's split depends on sessions that are read later, and a table is ordered by groups of sessions
while the lake is ordered by day. Prompts are long, so they wait in files and not in memory.
"""

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from composer_pipeline.files import writing
from composer_pipeline.lake import JSON_LIST, TABLES, UNFINISHED, Lake, table_from_rows
from composer_pipeline.modes import make_folder

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
