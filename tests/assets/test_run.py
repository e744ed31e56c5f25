"""The graph run for real on the sample sessions, with teachers over loopback HTTP."""

import json
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pytest

from assets.definitions import build_defs
from assets.pages import MOST
from assets.partitions import day_ranges
from assets.resources import LakeResource, SessionsResource, TeachersResource, default_resources
from assets.schedules import nightly_harvest, nightly_pairs, nightly_replay, range_tags
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import Settings
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger, ledger_target
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.traces.archive import session_days
from examples.demo.profile import demo_settings, loopback
from examples.demo.run import QUIET

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return demo_settings(lake=str(tmp_path_factory.mktemp("lake")), max_usd="5")


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture(scope="module")
def replayed(settings: Settings, instance: dg.DagsterInstance) -> dict[str, Any]:
    """Harvest and replay every day once; return the results by job."""
    defs = build_defs(settings)
    days = sorted(session_days([sample_sessions_dir()]))
    out: dict[str, Any] = {"days": days, "defs": defs, "harvest": [], "replay_and_pair": []}
    with loopback():
        for first, last in day_ranges(days):
            for job in ("harvest", "replay_and_pair"):
                out[job].append(
                    defs.resolve_job_def(job).execute_in_process(
                        instance=instance, tags=range_tags(first, last), run_config=QUIET
                    )
                )
    return out


def metadata(results: list[Any], asset: str) -> dict[str, dict[str, Any]]:
    found = {}
    for result in results:
        for event in result.get_asset_materialization_events():
            materialization = event.step_materialization_data.materialization
            if materialization.asset_key.path[-1] == asset and materialization.partition:
                found[materialization.partition] = {
                    k: v.value for k, v in materialization.metadata.items()
                }
    return found


def calls_of(instance: dg.DagsterInstance, result: Any) -> int:
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    return int(run.tags["composer/calls"])


def test_every_day_has_numbers_for_its_plots(replayed: dict[str, Any], settings: Settings) -> None:
    states = metadata(replayed["harvest"], "trace_states")
    assert set(replayed["days"]) <= set(states)
    total = sum(meta["dagster/partition_row_count"] for meta in states.values())
    assert total == Lake(settings.lake).read("states").num_rows > 80
    kinds = [row for meta in states.values() for row in meta["error_kinds"].records]
    errors = [row for row in Lake(settings.lake).rows("states") if row["error_kind"] is not None]
    assert sum(row.data["states"] for row in kinds) == len(errors) > 0
    tables = [meta["redactions_by_kind"] for meta in states.values() if meta["redactions"]]
    replaced = [row for table in tables for row in table.records]
    assert sum(row.data["replacements"] for row in replaced) == sum(
        meta["redactions"] for meta in states.values()
    )


def test_replies_carry_their_cost(replayed: dict[str, Any], settings: Settings) -> None:
    lake = Lake(settings.lake)
    teacher = lake.partitions("replies")[0]["teacher"]
    reported = metadata(replayed["replay_and_pair"], teacher)
    rows = lake.rows("replies", teacher=teacher)
    exact = sum(row["cost_picodollars"] for row in rows)
    assert exact > 0
    assert sum(meta["cost_usd"] for meta in reported.values()) == pytest.approx(
        exact / 1e12, abs=1e-5
    )
    assert all(row["simulated"] for row in rows)


def test_pairs_and_their_ledger_of_drops(replayed: dict[str, Any], settings: Settings) -> None:
    lake = Lake(settings.lake)
    pairs = {row["pair_id"] for row in lake.rows("pairs")}
    kept = {row["pair_id"] for row in lake.rows("normalized_pairs")}
    dropped = {row["pair_id"] for row in lake.rows("drops")}
    assert len(pairs) >= 20
    assert kept | dropped == pairs
    assert not kept & dropped


