"""Old runs are forgotten with their logs; what shows a day as made stays."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from assets.definitions import executor_of
from assets.resources import RetentionResource
from assets.schedules import build_retention, forget_old_runs, forget_runs
from composer_pipeline.errors import InputError

DAYS = dg.StaticPartitionsDefinition(["a", "b"])


@dg.asset(partitions_def=DAYS)
def daily(context: dg.AssetExecutionContext) -> None:
    print("spoken")
    if context.run.tags.get("fails"):
        raise ValueError("no")


@dg.asset
def whole() -> None:
    """An asset without partitions."""


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as made:
        yield made


def run(instance: dg.DagsterInstance, day: str = "", **tags: str) -> str:
    return dg.materialize(
        [daily if day else whole],
        instance=instance,
        partition_key=day or None,
        tags=tags,
        raise_on_error=False,
    ).run_id


def test_only_what_is_superseded_goes(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    old = [run(instance, "a"), run(instance), run(instance, "b", fails="1")]
    new = [run(instance, "b"), run(instance, "a"), run(instance)]
    logs = {path.parent.parent.name for path in tmp_path.rglob("*.out")}
    assert {*old, *new} <= logs
    assert forget_runs(instance, datetime.now(UTC) - timedelta(minutes=5)) == (0, 0)
    assert forget_runs(instance, datetime.now(UTC)) == (3, 3)
    assert {record.run_id for record in instance.get_runs()} == set(new)
    assert {path.parent.parent.name for path in tmp_path.rglob("*.out")} == set(new)
    assert instance.get_materialized_partitions(dg.AssetKey("daily")) == {"a", "b"}
    assert instance.get_latest_materialization_event(dg.AssetKey("whole")) is not None


def test_it_is_off_unless_asked_for(instance: dg.DagsterInstance) -> None:
    run(instance, "a", fails="1")
    for keep, left in ((0, 2), (1, 3)):
        resources = {"retention": RetentionResource(keep_days=keep)}
        assert forget_old_runs.execute_in_process(instance=instance, resources=resources).success
        assert len(instance.get_runs()) == left, "today's runs stay"
    assert build_retention(0).default_status is dg.DefaultScheduleStatus.STOPPED
    assert build_retention(30).default_status is dg.DefaultScheduleStatus.RUNNING


def test_executors_by_name() -> None:
    assert executor_of("in_process") is dg.in_process_executor
    assert executor_of("multiprocess").name == "multiprocess"
    assert executor_of("k8s").name == "k8s"
    with pytest.raises(InputError, match=r"^COMPOSER_EXECUTOR: 'celery' is none of"):
        executor_of("celery")
