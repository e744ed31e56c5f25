"""A Parquet file outside of the lake, written row by row with the lake's settings.

Belongs here: collecting rows into row groups. Does not belong here: which rows, and the list of
such files (``lake.notes``).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from composer_pipeline.lake.parquet import ROW_GROUP_BYTES
from composer_pipeline.lake.partition_writer import PartitionWriter
from composer_pipeline.lake.rows import table_from_rows
from composer_pipeline.lake.tables import TableSpec

#: Rows that are made into columns at once.
_BATCH = 32


class TableFile:
    """Takes rows one at a time; :meth:`commit` makes the file visible, whole.

    Args:
        path: the file.
        columns: its columns by name; other keys of a row are not written.
        what: what the file is called in errors.

    Raises:
        InputError, StorageError: here and in every method, it cannot be written.
    """

    def __init__(self, path: Path, columns: Mapping[str, pa.DataType], what: str) -> None:
        self._spec = TableSpec("", "", (), (), pa.schema(list(columns.items())))
        self._writer = PartitionWriter(what, self._spec, str(path))
        self._rows: list[dict[str, Any]] = []
        self._tables: list[pa.Table] = []
        self.rows = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row."""
        self._rows.append({name: row[name] for name in self._spec.schema.names})
        self.rows += 1
        if len(self._rows) == _BATCH:
            self._tables.append(table_from_rows(self._spec, self._rows))
            self._rows = []
            if sum(table.nbytes for table in self._tables) > ROW_GROUP_BYTES:
                self._flush()

    def _flush(self) -> None:
        if self._tables:
            self._writer.write(pa.concat_tables(self._tables))
            self._tables = []

    def commit(self) -> None:
        """Make the file visible."""
        if self._rows:
            self._tables.append(table_from_rows(self._spec, self._rows))
            self._rows = []
        self._flush()
        self._writer.commit()

    def discard(self) -> None:
        """Drop what was written and not committed."""
        self._writer.discard()
