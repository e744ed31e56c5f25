"""What must never be true of the tables: each query finds it, and nothing else."""

from pathlib import Path

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import (
    Lake,
    doubled_states,
    groups_in_two_splits,
    incomplete_prefixes,
)
from tests.fixtures.lake_states import DAY, write_session

NEXT = "2026-11-17"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Two days with a session of two states each."""
    lake = Lake(tmp_path / "lake")
    for day in (DAY, NEXT):
        turns = [(Action("", (ToolCall("Read", {"file_path": f"/{n}"}),)), "x") for n in range(2)]
        write_session(lake, f"s-{day}", turns, day=day)
    return lake


def test_a_message_that_only_another_day_has_is_missing(lake: Lake) -> None:
    assert incomplete_prefixes(lake) == []
    rows = [{k: v for k, v in r.items() if k != "day"} for r in lake.rows("messages", days=[DAY])]
    lake.write("messages", rows[:-1], day=DAY)
    (chain,) = {row["chain_id"] for row in lake.rows("chains", days=[DAY])}
    assert incomplete_prefixes(lake) == [chain]


def test_a_state_of_two_days_is_doubled(lake: Lake) -> None:
    assert doubled_states(lake) == []
    rows = [{k: v for k, v in r.items() if k != "day"} for r in lake.rows("states", days=[DAY])]
    lake.write("states", rows, day=NEXT)
    assert sorted(doubled_states(lake)) == sorted(row["state_id"] for row in rows)


@pytest.mark.parametrize("table", ["dataset_pairs", "dataset_groups", "dataset_hints"])
def test_a_session_is_in_one_split_in_every_table(lake: Lake, table: str) -> None:
    lake.write("dataset_pairs", [{"session_id": "s", "group_id": "g"}], split="train")
    assert groups_in_two_splits(lake) == []
    lake.write(table, [{"session_id": "s", "group_id": "other"}], split="validation")
    assert groups_in_two_splits(lake) == ["s"]


def test_partitions_stay_where_earlier_versions_wrote_them() -> None:
    """A path is for ever: the keys and their order are part of it."""
    assert TABLES["replies"].partition_keys == ("teacher", "day")
    assert TABLES["drops"].partition_keys == ("stage", "day")
    compact = {spec.name for spec in TABLES.values() if spec.compact}
    assert compact >= {"chains", "messages", "states"}
