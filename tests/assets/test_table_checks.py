"""The checks that every table has: what they say, of what, and what turns them red."""

import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pytest
import yaml

from assets.checks import (
    AFFORDED,
    BLOCKING,
    WARNING,
    build_reply_checks,
    build_table_checks,
    covered,
    up_to_date,
    yesterday_is_there,
)
from assets.definitions import build_defs
from assets.partitions import DAYS
from assets.resources import LakeResource, default_resources
from composer_pipeline import TeacherSet, normalize, replay
from composer_pipeline.lake.provenance import Staleness
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import recipes_dir
from examples.demo.profile import demo_settings, loopback
from tests.fixtures.whole_lake import DAY

TEACHERS = recipes_dir() / "teachers" / "demo.yaml"


@pytest.fixture
def lake(whole_lake: Path, tmp_path: Path) -> Lake:
    shutil.copytree(whole_lake, tmp_path / "lake")
    return Lake(tmp_path / "lake")


def run(lake: Lake, asset: str, day: str = DAY) -> dict[str, Any]:
    """Run the table checks of one asset, as after a run of one day; return name -> evaluation."""
    key = dg.AssetKey(asset.split("/"))
    replies = [key] if "/" in asset else []
    checks = [c for c in build_table_checks(replies) if key in {k.asset_key for k in c.check_keys}]

    @dg.asset(key=key, partitions_def=DAYS)
    def made() -> None:
        pass

    settings = demo_settings(lake=str(lake.root)).model_copy(update={"normalize": "none"})
    resources = {k: v for k, v in default_resources(settings).items() if k in (
        "lake", "sessions", "recipes", "teachers", "repositories")}  # fmt: skip
    done = dg.materialize(
        [made, *checks], partition_key=day, resources=resources, raise_on_error=False
    )
    return {e.check_name: e for e in done.get_asset_check_evaluations()}


def test_every_daily_table_has_every_check(tmp_path: Path) -> None:
    graph = build_defs(demo_settings(lake=str(tmp_path))).resolve_asset_graph()
    found: dict[str, set[str]] = {}
    for key in graph.asset_check_keys:
        found.setdefault(key.asset_key.to_user_string(), set()).add(key.name)
    daily = {
        key.to_user_string()
        for key in graph.materializable_asset_keys
        if graph.get(key).partitions_def == DAYS
    }
    assert len(daily) >= 9
    everywhere = {*BLOCKING, *WARNING} - {"rows_accounted_for"}
    for name in daily - {"replay_plan"}:
        assert everywhere <= found[name], name
    assert "replies_usable" in found["teacher_replies/careful"]
    accounted = {"rows_accounted_for", "states_accounted_for", "pairs_accounted_for"}
    for name in ("trace_states", "error_hints", "preference_pairs", "normalized_pairs"):
        assert found[name] & accounted


def test_a_lake_as_it_should_be_passes(lake: Lake) -> None:
    normalize(lake, "none")
    for asset in ("trace_states", "error_hints", "preference_pairs", "teacher_replies/careful"):
        found = run(lake, asset)
        assert {name for name, one in found.items() if not one.passed} == set(), asset


def test_each_wrong_row_turns_its_check_red(lake: Lake) -> None:
    hints = lake.read("hints", days=[DAY]).drop_columns(["day"])
    assert len(hints) > 1
    lake.write("hints", [*hints.to_pylist(), hints.to_pylist()[0]], day=DAY)
    found = run(lake, "error_hints")
    assert not found["rows_unique"].passed
    assert found["rows_unique"].severity is dg.AssetCheckSeverity.ERROR
    lake.write("hints", hints.slice(1), day=DAY)
    assert not run(lake, "error_hints")["rows_accounted_for"].passed
    import pyarrow.parquet as pq

    path = lake.path("hints", day=DAY)
    pq.write_table(hints.drop_columns(["leakage"]).append_column("odd", hints["text"]), path)
    assert not run(lake, "error_hints")["columns_as_described"].passed


