"""The lake in a bucket: obstore's fsspec adapter against a real S3 wire (moto)."""

from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.errors import StorageError
from composer_pipeline.lake.parquet import DamagedFile
from composer_pipeline.lake.store import Lake
from composer_pipeline.nights import model_registry as registry
from composer_pipeline.nights.night import nights
from tests.nights.made import House, Learner, days, write_dataset

DAY = "2026-11-16"


def rows(*ids: str) -> list[dict[str, Any]]:
    return [{"pair_id": i, "state_id": "s", "step": "1:x", "op": "x"} for i in ids]


def test_tables_blobs_and_views_in_a_bucket(s3: Any) -> None:
    lake = Lake("s3://bucket/deep/lake")
    lake.check_writable()
    assert "Contents" not in s3.list_objects_v2(Bucket="bucket", Prefix="deep"), (
        "the probe is removed"
    )
    assert lake.rows("drops") == []
    lake.write("drops", rows("a", "b"), stage="n", day=DAY)
    lake.write("drops", rows("c"), stage="n", day="2026-11-17")
    lake.write("drops", rows("d"), stage="n", day="2026-11-17")
    assert lake.days("drops") == [DAY, "2026-11-17"]
    assert [row["pair_id"] for row in lake.rows("drops")] == ["a", "b", "d"]
    con = lake.duckdb()
    assert con.sql("SELECT pair_id, day FROM drops ORDER BY 1").fetchall() == [
        ("a", DAY),
        ("b", DAY),
        ("d", "2026-11-17"),
    ]
    assert con.sql("SELECT count(*) FROM pairs").fetchall() == [(0,)]
    lake.put_bytes("archive/ab", b"123")
    assert lake.get_bytes("archive/ab") == b"123"
    assert lake.exists("archive/ab")
    assert not lake.exists("archive/zz")
    listed = s3.list_objects_v2(Bucket="bucket", Prefix="deep/")["Contents"]
    assert [item["Key"] for item in listed] == [
        "deep/lake/archive/ab",
        f"deep/lake/drops/stage=n/day={DAY}/part.parquet",
        "deep/lake/drops/stage=n/day=2026-11-17/part.parquet",
    ]


def test_another_writers_partition_is_seen(s3: Any) -> None:
    lake = Lake("s3://bucket/shared")
    assert lake.days("drops") == []
    other = Lake("s3://bucket/elsewhere")
    other.write("drops", rows("a"), stage="n", day=DAY)
    body = s3.get_object(Bucket="bucket", Key=f"elsewhere/drops/stage=n/day={DAY}/part.parquet")[
        "Body"
    ].read()
    s3.put_object(Bucket="bucket", Key=f"shared/drops/stage=n/day={DAY}/part.parquet", Body=body)
    assert lake.days("drops") == [DAY]
    assert lake.read("drops").num_rows == 1


def test_a_missing_bucket_is_one_sentence(s3: Any) -> None:
    lake = Lake("s3://no-such-bucket/lake")
    with pytest.raises(StorageError, match="s3://no-such-bucket/lake is not writable") as caught:
        lake.check_writable()
    assert "\n" not in str(caught.value)
    assert "test" not in str(caught.value)


def test_a_partition_that_is_replaced_while_it_is_read_is_read_again(
    s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake("s3://bucket/replaced")
    lake.write("drops", rows("a"), stage="n", day=DAY)
    opened, left = lake.fs.open, [rows("b", "c")]

    def then_replaced(path: str, mode: str) -> Any:
        file = opened(path, mode)
        if left:
            lake.write("drops", left.pop(), stage="n", day=DAY)
        return file

    monkeypatch.setattr(lake.fs, "open", then_replaced)
    assert [row["pair_id"] for row in lake.rows("drops")] == ["b", "c"]


def test_a_damaged_partition_in_a_bucket_is_named(s3: Any) -> None:
    lake = Lake("s3://bucket/damaged")
    lake.write("drops", rows("a"), stage="n", day=DAY)
    key = f"damaged/drops/stage=n/day={DAY}/part.parquet"
    s3.put_object(Bucket="bucket", Key=key, Body=b"PAR1 and no more")
    with pytest.raises(DamagedFile, match=f"drops/stage=n/day={DAY}/part.parquet is damaged"):
        lake.rows("drops")


def test_nights_in_a_bucket(s3: Any, tmp_path: Path) -> None:
    here = House(Lake("s3://bucket/nights"), Learner(tmp_path))
    assert registry.current(here.lake) is None
    write_dataset(here.lake, days(DAY, "2026-11-17"))
    assert [here.night(day).outcome for day in (DAY, "2026-11-17")] == ["promoted", "promoted"]
    assert here.night("2026-11-18").outcome == "nothing new"
    assert registry.rollback(here.lake).version == 1
    other = Lake("s3://bucket/nights")
    assert [night.night for night in nights(other)] == [DAY, "2026-11-17", "2026-11-18"]
    assert registry.report(other).current == 1
    assert here.learner.trained == [f"night-{DAY}", "night-2026-11-17"]