def test_running_again_buys_nothing(
    replayed: dict[str, Any], settings: Settings, instance: dg.DagsterInstance
) -> None:
    first, last = day_ranges(replayed["days"])[0]
    with loopback():
        again = (
            replayed["defs"]
            .resolve_job_def("replay_and_pair")
            .execute_in_process(instance=instance, tags=range_tags(first, last), run_config=QUIET)
        )
    runs = [
        run
        for run in (instance.get_run_by_id(r.run_id) for r in replayed["replay_and_pair"])
        if run
    ]
    assert {int(run.tags["composer/calls"]) > 0 for run in runs} == {True}
    run = instance.get_run_by_id(again.run_id)
    assert run is not None
    assert run.tags["composer/calls"] == "0"
    # What was bought before still shows what it cost and how long it took.
    teacher = Lake(settings.lake).partitions("replies")[0]["teacher"]
    for day, meta in metadata([again], teacher).items():
        assert sum(isinstance(value, int | float) for value in meta.values()) <= MOST
        bought = metadata(replayed["replay_and_pair"], teacher)[day]
        for name in ("cost_usd", "latency_p50_ms", "latency_p95_ms", "usable_share"):
            assert meta[name] == bought[name] > 0, name
        assert meta["rows_change"] == 0
        assert "rows_change" not in bought
        assert meta["cost_life_usd"] >= meta["cost_usd"]


def test_dataset_splits_by_group(
    replayed: dict[str, Any], settings: Settings, instance: dg.DagsterInstance
) -> None:
    result = (
        replayed["defs"]
        .resolve_job_def("train")
        .execute_in_process(
            instance=instance,
            run_config=QUIET,
            asset_selection=[dg.AssetKey("training_dataset")],
        )
    )
    assert result.success
    rows = Lake(settings.lake).rows("dataset_pairs")
    by_split: dict[str, set[str]] = {}
    for row in rows:
        by_split.setdefault(row["split"], set()).add(row["group_id"])
    assert set(by_split) == {"train", "validation"}
    assert not by_split["train"] & by_split["validation"]


def test_nightly_schedules(replayed: dict[str, Any], settings: Settings, tmp_path: Path) -> None:
    context = dg.build_schedule_context(
        resources={
            "lake": LakeResource(url=str(tmp_path / "new")),
            "sessions": SessionsResource(path=settings.sessions),
        }
    )
    requests = [r for r in cast(Any, nightly_harvest(context)) if isinstance(r, dg.RunRequest)]
    assert [
        (r.tags["dagster/asset_partition_range_start"], r.tags["dagster/asset_partition_range_end"])
        for r in requests
    ] == day_ranges(replayed["days"])
    harvested = dg.build_schedule_context(
        resources={
            "lake": LakeResource(url=settings.lake),
            "sessions": SessionsResource(path=settings.sessions),
        }
    )
    assert [type(r) for r in cast(Any, nightly_harvest(harvested))] == [dg.SkipReason]
    tonight = datetime.fromisoformat(f"{replayed['days'][-1]}T03:30:00+00:00")
    bought = dg.build_schedule_context(
        resources={
            "lake": LakeResource(url=settings.lake),
            "teachers": TeachersResource(file=settings.teachers),
        },
        scheduled_execution_time=tonight,
    )
    with Ledger(Path(settings.lake) / "ledger.db") as ledger:
        ledger.do(operations.set_ceiling("global", Decimal(100)))
    (nothing,) = cast(Any, nightly_replay(bought))
    assert "Every teacher has answered" in nothing.skip_message
    recipes = default_resources(settings)["recipes"]
    made = dg.build_schedule_context(
        resources={"lake": LakeResource(url=settings.lake), "recipes": recipes}
    )
    assert [type(r) for r in cast(Any, nightly_pairs(made))] == [dg.SkipReason]


CHECKS = {
    "state_ids_unique": "trace_states",
    "raw_sessions_never_shrink": "raw_sessions",
    "chosen_differs_from_rejected": "preference_pairs",
}


