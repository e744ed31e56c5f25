"""Writing one partition in pieces.

Belongs here: the piecewise writer. Does not belong here: writing a partition at once, and
where partitions are (``lake.store``).
"""

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from composer_pipeline.files import Replacement, writing
from composer_pipeline.lake.parquet import ROW_GROUP_BYTES, group_rows, parquet_writer
from composer_pipeline.lake.rows import table_from_rows
from composer_pipeline.lake.tables import TableSpec

#: Rows that are made into a table at once.
_AT_ONCE = 64


class PartitionWriter:
    """Writes one partition in pieces; :meth:`commit` makes it visible, whole.

    The pieces go to a temporary file: beside the partition on a local disk, in the
    machine's temporary folder for a bucket. A writer that is dropped leaves nothing.

    Args:
        place: the lake as errors call it.
        spec: the table.
        path: the partition's file.
        bucket: the file system of a bucket; ``None`` for a local disk.

    Raises:
        StorageError: here and in every method, the lake is not writable.
    """

    def __init__(self, place: str, spec: TableSpec, path: str, bucket: Any = None) -> None:
        self._place, self._spec, self._path, self._bucket = place, spec, path, bucket
        self.rows = 0
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

    def write_rows(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows and commit them; about a row group of them is in memory at a time.

        Raises:
            InputError: a row has a column that the schema does not know.
        """
        try:
            for table in self._tables(iter(rows)):
                self.write(table)
        except BaseException:
            self.discard()
            raise
        self.commit()

    def _tables(self, rows: Iterator[dict[str, Any]]) -> Iterator[pa.Table]:
        held: list[pa.Table] = []
        while some := list(islice(rows, _AT_ONCE)):
            held.append(table_from_rows(self._spec, some))
            if sum(table.nbytes for table in held) >= ROW_GROUP_BYTES:
                yield pa.concat_tables(held)
                held = []
        if held:
            yield pa.concat_tables(held)

    def write_group(self, table: pa.Table) -> None:
        """Append rows, not empty, as one row group, whatever its size."""
        self.rows += len(table)
        with writing(self._place):
            self._parquet.write_table(table, row_group_size=table.num_rows)

    def commit(self) -> None:
        """Make the partition visible."""
        try:
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
