"""The lake on a folder and in memory: atomic, deterministic, strict about its schema."""

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from composer_pipeline.errors import InputError, StorageError
from composer_pipeline.lake.parquet import encode_parquet, table_from_rows
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from tests.fixtures.lake_states import write_sessions

DAY = "2026-11-16"


def drop(pair_id: str, **extra: Any) -> dict[str, Any]:
    row = dict.fromkeys(TABLES["drops"].schema.names, "x")
    return {**row, "pair_id": pair_id, **extra}


def pair(pair_id: str) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "Bash", "arguments": {"b": 1}}}
    return {
        "pair_id": pair_id,
        "prompt": [{"role": "user", "content": "é\n"}],
        "chosen": [{"role": "assistant", "content": "", "tool_calls": [call]}],
        "rejected": [{"role": "assistant", "content": "no"}],
        "tools": [],
        "chosen_models": ["a/b"],
        "simulated": True,
    }


@pytest.fixture(params=["folder", "memory"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "folder":
        return Lake(tmp_path / "lake[1]")
    return Lake(f"memory://lake[1]-{uuid.uuid4().hex}")


def test_round_trip_keeps_json_columns_as_they_were(lake: Lake) -> None:
    lake.write("pairs", [pair("p1"), pair("p2")], day=DAY)
    rows = lake.rows("pairs")
    assert [row["pair_id"] for row in rows] == ["p1", "p2"]
    assert rows[0]["chosen"] == pair("p1")["chosen"]
    assert rows[0]["prompt"] == pair("p1")["prompt"]
    assert rows[0]["tools"] == []
    assert rows[0]["tier"] is None
    assert rows[0]["day"] == DAY


def test_messages_that_are_json_already_stay_what_they_are(lake: Lake) -> None:
    row = pair("p1")
    lake.write("pairs", [{**row, "prompt": [json.dumps(m) for m in row["prompt"]]}], day=DAY)
    assert lake.rows("pairs")[0]["prompt"] == row["prompt"]


def test_rows_one_by_one_are_the_rows_of_the_table(lake: Lake) -> None:
    for day in (DAY, "2026-11-17"):
        lake.write("pairs", [pair(f"{day}{n}") for n in range(3)], day=day)
    assert list(lake.iter_rows("pairs")) == lake.rows("pairs")
    narrow = list(lake.iter_rows("pairs", columns=["pair_id"], day=DAY))
    assert narrow == [{"pair_id": f"{DAY}{n}", "day": DAY} for n in range(3)]


def test_a_partition_in_pieces_is_whole(lake: Lake) -> None:
    table = table_from_rows(TABLES["pairs"], [pair(f"p{n}") for n in range(40)])
    writer = lake.writer("pairs", day=DAY)
    for piece in (table.slice(0, 30), table.slice(0, 0), table.slice(30)):
        writer.write(piece)
    assert lake.partitions("pairs") == []
    writer.commit()
    assert writer.rows == 40
    assert [row["pair_id"] for row in lake.rows("pairs")] == [f"p{n}" for n in range(40)]
    empty = lake.writer("dataset_hints", split="train")
    empty.write(table_from_rows(TABLES["dataset_hints"], []))
    empty.commit()
    with lake.open("dataset_hints/split=train/part.parquet") as file:
        assert pq.ParquetFile(file).num_row_groups == 0


def test_partitions_are_sorted_however_they_are_listed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in (DAY, "2026-11-17", "2026-11-18"):
        lake.write("pairs", [pair(day)], day=day)
    listed = lake.fs.glob
    monkeypatch.setattr(lake.fs, "glob", lambda path: list(reversed(listed(path))))
    assert [row["pair_id"] for row in lake.rows("pairs")] == [DAY, "2026-11-17", "2026-11-18"]


def test_a_folder_below_home_and_one_with_an_apostrophe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "o'brien"
    monkeypatch.setenv("HOME", str(home))
    lake = Lake("~/lake")
    lake.write("pairs", [pair("p1")], day=DAY)
    assert (home / "lake" / "pairs").is_dir()
    assert lake.query("SELECT pair_id FROM pairs") == [("p1",)]


def test_a_table_made_elsewhere_gets_the_descriptions(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write(
        "drops",
        table_from_rows(TABLES["drops"], [])
        .replace_schema_metadata(None)
        .cast(pa.schema([f.remove_metadata() for f in TABLES["drops"].schema])),
        stage="s",
        day=DAY,
    )
    schema = pq.read_schema(lake.path("drops", stage="s", day=DAY))
    assert all(field.metadata[b"description"] for field in schema)


def test_a_partition_is_replaced_not_appended(lake: Lake) -> None:
    lake.write("drops", [drop("a"), drop("b")], stage="normalize", day=DAY)
    lake.write("drops", [drop("c")], stage="normalize", day=DAY)
    assert [row["pair_id"] for row in lake.rows("drops")] == ["c"]


def test_partitions_days_and_filters(lake: Lake) -> None:
    for stage, day in [("b", "2026-11-17"), ("a", "2026-11-17"), ("a", DAY)]:
        lake.write("drops", [drop(f"{stage}{day}")], stage=stage, day=day)
    assert lake.partitions("drops") == [
        {"stage": "a", "day": DAY},
        {"stage": "a", "day": "2026-11-17"},
        {"stage": "b", "day": "2026-11-17"},
    ]
    assert lake.days("drops") == [DAY, "2026-11-17"]
    assert lake.days("drops", stage="b") == ["2026-11-17"]
    assert lake.read("drops", days=[DAY]).column("pair_id").to_pylist() == [f"a{DAY}"]
    narrow = lake.read("drops", stage="b", columns=["pair_id"])
    assert narrow.column_names == ["pair_id", "stage", "day"]
    assert narrow.num_rows == 1


def test_an_absent_table_reads_as_empty_with_its_columns(lake: Lake) -> None:
    table = lake.read("pairs")
    assert table.num_rows == 0
    assert table.column_names == [*TABLES["pairs"].schema.names, "day"]
    lake.write("pairs", [], day=DAY)
    assert lake.rows("pairs") == []


def test_a_first_partition_that_comes_while_views_are_made_breaks_none(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = lake._files_of

    def then_written(table: str) -> list[str]:
        files = looked(table)
        if table == "drops":
            row = {"pair_id": "a", "state_id": "s", "step": "1:x", "op": "x"}
            lake.write("drops", [row], stage="n", day="2026-11-16")
        return files

    monkeypatch.setattr(lake, "_files_of", then_written)
    con = lake.duckdb()
    assert con.sql("SELECT count(*) FROM drops").fetchall() in ([(0,)], [(1,)])


def test_duckdb_has_a_view_for_every_table(lake: Lake) -> None:
    lake.write("pairs", [pair("p1")], day=DAY)
    lake.write("pairs", [pair("p2")], day="2026-11-17")
    con = lake.duckdb()
    sql = (
        "SELECT pair_id, day, chosen[1]->'tool_calls'->0->'function'->>'name'"
        " FROM pairs ORDER BY pair_id"
    )
    assert con.sql(sql).fetchall() == [("p1", DAY, "Bash"), ("p2", "2026-11-17", "Bash")]
    for table in TABLES:
        rows = con.sql(f"SELECT count(*) FROM {table}").fetchall()
        assert rows == [(2 if table == "pairs" else 0,)]
        columns = con.sql(f"SELECT * FROM {table} LIMIT 0").columns
        spec = TABLES[table]
        assert columns == [*spec.schema.names, *spec.partition_keys], table


def test_blobs(lake: Lake) -> None:
    assert not lake.exists("archive/ab")
    lake.put_bytes("archive/ab", b"\x00\x01")
    assert lake.exists("archive/ab")
    assert lake.get_bytes("archive/ab") == b"\x00\x01"
    with pytest.raises(FileNotFoundError):
        lake.get_bytes("archive/zz")


def test_the_same_rows_give_the_same_bytes() -> None:
    spec = TABLES["pairs"]
    rows = [pair(f"p{i}") for i in range(50)]
    first = encode_parquet(table_from_rows(spec, rows))
    assert first == encode_parquet(table_from_rows(spec, rows))
    assert first != encode_parquet(table_from_rows(spec, rows[:-1]))


def test_the_file_has_the_writer_settings(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write("pairs", [pair("p1")], day=DAY)
    meta = pq.read_metadata(lake.path("pairs", day=DAY))
    column = meta.row_group(0).column(0)
    assert column.compression == "ZSTD"
    assert column.has_offset_index
    assert b"content_defined_chunking" in meta.metadata
    schema = pq.read_schema(lake.path("pairs", day=DAY))
    assert schema.field("prompt").type == pa.list_(pa.json_())
    assert schema.field("tier").metadata[b"description"].startswith(b"gold or silver")
    assert "day" not in schema.names


def test_an_empty_partition_has_columns_and_no_row_group(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write("dataset_hints", [], split="validation")
    meta = pq.read_metadata(lake.path("dataset_hints", split="validation"))
    # `datasets` fails on a row group without rows.
    assert (meta.num_row_groups, meta.num_rows) == (0, 0)
    assert meta.schema.names[0] == "task"
    assert lake.rows("dataset_hints") == []
    assert lake.duckdb().sql("SELECT count(*) FROM dataset_hints").fetchall() == [(0,)]


def test_an_older_file_reads_with_nulls_for_new_columns(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write("drops", [drop("a"), drop("b")], stage="s", day=DAY)
    path = lake.path("drops", stage="s", day=DAY)
    pq.write_table(pq.read_table(path, partitioning=None).drop_columns(["bound"]), path)
    assert [row["bound"] for row in lake.rows("drops")] == [None, None]
    assert [row["bound"] for row in lake.iter_rows("drops")] == [None, None]


@pytest.mark.parametrize(
    ("table", "rows", "keys", "words"),
    [
        ("nope", [], {"day": DAY}, "unknown table 'nope'"),
        ("pairs", [], {}, "partitioned by day"),
        ("pairs", [], {"day": DAY, "stage": "x"}, "partitioned by day"),
        ("pairs", [{"pair_id": "p", "colour": "red"}], {"day": DAY}, "no column 'colour'"),
        ("pairs", pa.table({"pair_id": ["p"]}), {"day": DAY}, "differ from its schema"),
        ("pairs", [], {"day": "../x"}, "is not a date of the form YYYY-MM-DD"),
        ("pairs", [], {"day": ".."}, "is not a date of the form YYYY-MM-DD"),
        ("pairs", [], {"day": ""}, "is not a date of the form YYYY-MM-DD"),
    ],
)
def test_bad_writes_are_refused_and_leave_nothing(
    tmp_path: Path, table: str, rows: Any, keys: dict[str, str], words: str
) -> None:
    lake = Lake(tmp_path / "lake")
    with pytest.raises(InputError, match=words):
        lake.write(table, rows, **keys)
    assert not (tmp_path / "lake").exists()


def test_a_lake_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    lake = Lake(tmp_path / "file" / "lake")
    for attempt in (lake.check_writable, lambda: lake.write("pairs", [], day=DAY)):
        with pytest.raises(InputError, match="is not writable") as caught:
            attempt()
        assert "\n" not in str(caught.value)
    assert (tmp_path / "file").read_text() == ""


def test_check_writable_leaves_no_trace(tmp_path: Path) -> None:
    Lake(tmp_path / "a" / "b").check_writable()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the writer is thrown away later: nothing is raised a second time."""
    noise = table_from_rows(TABLES["drops"], [drop(os.urandom(1 << 19).hex())])
    later: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", later.append)
    writer = Lake(tmp_path).writer("drops", stage="s", day=DAY)
    writer.write(noise)
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size, hard))
    try:
        with pytest.raises(StorageError, match="is not writable"):
            writer.commit()
        del writer
        gc.collect()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert later == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


KILLED_WRITER = """
import os, sys, time
from composer_pipeline.lake import store

def stuck(fd):
    print("written, not yet visible", flush=True)
    time.sleep(600)

os.fsync = stuck
rows = [{"pair_id": "new", "state_id": "x"}] * 1000
store.Lake(sys.argv[1]).write("drops", rows, stage="s", day="2026-11-16")
"""


def test_kill_9_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write("drops", [drop("old")], stage="s", day=DAY)
    before = Path(lake.path("drops", stage="s", day=DAY)).read_bytes()
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED_WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("written")
        os.kill(child.pid, signal.SIGKILL)
    finally:
        child.kill()
        child.communicate()
    folder = Path(lake.path("drops", stage="s", day=DAY)).parent
    assert len(list(folder.iterdir())) == 2, "the killed writer's temporary file is still there"
    assert Path(lake.path("drops", stage="s", day=DAY)).read_bytes() == before
    assert lake.partitions("drops") == [{"stage": "s", "day": DAY}]
    assert [row["pair_id"] for row in lake.rows("drops")] == ["old"]
    assert lake.duckdb().sql("SELECT count(*) FROM drops").fetchall() == [(1,)]
    lake.write("drops", [drop("newer")], stage="s", day=DAY)
    assert [row["pair_id"] for row in lake.rows("drops")] == ["newer"]


def test_every_column_is_described_and_partition_keys_are_not_columns_of_the_file() -> None:
    for spec in TABLES.values():
        assert spec.description
        assert set(spec.key) <= set(spec.schema.names) | set(spec.partition_keys), spec.name
        assert not set(spec.partition_keys) & set(spec.schema.names), spec.name
        for name in spec.schema.names:
            assert spec.description_of(name), f"{spec.name}.{name}"


def test_row_groups_of_compact_tables_have_no_small_rest(tmp_path: Path) -> None:
    """A rest of a few rows compresses badly, and a batch is always a little too large."""
    lake = Lake(tmp_path)
    text = "x" * 1000
    for rows, groups in ((4300, 1), (8400, 2), (8401, 2), (10, 1)):
        messages = [{"hash": f"{n:032}", "role": "user", "json": text, "n": n} for n in range(rows)]
        lake.write("messages", messages, day="2026-11-16")
        file = pq.ParquetFile(lake.path("messages", day="2026-11-16"))
        found = [file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups)]
        assert len(found) == groups
        assert max(found) - min(found) <= groups


def test_no_days_are_no_rows(lake: Lake) -> None:
    """An empty list is a choice; only ``None`` stands for all days."""
    lake.write("pairs", [pair("p1")], day=DAY)
    assert lake.rows("pairs", days=[]) == []
    assert [row["pair_id"] for row in lake.rows("pairs", days=None)] == ["p1"]


def test_views_join_partitions_of_an_older_version(tmp_path: Path) -> None:
    """Whichever comes first: the older one has nulls, and no column moves."""
    for older, newer in ((DAY, "2026-11-17"), ("2026-11-17", DAY)):
        lake = Lake(tmp_path / older)
        lake.write("drops", [drop("old")], stage="s", day=older)
        lake.write("drops", [drop("new")], stage="s", day=newer)
        path = lake.path("drops", stage="s", day=older)
        pq.write_table(pq.read_table(path, partitioning=None).drop_columns(["bound"]), path)
        found = lake.query("SELECT pair_id, bound, day FROM drops ORDER BY pair_id")
        assert found == [("new", "x", newer), ("old", None, older)]


@pytest.mark.parametrize("piecewise", [False, True])
def test_row_groups_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piecewise: bool
) -> None:
    """The Hub's viewer refuses to show a table whose row groups are too large."""
    limit = 20_000
    monkeypatch.setattr("composer_pipeline.lake.parquet.ROW_GROUP_BYTES", limit)
    lake = Lake(tmp_path)
    table = table_from_rows(TABLES["pairs"], [pair(f"{n:04}" + "x" * 1000) for n in range(100)])
    if piecewise:
        writer = lake.writer("pairs", day=DAY)
        writer.write(table)
        writer.commit()
    else:
        lake.write("pairs", table, day=DAY)
    file = pq.ParquetFile(lake.path("pairs", day=DAY))
    sizes = [file.read_row_group(n).nbytes for n in range(file.num_row_groups)]
    assert len(sizes) > 1
    assert max(sizes) <= limit * 1.1
    assert len(lake.rows("pairs")) == 100


def test_files_of_a_folder_are_opened_by_arrow_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of Arrow that holds Python's file when the process ends aborts it, now and then."""
    opened: list[object] = []
    plain = pq.ParquetFile

    def spied(file: Any, **options: Any) -> Any:
        opened.append(file)
        return plain(file, **options)

    lake = Lake(tmp_path / "lake")
    write_sessions(lake, sessions=1, turns=2)
    monkeypatch.setattr(pq, "ParquetFile", spied)
    assert lake.rows("states")
    assert list(lake.iter_rows("states"))
    assert len(opened) == 2
    assert all(isinstance(file, pa.NativeFile) for file in opened)
