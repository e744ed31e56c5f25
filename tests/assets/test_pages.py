"""What a person reads on a table's page: rows, how many more, a preview, a place, a query."""

import importlib
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pytest

from assets import money
from assets.pages import (
    CHANGE,
    DAY_ROWS,
    MOST,
    PLOTS,
    ROWS,
    TablePage,
    explained,
    plots_of,
    record_run,
)
from assets.publication import PublishConfig, published_dataset
from assets.resources import LakeResource, PublicationResource, RecipesResource
from assets.training import report
from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.lake.provenance import build_id
from composer_pipeline.lake.store import Lake
from composer_pipeline.publishing.publish import PublishReport
from tests.fixtures.lake_states import DAY, write_session
from tests.publishing.conftest import fill, row


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def state(command: str) -> tuple[Action, str]:
    return Action("", (ToolCall("Bash", {"command": command}),)), "done"


def test_a_page_says_how_many_rows_more_there_are(lake: Lake) -> None:
    first = TablePage("trace_states", "states", lake, [DAY])
    assert first.of(DAY) == {DAY_ROWS: 0}
    write_session(lake, "one", [state("ls")])
    # There was nothing to compare with: the change is not known, which is not the same as 1.
    assert CHANGE not in first.of(DAY)
    second = TablePage("trace_states", "states", lake, [DAY])
    write_session(lake, "two", [state("a"), state("b")])
    assert (second.of(DAY)[DAY_ROWS], second.of(DAY)[CHANGE]) == (3, 2)


def test_a_page_shows_rows_and_a_query_that_runs(lake: Lake) -> None:
    write_session(lake, "one", [state("ls")])
    found = TablePage("trace_states", "states", lake, [DAY]).of(DAY, {"sessions": 1, "chains": 4})
    assert "command: ls" in found["preview"].value
    assert Path(found["path"].value).is_file()
    query = found["query"].value.split("```")[1].removeprefix("sql\n")
    assert len(duckdb.connect().execute(query).fetchall()) == 1
    assert found["look"].url == f"http://127.0.0.1:3070/view.html#/states?day={DAY}"
    lake.write("hints", [], day=DAY)
    hints = TablePage("error_hints", "hints", lake, [DAY]).of(DAY)
    assert hints["look"].url.endswith(f"#/states?made=hint&day={DAY}")
    assert found["sessions"] == 1
    assert "chains" not in found
    assert [row.data for row in found["other_numbers"].records] == [
        {"number": "chains", "value": 4}
    ]


def test_a_table_of_splits_is_one_page(lake: Lake) -> None:
    lake.write("dataset_pairs", [], split="train")
    lake.write("dataset_pairs", [], split="validation")
    found = TablePage("training_dataset", "dataset_pairs", lake).of()
    assert (found[ROWS], found[CHANGE]) == (0, 0)
    assert found["path"].value.endswith("dataset_pairs/split=*/part.parquet")


def test_no_page_has_more_than_eight_plots_and_each_is_explained() -> None:
    def raw_sessions() -> None:
        """Bytes."""

    for asset, plots in PLOTS.items():
        assert len(plots) <= MOST, asset
        assert all(plots.values()), asset
    assert explained(raw_sessions).__doc__ == f"Bytes.\n\n{plots_of('raw_sessions')}"
    # Markdown shows an indented paragraph as a code block.
    text = money.budget.specs_by_key[money.BUDGET_KEY].description or ""
    assert "page. The job `set_ceiling`" in text
    assert not [line for line in text.splitlines() if line.startswith("    ")]
    assert "- `partition_row_count`: rows of the day." in plots_of("raw_sessions")


def test_numbers_of_a_run_are_its_tags() -> None:
    @dg.op
    def step(context: dg.OpExecutionContext) -> None:
        record_run(context, {"calls": 0, "cost_usd": 0.25, "latency": None})

    @dg.job
    def job() -> None:
        step()

    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.get_run_by_id(job.execute_in_process(instance=instance).run_id)
    assert run is not None
    told = {name: value for name, value in run.tags.items() if name.startswith("composer/")}
    look = "http://127.0.0.1:3070/view.html#/money"
    assert told == {"composer/calls": "0", "composer/cost_usd": "0.25", "composer/look": look}


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_dry_run_publishes_nothing_and_is_not_green(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    made_report = PublishReport("c0ffee", [], 1, {"pairs/train": 2}, True, dry_run)
    stage = importlib.import_module("composer_pipeline.publishing.publish")
    monkeypatch.setattr(stage, "publish", lambda *_, **__: made_report)
    asset: Any = published_dataset
    made = asset(
        config=PublishConfig(repo="a/b", dry_run=dry_run),
        lake=LakeResource(url=lake.url),
        publication=PublicationResource(),
    )
    assert {type(event) for event in made} == {
        dg.AssetObservation if dry_run else dg.MaterializeResult
    }


def test_the_report_is_an_asset(tmp_path: Path) -> None:
    store = fill(Lake(tmp_path / "lake"), [row(0, "train")], [])
    recipes = RecipesResource(normalize="n", train="t", run_root=str(tmp_path / "runs"))
    resources = {"lake": LakeResource(url=store.url), "recipes": recipes}
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([report], resources=resources, instance=instance)
    (made,) = result.asset_materializations_for_node("report")
    found = {name: value.value for name, value in made.metadata.items()}
    assert Path(str(found["file"])).read_text().startswith("<!doctype html>")
    assert (found["pairs"], found["missing"]) == (1, "statistics, training")
    assert found["version"] == build_id(store)
