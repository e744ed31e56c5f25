"""The build of a dataset as one unit: its files, its marker, and what is refused."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from composer_pipeline.dataset import files as partitions
from composer_pipeline.dataset import files as pieces
from composer_pipeline.dataset import files as shards
from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.dataset.files import CONFIGS
from composer_pipeline.dataset.manifest import check_statistics, copy_file, dataset_info, read_build
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.quality import write_statistics
from tests.publishing.test_dataset import DAY, NEXT, TABLES, add_session, normalise, plain


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of four sessions with its dataset."""
    lake = Lake(tmp_path_factory.mktemp("built") / "lake")
    for i in range(4):
        add_session(lake, f"s{i}", DAY)
    normalise(lake, DAY)
    build_dataset(lake, validation_share=0.5)
    return Path(lake.url)


@pytest.fixture
def lake(built: Path, tmp_path: Path) -> Lake:
    return Lake(shutil.copytree(built, tmp_path / "lake"))


def test_the_build_lists_the_files_with_rows(lake: Lake) -> None:
    build = read_build(lake)
    assert [file.path for file in build.files][:2] == [
        "data/pairs/train.parquet", "data/pairs/validation.parquet",
    ]  # fmt: skip
    for file in build.files:
        path = Path(lake.root, file.name)
        assert (file.rows, file.bytes) == (pq.read_metadata(path).num_rows, path.stat().st_size)
        assert file.rows > 0


def test_a_row_group_ends_with_its_group(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """And within a group where it would become too large; pieces do not show in the bytes."""
    before = {p: p.read_bytes() for p in Path(lake.root).rglob("dataset_*/*/part.parquet")}
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1)
    build_dataset(lake, validation_share=0.5)
    assert before == {p: p.read_bytes() for p in before}
    every: set[str] = set()
    for table in TABLES:
        for part in lake.partitions(table):
            file = pq.ParquetFile(lake.path(table, **part))
            groups = [
                set(file.read_row_group(i, ["group_id"])["group_id"].to_pylist())
                for i in range(file.num_row_groups)
            ]
            assert all(len(names) == 1 for names in groups)
            names = [name for (name,) in groups]
            assert names == sorted(set(names))
            every |= {*names}
    assert every == {f"g-s{i}" for i in range(4)}
    monkeypatch.setattr(partitions, "ROW_GROUP_BYTES", 1)
    build_dataset(lake, validation_share=0.5)
    file = pq.ParquetFile(lake.path("dataset_pairs", split="train"))
    assert file.num_row_groups == file.metadata.num_rows > 1


def test_where_a_session_is_parted_depends_on_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the row groups behind a withdrawn session are cut elsewhere and sent again."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 100)

    def parted(before: int) -> list[int]:
        with pieces.Pieces(Lake(tmp_path / f"after {before}")) as held:
            for session, rows in (("other", before), ("long", 8)):
                for row in range(rows):
                    prompt = [json.dumps("x" * 38)]
                    columns = {"session_id": session, "state_id": f"{row}", "prompt": prompt}
                    held.add("dataset_pairs", DAY, columns)
            held.flush()
            return [len(part) for part in held.read("dataset_pairs", DAY, "long")]

    assert [parted(before) for before in range(4)] == [[3, 3, 2]] * 4


def test_texts_are_not_in_the_footer(lake: Lake) -> None:
    """It is sent again with every change; rows are looked for by ids and numbers."""
    footer = pq.read_metadata(lake.path("dataset_pairs", split="train"))
    group = footer.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    kept = {column.path_in_schema for column in columns if column.statistics}
    assert {"state_id", "session_id", "day", "simulated"} <= kept
    assert not kept & {"task", "chosen_text", "prompt.list.element", "rejected.list.element"}


def test_files_are_not_cut_by_content(lake: Lake) -> None:
    metadata = pq.read_metadata(lake.path("dataset_pairs", split="train"))
    assert b"content_defined_chunking" not in (metadata.metadata or {})


def without_marker(lake: Lake) -> None:
    lake.remove(Lake.BUILD)


def never_built(lake: Lake) -> None:
    for table in CONFIGS.values():
        shutil.rmtree(Path(lake.root, table))
    lake.remove(Lake.BUILD)


def damaged_marker(lake: Lake) -> None:
    lake.put_bytes(Lake.BUILD, b"{")


def older_schema(lake: Lake) -> None:
    marker: dict[str, Any] = json.loads(lake.get_bytes(Lake.BUILD))
    lake.put_bytes(Lake.BUILD, json.dumps({**marker, "schema_version": 1}).encode())


def another_file(lake: Lake) -> None:
    part = lake.partitions("dataset_hints")[0]["split"]
    rows = plain(lake, "dataset_hints", split=part)
    changed = [{**row, "hint": "other"} for row in rows] or [{"state_id": "x"}]
    for row in changed:
        row.pop("split", None)
    lake.write("dataset_hints", changed, split=part)