def test_rows_of_other_days_are_not_this_runs(lake: Lake) -> None:
    other = next(day for day in lake.days("hints") if day != DAY and lake.rows("hints", days=[day]))
    lake.write("hints", [], day=other)
    assert run(lake, "error_hints")["rows_accounted_for"].passed
    assert not run(lake, "error_hints", other)["rows_accounted_for"].passed


def test_up_to_date_lists_the_days_and_their_cure() -> None:
    old, new = Staleness("parser 2 -> 3"), Staleness("not made yet", "absent")
    days = {"2026-11-01": old, "2026-11-02": old, "2026-11-05": old, "2026-11-07": new}
    found = up_to_date(days, "trace_states")
    assert not found.passed
    assert found.severity is dg.AssetCheckSeverity.WARN
    assert found.description == (
        "3 days are not current: backfill trace_states for 2026-11-01...2026-11-02, 2026-11-05."
    )
    rows = cast(Any, found.metadata["stale"]).records
    assert next(row.data for row in rows) == {"day": "2026-11-01", "why": "parser 2 -> 3"}
    assert up_to_date(
        {"2026-11-07": new, "2026-11-08": Staleness("2 missing", "missing")}, "x"
    ).passed
    # A day that was told as empty and got sessions since is green, and not made.
    green = up_to_date({"2026-11-07": new}, "x", {"2026-11-07"})
    assert green.description == "1 days are not current: backfill x for 2026-11-07."


def test_yesterday_is_the_day_before_today() -> None:
    why = {"2026-11-06": Staleness("not parsed yet", "absent")}
    found = yesterday_is_there(why, "2026-11-07")
    assert (found.passed, found.description) == (False, "2026-11-06: not parsed yet.")
    assert found.severity is dg.AssetCheckSeverity.WARN
    assert yesterday_is_there(why, "2026-11-08").passed


def test_up_to_date_asks_about_its_own_asset(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("composer_pipeline.preferences.hints.HINTS_VERSION", "other")
    hints = run(lake, "error_hints")["up_to_date"]
    assert not hints.passed
    assert hints.metadata["days"].value == len(lake.days("hints"))
    assert run(lake, "trace_states")["up_to_date"].passed


def test_a_missing_teacher_is_red_and_says_why(lake: Lake, tmp_path: Path) -> None:
    raw = yaml.safe_load(TEACHERS.read_text())
    raw["teachers"][0]["model"] = "loopback/withdrawn-20261101"
    file = tmp_path / "teachers.yaml"
    file.write_text(yaml.safe_dump(raw))

    def check(name: str, file: Path = file) -> dg.AssetCheckResult:
        key = dg.AssetCheckKey(dg.AssetKey(["teacher_replies", name]), "replies_cover_states")
        return covered(lake, str(file), key)

    assert check("careful", TEACHERS).passed
    with loopback():
        replay(lake, TeacherSet.load(file), max_usd=Decimal(1), days=[DAY])
    found = check("careful")
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.ERROR)
    states = len(lake.read("states", days=[DAY]))
    assert str(found.description).startswith(f"{states} replies are missing: teacher stopped: ")
    assert "loopback/withdrawn-20261101 is not in the catalogue" in str(found.description)
    (row,) = cast(Any, found.metadata["days"]).records
    assert (row.data["day"], row.data["nights"]) == (DAY, "1 of 5")
    assert check("steady").passed
    assert covered(lake, str(file), AFFORDED).passed  # it was not for want of money
    assert "none.yaml" in str(check("steady", tmp_path / "none.yaml").description)


def test_unusable_replies_warn_above_the_bound(lake: Lake) -> None:
    (check,) = build_reply_checks([dg.AssetKey(["teacher_replies", "careful"])])
    asked = cast(Any, check)
    assert asked(lake=LakeResource(url=str(lake.root))).passed
    part = {"teacher": "careful", "day": DAY}
    rows = lake.read("replies", days=[DAY], teacher="careful").drop_columns(["day", "teacher"])
    bad = [{**row, "status": "unusable"} for row in rows.to_pylist()]
    lake.write("replies", bad, **part)
    found = asked(lake=LakeResource(url=str(lake.root)))
    assert not found.passed
    assert found.metadata["unusable_share"].value == 1.0
