"""Files of a split that is too large for one: parts of a partition, cut between row groups.

Belongs here: where a partition is cut, and the bytes of a part. Does not belong here: the
partition (``dataset.partitions``) and the names of files (``publishing.configs``).

A split of at most :data:`SHARD_BYTES` is one file, which is the lake's own.
"""

from typing import IO

import pyarrow.parquet as pq

from composer_pipeline.lake import TABLES, Lake, parquet_writer

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