def a_file_less(lake: Lake) -> None:
    lake.delete("dataset_hints", split="train")


def a_new_reply(lake: Lake) -> None:
    add_session(lake, "late", NEXT)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (never_built, "has no dataset; run composer-pipeline dataset"),
        (without_marker, "is half built"),
        (damaged_marker, "dataset.json is damaged"),
        (older_schema, "has schema version 1, and"),
        (another_file, "dataset_hints/split=train/part.parquet is not of the dataset's build"),
        (a_file_less, "dataset_hints/split=train/part.parquet is not of the dataset's build"),
        (a_new_reply, "older than chains, hints, messages, replies, sessions, states;"),
    ],
)
def test_what_is_not_one_whole_build_is_refused(lake: Lake, change: Any, said: str) -> None:
    change(lake)
    with pytest.raises(InputError) as refused:
        read_build(lake)
    assert said in str(refused.value)
    assert "run composer-pipeline dataset" in str(refused.value)


def test_a_build_that_is_killed_between_two_files_is_none(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_session(lake, "late", NEXT)
    normalise(lake, NEXT)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("composer_pipeline.dataset.build.write_manifest", killed)
    with pytest.raises(KeyboardInterrupt):
        build_dataset(lake, validation_share=0.5)
    with pytest.raises(InputError, match="half built"):
        read_build(lake)
    monkeypatch.undo()
    build_dataset(lake, validation_share=0.5)
    read_build(lake)


def test_the_same_lake_gives_the_same_build_whatever_the_order_of_harvest(
    lake: Lake, tmp_path: Path
) -> None:
    other = Lake(tmp_path / "other")
    for name in ("s2", "s0", "s3", "s1"):
        add_session(other, name, DAY)
    normalise(other, DAY)
    build_dataset(other, validation_share=0.5)
    for table in TABLES:
        for part in lake.partitions(table):
            here, there = (Path(which.path(table, **part)) for which in (lake, other))
            assert here.read_bytes() == there.read_bytes(), (table, part)
    assert read_build(lake).id == read_build(other).id


def test_statistics_of_another_build_are_refused(lake: Lake) -> None:
    check_statistics(lake, read_build(lake))
    older = lake.read("preference_statistics", scope="all").drop_columns("scope")
    build_dataset(lake, validation_share=0.0)
    check_statistics(lake, read_build(lake))
    lake.write("preference_statistics", older, scope="all")
    with pytest.raises(InputError, match="of another build of the dataset; run composer-pipeline"):
        check_statistics(lake, read_build(lake))
    write_statistics(lake)
    check_statistics(lake, read_build(lake))


def test_a_large_split_is_several_files(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut between groups; together they are the split, and each is what the marker says."""
    monkeypatch.setattr(shards, "SHARD_BYTES", 1)
    build_dataset(lake, validation_share=0.0)
    files = [file for file in read_build(lake).files if file.config == "pairs"]
    assert [file.path for file in files] == [
        f"data/pairs/train-{i:05d}-of-00004.parquet" for i in range(4)
    ]
    tables = []
    for number, file in enumerate(files):
        target = tmp_path / f"{number}.parquet"
        copy_file(lake, file, target)
        assert hashlib.sha256(target.read_bytes()).hexdigest() == file.sha256
        assert (target.stat().st_size, pq.read_metadata(target).num_rows) == (file.bytes, file.rows)
        tables.append(pq.read_table(target))
    whole = pq.read_table(lake.path("dataset_pairs", split="train"))
    assert pa.concat_tables(tables).equals(whole.select(tables[0].column_names))


def test_a_file_of_few_bytes_is_the_partitions_own(lake: Lake, tmp_path: Path) -> None:
    file = read_build(lake).files[0]
    copy_file(lake, file, tmp_path / "out.parquet")
    assert (tmp_path / "out.parquet").read_bytes() == Path(lake.root, file.name).read_bytes()


def test_the_info_is_what_datasets_writes_and_its_counts_are_the_rows(lake: Lake) -> None:
    datasets = pytest.importorskip("datasets")
    info = {entry["config_name"]: entry for entry in dataset_info(read_build(lake))}
    for file in read_build(lake).files:
        loaded = datasets.Dataset.from_parquet(str(Path(lake.root, file.name)))
        assert info[file.config]["features"] == loaded.features._to_yaml_list()
        split = next(s for s in info[file.config]["splits"] if s["name"] == file.split)
        assert split["num_examples"] == len(loaded) == file.rows


def test_the_info_counts_shards_together(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    build_dataset(lake, validation_share=0.0)
    before = dataset_info(read_build(lake))
    monkeypatch.setattr(shards, "SHARD_BYTES", 1)
    build_dataset(lake, validation_share=0.0)
    assert [(e["config_name"], e["splits"][0]["num_examples"]) for e in before] == [
        (e["config_name"], e["splits"][0]["num_examples"]) for e in dataset_info(read_build(lake))
    ]
    assert all(len(entry["splits"]) == 1 for entry in dataset_info(read_build(lake)))
