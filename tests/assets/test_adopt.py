"""Green means done: what the command line did shows, and so do days without sessions."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.test_utils import freeze_time

from assets.adopt import adopt, report_lake
from assets.partitions import DAYS
from assets.resources import LakeResource, SessionsResource, TeachersResource
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import recipes_dir
from composer_pipeline.testing.samples import sample_sessions_dir
from tests.fixtures.whole_lake import DAY

TEACHERS = TeachersResource(file=str(recipes_dir() / "teachers" / "demo.yaml"))
SESSIONS = SessionsResource(path=str(sample_sessions_dir()))
EMPTY = "2026-11-02"


@pytest.fixture
def lake(whole_lake: Path, tmp_path: Path) -> Lake:
    shutil.copytree(whole_lake, tmp_path / "lake")
    return Lake(tmp_path / "lake")


@pytest.fixture(autouse=True)
def one_day() -> Iterator[None]:
    """Days end where the test says, whenever it runs and though midnight passes in it."""
    with freeze_time(datetime(2026, 11, 20, 23, 59, tzinfo=UTC)):
        yield


def days_over() -> set[str]:
    """Return every partition but today's, which is not over."""
    return set(DAYS.get_partition_keys()[:-1])


def green(instance: dg.DagsterInstance, asset: str) -> set[str]:
    return instance.get_materialized_partitions(dg.AssetKey(asset.split("/")))


def test_what_the_lake_holds_is_shown_once(lake: Lake) -> None:
    every = days_over()
    days = set(lake.days("states"))
    resources: dict[str, Any] = {
        "lake": LakeResource(url=str(lake.root)), "sessions": SESSIONS, "teachers": TEACHERS,
    }  # fmt: skip
    with dg.DagsterInstance.ephemeral() as instance:
        assert adopt.execute_in_process(instance=instance, resources=resources).success
        for asset in ("raw_sessions", "trace_states", "error_hints", "preference_pairs"):
            assert green(instance, asset) == every, asset
        # A day that nobody asked a teacher about is work to do.
        assert green(instance, "teacher_replies/careful") == every - (days - {DAY})
        event = (
            instance.fetch_materializations(
                dg.AssetRecordsFilter(dg.AssetKey("trace_states"), asset_partitions=[DAY]), limit=1
            )
            .records[0]
            .asset_materialization
        )
        assert event is not None
        rows = len(lake.read("states", days=[DAY]))
        assert event.metadata["dagster/partition_row_count"].value == rows
        assert report_lake(instance, lake, SESSIONS, TEACHERS) == 0


def test_a_day_that_a_teacher_misses_stays_to_do(lake: Lake) -> None:
    note = Path(lake.root) / "made" / "replies" / "teacher=careful" / f"day={DAY}.json"
    note.write_text(note.read_text().replace('"missing":0', '"missing":3'))
    with dg.DagsterInstance.ephemeral() as instance:
        report_lake(instance, lake, SESSIONS, TEACHERS)
        assert DAY not in green(instance, "teacher_replies/careful")
        assert DAY in green(instance, "teacher_replies/steady")


def test_a_day_with_sessions_at_the_source_and_today_are_not_told_as_empty(
    lake: Lake, tmp_path: Path
) -> None:
    late = tmp_path / "late"
    late.mkdir()
    line = f'{{"type":"user","timestamp":"{EMPTY}T10:00:00Z","sessionId":"late","uuid":"u"}}\n'
    (late / "late.jsonl").write_text(line)
    with dg.DagsterInstance.ephemeral() as instance:
        report_lake(instance, lake, SessionsResource(path=str(late)), TEACHERS)
        for asset in ("raw_sessions", "trace_states", "teacher_replies/careful"):
            assert not {EMPTY, DAYS.get_last_partition_key()} & green(instance, asset), asset
            assert "2026-11-03" in green(instance, asset), asset


def test_days_that_the_run_makes_are_its_own(lake: Lake) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        report_lake(instance, lake, SESSIONS, TEACHERS, skip=[DAY, EMPTY])
        assert not {DAY, EMPTY} & green(instance, "trace_states")


def test_a_broken_teacher_file_and_a_missing_source_hide_nothing(
    lake: Lake, tmp_path: Path
) -> None:
    broken = tmp_path / "teachers.yaml"
    broken.write_text(yaml.safe_dump({"teachers": 3}))
    nowhere = SessionsResource(path=str(tmp_path / "nowhere"))
    with dg.DagsterInstance.ephemeral() as instance:
        report_lake(instance, lake, nowhere, TeachersResource(file=str(broken)))
        assert green(instance, "trace_states") == days_over()
