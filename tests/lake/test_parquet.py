"""The bytes of the lake's Parquet files."""

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.lake.parquet import parquet_writer


def group(rng: random.Random, name: str) -> pa.Table:
    texts = [rng.randbytes(20_000).hex() for _ in range(60)]
    return pa.table({"state_id": [f"{name}{n}" for n in range(60)], "text": texts})


def chunks(groups: list[pa.Table], number: int) -> list[bytes]:
    """Return the columns' bytes of one of several row groups."""
    sink = io.BytesIO()
    with parquet_writer(sink, groups[0].schema, compact=False, grouped=True) as writer:
        for table in groups:
            writer.write_table(table)
    meta, data = pq.ParquetFile(sink).metadata.row_group(number), sink.getvalue()
    columns = [meta.column(n) for n in range(meta.num_columns)]
    starts = [one.dictionary_page_offset or one.data_page_offset for one in columns]
    pairs = zip(starts, columns, strict=True)
    return [data[start : start + one.total_compressed_size] for start, one in pairs]


def test_what_is_withdrawn_from_one_group_moves_no_byte_within_another() -> None:
    """So that a Hub that keeps chunks by content gets one group again, and not the file."""
    rng = random.Random(1)
    first, *others = [group(rng, name) for name in "abc"]
    less = first.slice(3, 20)
    for number in (1, 2):
        assert chunks([first, *others], number) == chunks([less, *others], number)
