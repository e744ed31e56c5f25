"""The preference assets and their checks: pictures, sums, and leaks that stop a run."""

import base64
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree

import dagster as dg
import pytest

from assets.definitions import build_defs
from assets.partitions import partition_days
from assets.schedules import range_tags
from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import Settings
from examples.demo.profile import demo_settings
from examples.demo.run import QUIET
from tests.fixtures.lake_states import DAY, write_session

NOW = datetime(2026, 11, 20, tzinfo=UTC)


def read(name: str) -> Action:
    return Action("", (ToolCall("Read", {"file_path": name}),))


@pytest.fixture
def settings(tmp_path: Any) -> Settings:
    """A lake with eight states that two families answer alike, against the agent."""
    lake = Lake(tmp_path / "lake")
    ids = write_session(lake, "one", [(read(f"/a{n}"), "x") for n in range(8)])
    for teacher in ("careful", "steady"):
        rows = [
            {
                "state_id": state_id, "session_id": "one", "family": teacher,
                "request_hash": f"{teacher}{state_id}", "model": "m", "status": "ok",
                "action": Action("", (ToolCall("Grep", {"pattern": f"p{n}"}),)).to_json(),
                "cost_picodollars": 5, "simulated": True, "created_at": NOW,
                "training_terms": "enforced",
            }
            for n, state_id in enumerate(ids)
        ]  # fmt: skip
        lake.write("replies", rows, day=DAY, teacher=teacher)
    return demo_settings(lake=lake.url)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def execute(
    settings: Settings, instance: dg.DagsterInstance, selection: Any, **tags: str
) -> dg.ExecuteInProcessResult:
    job = dg.define_asset_job("probe", selection=selection)
    defs = dg.Definitions.merge(build_defs(settings), dg.Definitions(jobs=[job]))
    return defs.resolve_job_def("probe").execute_in_process(
        instance=instance, run_config=QUIET, raise_on_error=False, tags=tags
    )