def run_check(settings: Settings, name: str) -> bool:
    from assets import checks

    result = getattr(checks, name)
    return bool(result(lake=LakeResource(url=settings.lake)).passed)


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_checks_pass_on_the_real_lake(
    replayed: dict[str, Any], settings: Settings, name: str
) -> None:
    assert run_check(settings, name)


@pytest.fixture
def broken(replayed: dict[str, Any], settings: Settings, tmp_path: Path) -> Settings:
    """A copy of the lake that a test may break."""
    import shutil

    copy = tmp_path / "lake"
    shutil.copytree(settings.lake, copy)
    return settings.model_copy(update={"lake": str(copy)})


def test_a_repeated_state_id_is_caught(broken: Settings) -> None:
    lake = Lake(broken.lake)
    day = lake.days("states")[0]
    rows = lake.rows("states", days=[day])
    lake.write(
        "states", [{k: v for k, v in r.items() if k != "day"} for r in [*rows, rows[0]]], day=day
    )
    assert not run_check(broken, "state_ids_unique")


def test_a_shrunk_archive_is_caught(broken: Settings) -> None:
    assert run_check(broken, "raw_sessions_never_shrink")
    lake = Lake(broken.lake)
    day = lake.days("raw_files")[0]
    rows = lake.rows("raw_files", days=[day])
    lake.write("raw_files", [{k: v for k, v in r.items() if k != "day"} for r in rows[1:]], day=day)
    assert not run_check(broken, "raw_sessions_never_shrink")


def test_a_pair_of_equals_is_caught(broken: Settings) -> None:
    lake = Lake(broken.lake)
    day = next(d for d in lake.days("pairs") if lake.rows("pairs", days=[d]))
    rows = [{k: v for k, v in r.items() if k != "day"} for r in lake.rows("pairs", days=[day])]
    rows[0]["rejected"] = json.loads(json.dumps(rows[0]["chosen"]))
    lake.write("pairs", rows, day=day)
    assert not run_check(broken, "chosen_differs_from_rejected")


def test_a_ceiling_ends_the_run_as_an_outcome_and_keeps_what_was_bought(
    settings: Settings, instance: dg.DagsterInstance, tmp_path: Path, replayed: dict[str, Any]
) -> None:
    poor = settings.model_copy(update={"lake": str(tmp_path / "lake"), "max_usd": "1"})
    with Ledger(ledger_target(Lake(poor.lake))) as ledger:
        ledger.do(operations.set_ceiling("global", Decimal("0.02")))  # refuses before the run's own
    defs = build_defs(poor)
    first, last = day_ranges(replayed["days"])[0]
    with loopback():
        defs.resolve_job_def("harvest").execute_in_process(
            instance=instance, tags=range_tags(first, last), run_config=QUIET
        )
        result = defs.resolve_job_def("replay_and_pair").execute_in_process(
            instance=instance, tags=range_tags(first, last), run_config=QUIET, raise_on_error=False
        )
    checks = [e for e in result.get_asset_check_evaluations() if not e.passed]
    told = {e.description for e in checks if e.check_name != "yesterday_is_there"}
    assert len(told) == 1, "the ceiling is told in one sentence"
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert 0 <= float(run.tags["composer/budget_left_usd"]) < 0.02
    spent = sum(row["cost_picodollars"] for row in Lake(poor.lake).rows("replies"))
    assert 0 < spent <= 20_000_000_000


def test_days_without_sessions_are_materialised_empty(
    settings: Settings, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    new = build_defs(settings.model_copy(update={"lake": str(tmp_path / "lake")}))
    with loopback():
        for job in ("harvest", "replay_and_pair"):
            result = new.resolve_job_def(job).execute_in_process(
                instance=instance,
                tags=range_tags("2026-11-01", "2026-11-02"),
                run_config=QUIET,
                raise_on_error=False,
            )
            assert result.success, job
