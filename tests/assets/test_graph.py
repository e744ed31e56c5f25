"""The graph as users see it: names, groups, partitions, policies, checks, schedules."""

import ast
from datetime import UTC, datetime

import dagster as dg
import pytest

from assets.definitions import build_defs
from assets.partitions import DAYS, FREE, PAID, day_ranges
from composer_pipeline import versions
from composer_pipeline.lake.schema import SCHEMA_VERSION
from examples.demo.profile import demo_settings
from tests.places import ROOT


@pytest.fixture(scope="module")
def defs(tmp_path_factory: pytest.TempPathFactory) -> dg.Definitions:
    return build_defs(demo_settings(lake=str(tmp_path_factory.mktemp("lake"))))


def specs(defs: dg.Definitions) -> dict[str, dg.AssetSpec]:
    return {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}


def test_definitions_are_loadable(defs: dg.Definitions) -> None:
    dg.Definitions.validate_loadable(defs)


def test_graph_is_the_design(defs: dg.Definitions) -> None:
    groups: dict[str, set[str]] = {}
    for name, spec in specs(defs).items():
        groups.setdefault(str(spec.group_name), set()).add(name.split("/")[0])
    assert groups == {
        "traces": {"raw_sessions", "trace_states", "edit_outcomes"},
        "replay": {"budget", "replay_plan", "teacher_replies"},
        "preferences": {
            "error_hints",
            "preference_pairs",
            "normalized_pairs",
            "training_dataset",
            "published_dataset",
        },
        "training": {"trained_model", "model_evaluation", "report"},
        "night": {"tonights_model"},
    }


def test_every_asset_explains_itself(defs: dg.Definitions) -> None:
    for name, spec in specs(defs).items():
        assert spec.description, name
        assert spec.owners, name
        assert spec.kinds, name
        assert spec.code_version, name


def test_two_backfill_policies_and_daily_partitions(defs: dg.Definitions) -> None:
    policies = {}
    for asset in defs.resolve_asset_graph().assets_defs:
        for key in asset.keys:
            policies[key.to_user_string()] = (asset.partitions_def, asset.backfill_policy)
    free = {"raw_sessions", "trace_states", "error_hints", "edit_outcomes"}
    unpartitioned = {
        "budget",
        "training_dataset", "published_dataset", "trained_model", "model_evaluation", "report",
        "tonights_model",
    }  # fmt: skip
    for name, (partitions, policy) in policies.items():
        if name in unpartitioned:
            assert partitions is None, name
        else:
            assert partitions == DAYS, name
            assert policy == (FREE if name in free else PAID), name


def test_what_the_night_harvests_becomes_overdue(defs: dg.Definitions) -> None:
    aging = {name for name, spec in specs(defs).items() if spec.freshness_policy}
    assert aging == {"raw_sessions", "trace_states", "error_hints", "edit_outcomes"}


def test_replay_is_one_subsettable_step(defs: dg.Definitions) -> None:
    replays = [a for a in defs.resolve_asset_graph().assets_defs if a.op.name == "replay"]
    assert len(replays) == 1
    assert replays[0].can_subset
    assert len(replays[0].keys) >= 3


def test_blocking_checks(defs: dg.Definitions) -> None:
    graph = defs.resolve_asset_graph()
    blocking = {key.name for key in graph.asset_check_keys if graph.get_check_spec(key).blocking}
    assert blocking == {
        "state_ids_unique",
        "prefixes_complete",
        "raw_sessions_never_shrink",
        "chosen_differs_from_rejected",
        "states_accounted_for",
        "pairs_accounted_for",
        "dataset_accounted_for",
        "no_group_in_two_splits",
        "not_worse_than_base",
        "within_budget",
        "columns_as_described",
        "rows_unique",
        "rows_accounted_for",
    }


def test_schedules_spend_nothing_by_default(defs: dg.Definitions) -> None:
    harvest = defs.resolve_schedule_def("nightly_harvest")
    replay = defs.resolve_schedule_def("nightly_replay")
    assert harvest.default_status is dg.DefaultScheduleStatus.RUNNING
    assert replay.default_status is dg.DefaultScheduleStatus.STOPPED
    for name in ("weekly_train", "weekly_publish"):
        weekly = defs.resolve_schedule_def(name)
        assert weekly.default_status is dg.DefaultScheduleStatus.STOPPED
    pairs = defs.resolve_schedule_def("nightly_pairs")
    assert pairs.default_status is dg.DefaultScheduleStatus.RUNNING
    job = defs.resolve_job_def(pairs.job_name)
    keys = {key.to_user_string() for key in job.asset_layer.executable_asset_keys}
    assert keys == {"preference_pairs", "normalized_pairs"}
    publish = defs.resolve_job_def("publish_nightly")
    keys = {key.to_user_string() for key in publish.asset_layer.executable_asset_keys}
    assert keys == {"training_dataset", "published_dataset"}
    job = defs.resolve_job_def("harvest")
    keys = {key.to_user_string() for key in job.asset_layer.executable_asset_keys}
    assert keys == {"raw_sessions", "trace_states", "error_hints", "edit_outcomes"}


def test_today_is_a_partition() -> None:
    noon = datetime(2026, 11, 16, 12, tzinfo=UTC)
    assert DAYS.get_partition_keys(current_time=noon)[-1] == "2026-11-16"


def test_day_ranges() -> None:
    days = ["2026-11-03", "2026-11-01", "2026-11-02", "2026-11-05", "2026-11-02"]
    assert day_ranges(days) == [("2026-11-01", "2026-11-03"), ("2026-11-05", "2026-11-05")]
    assert day_ranges([]) == []


def test_a_range_goes_over_days_that_hold_nothing_up_to_a_week() -> None:
    one, two = ("2026-11-01", "2026-11-01"), ("2026-11-05", "2026-11-05")
    days = ["2026-11-05", "2026-11-01"]
    assert day_ranges(days, []) == day_ranges(days, days) == [("2026-11-01", "2026-11-05")]
    for held in ("2026-11-02", "2026-11-04"):
        assert day_ranges(days, [held]) == [one, two]
    assert day_ranges(["2026-11-01", "2026-11-09"], []) == [("2026-11-01", "2026-11-09")]
    assert len(day_ranges(["2026-11-01", "2026-11-10"], [])) == 2


def test_code_versions_are_the_librarys(defs: dg.Definitions) -> None:
    found = {name.split("/")[0]: spec.code_version for name, spec in specs(defs).items()}
    assert found == {
        "raw_sessions": str(SCHEMA_VERSION),
        "trace_states": f"{versions.PARSER_VERSION}.{versions.REDACTION_VERSION}",
        "edit_outcomes": versions.OUTCOMES_VERSION,
        "error_hints": versions.HINTS_VERSION,
        "budget": str(SCHEMA_VERSION),
        "replay_plan": versions.CONVERTER_VERSION,
        "teacher_replies": versions.CONVERTER_VERSION,
        "preference_pairs": f"{versions.PAIRS_VERSION}.{versions.CONVERTER_VERSION}",
        "normalized_pairs": versions.NORMALIZE_VERSION,
        "training_dataset": str(SCHEMA_VERSION),
        "published_dataset": str(SCHEMA_VERSION),
        "trained_model": versions.TRAINING_VERSION,
        "model_evaluation": versions.EVALUATION_VERSION,
        "report": versions.REPORT_VERSION,
        "tonights_model": versions.NIGHTS_VERSION,
    }


def test_no_code_version_is_typed() -> None:
    for file in (ROOT / "assets").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "code_version":
                named = [n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)]
                assert any(name.endswith("_VERSION") for name in named), f"{file}:{node.lineno}"