def checks(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {found.check_name: found for found in result.get_asset_check_evaluations()}


def metadata_of(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = result.get_asset_materialization_events()
    found = event.step_materialization_data.materialization.metadata
    return {key: value.value for key, value in found.items()}


def picture(text: str) -> ElementTree.Element:
    data = text.split("data:image/svg+xml;base64,")[1].split(")")[0]
    return ElementTree.fromstring(base64.b64decode(data))


def test_pairs_come_with_pictures_and_pass_their_checks(
    settings: Settings, instance: dg.DagsterInstance
) -> None:
    result = execute(
        settings,
        instance,
        dg.AssetSelection.assets("preference_pairs"),
        **{"dagster/partition": DAY},
    )
    assert result.success
    (event,) = result.get_asset_materialization_events()
    metadata: dict[str, Any] = {
        key: value.value
        for key, value in event.step_materialization_data.materialization.metadata.items()
    }
    texts = [t.text for t in picture(metadata["agreement"]).iter() if t.text]
    assert texts.count("100%") == 2  # the two teachers, in both triangles
    assert texts.count("0%") == 4  # and the agent with neither
    assert {"agent", "careful", "steady"} <= set(texts)
    labels = picture(metadata["funnel"]).iter("{http://www.w3.org/2000/svg}text")
    funnel = [t.text or "" for t in labels]
    assert [t for t in funnel if not t.isdigit()] == [
        "states", "voted", "consensus", "candidates", "pairs",
    ]  # fmt: skip
    assert metadata["separability"] == "Separability was not measured: 8 pairs, fewer than 50."
    assert metadata["noise_floor"] == "not measured: no control replies"
    assert metadata["krippendorff_alpha"] == 1.0
    event_bytes = sum(len(str(v)) for v in metadata.values())
    assert event_bytes < 48_000
    found = checks(result)
    assert found["states_accounted_for"].passed
    assert found["states_accounted_for"].blocking
    stored = Lake(settings.lake).rows("preference_statistics", scope=DAY)
    assert {r["statistic"] for r in stored} >= {"agreement_L1", "krippendorff_alpha", "rows"}


def test_a_normalised_day_shows_what_was_dropped_on_that_day(
    settings: Settings, instance: dg.DagsterInstance
) -> None:
    lake = Lake(settings.lake)
    other = {"pair_id": "p", "state_id": "s", "step": "2:of_another_day", "op": "f", "field": "x"}
    lake.write("drops", [other], stage="normalize", day="2026-11-15")
    for asset in ("preference_pairs", "normalized_pairs"):
        only = dg.AssetSelection.assets(asset)
        result = execute(settings, instance, only, **{"dagster/partition": DAY})
        assert result.success
    assert lake.rows("normalized_pairs", days=[DAY])
    own = {row["step"] for row in lake.rows("drops", days=[DAY], stage="normalize")}
    shown = metadata_of(result).get("dropped_by_op")
    assert {row.data["op"] for row in shown or ()} == own
    assert "of_another_day" not in str(shown)


def plant(lake: Lake, table: str, **keys: str) -> None:
    """Take the first row out of a partition."""
    rows = lake.rows(table, **({"days": [keys["day"]]} if "day" in keys else keys))
    plain = [{k: v for k, v in row.items() if k not in keys} for row in rows]
    lake.write(table, plain[1:], **keys)


@pytest.mark.parametrize(
    ("asset", "check", "table", "keys"),
    [
        ("preference_pairs", "states_accounted_for", "votes", {"day": DAY}),
        ("preference_pairs", "states_accounted_for", "pairs", {"day": DAY}),
        ("normalized_pairs", "pairs_accounted_for", "normalized_pairs", {"day": DAY}),
        ("training_dataset", "dataset_accounted_for", "dataset_pairs", {"split": "train"}),
    ],
)
def test_a_planted_leak_fails_its_blocking_check(
    settings: Settings,
    instance: dg.DagsterInstance,
    asset: str,
    check: str,
    table: str,
    keys: dict[str, str],
) -> None:
    lake = Lake(settings.lake)
    day = {"dagster/partition": DAY} if "day" in keys else {}
    execute(
        settings,
        instance,
        dg.AssetSelection.assets("preference_pairs"),
        **{"dagster/partition": DAY},
    )
    pairs = lake.rows("pairs")
    kept = [{k: v for k, v in row.items() if k != "day"} for row in pairs]
    lake.write("normalized_pairs", [{**row, "recipe": "r"} for row in kept], day=DAY)
    about = {"recipe": "r", "group_id": "g", "day": DAY}
    rows = [
        {k: v for k, v in row.items() if k in TABLES["dataset_pairs"].schema.names} | about
        for row in kept
    ]
    lake.write("dataset_pairs", rows, split="train")
    only = dg.AssetSelection.checks_for_assets(asset)
    assert checks(execute(settings, instance, only, **day))[check].passed
    plant(lake, table, **keys)
    result = checks(execute(settings, instance, only, **day))[check]
    assert not result.passed
    assert result.blocking
    assert "is lost" in str(result.metadata["examples"].value)
    if day:  # a run of another day is not stopped by it
        other = {"dagster/partition": "2026-11-15"}
        assert checks(execute(settings, instance, only, **other))[check].passed


def test_style_that_tells_the_sides_apart_fails_the_check(
    settings: Settings, instance: dg.DagsterInstance
) -> None:
    lake, dice = Lake(settings.lake), random.Random(1)

    def side(quote: str) -> list[dict[str, Any]]:
        words = " ".join(f"{quote}w{dice.randrange(9)}{quote}" for _ in range(dice.randrange(3, 9)))
        function = {"name": "Bash", "arguments": {"command": words}}
        return [{"role": "assistant", "content": "", "tool_calls": [{"function": function}]}]

    def write(quote: str, pairs: int = 80) -> None:
        rows = [
            {
                "pair_id": str(n), "session_id": f"s{n % 8}", "prompt": [],
                "chosen": side(quote), "rejected": side(""), "tools": [], "recipe": "r",
            }
            for n in range(pairs)
        ]  # fmt: skip
        lake.write("dataset_pairs", rows, split="train")

    def check() -> dg.AssetCheckEvaluation:
        only = dg.AssetSelection.checks_for_assets("training_dataset")
        return checks(execute(settings, instance, only))["chosen_not_told_by_style"]

    write("'")
    found = check()
    assert not found.passed
    assert not found.blocking
    assert found.severity is dg.AssetCheckSeverity.WARN
    assert float(str(found.metadata["auc"].value)) > 0.9
    picture(str(found.metadata["roc"].value))
    write("")
    assert check().passed
    write("'", pairs=20)
    found = check()
    assert found.passed
    assert found.metadata["measured"].value is False
    assert "not measured" in str(found.description).lower()


def test_days_of_a_run() -> None:
    assert partition_days({"dagster/partition": "2026-11-16"}) == ["2026-11-16"]
    assert partition_days(range_tags("2026-11-16", "2026-11-18")) == [
        "2026-11-16", "2026-11-17", "2026-11-18",
    ]  # fmt: skip
    assert partition_days(range_tags("2026-11-16", "2026-11-16")) == ["2026-11-16"]
    assert partition_days({}) is None
