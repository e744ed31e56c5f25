"""A real browser materialises one partition from the lineage page of a real `dagster dev`."""

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from composer_pipeline.lake.store import Lake
from composer_pipeline.testing.sessions import sample_sessions_dir
from composer_pipeline.traces.harvest import session_days

pytestmark = pytest.mark.ui


def test_one_partition_from_the_lineage_page(
    start_dagster: Callable[[], Any], lake: Lake, page: Any
) -> None:
    dagster = start_dagster()
    day = sorted(session_days([sample_sessions_dir()]))[0]
    page.goto(f"{dagster.url}/locations/composer_pipeline/asset-groups/traces/lineage")
    expect(page.get_by_text("raw_sessions").first).to_be_visible(timeout=60_000)
    # The community pop-up would cover the page; `nux: false` in dagster.yaml keeps it away.
    expect(page.get_by_text("Join the Dagster community")).to_have_count(0)
    page.get_by_role("button", name="Materialize all").click()
    show_all = page.get_by_text("Show all partitions")
    if show_all.count():
        show_all.first.click()
    field = page.locator("input[type=text]:visible").last
    field.fill(day)
    field.press("Enter")
    page.get_by_role("button", name="Launch").last.click()
    assert {run["status"] for run in dagster.wait_for_runs(1)} == {"SUCCESS"}
    page.goto(f"{dagster.url}/assets/trace_states?view=partitions&partition={day}")
    expect(page.get_by_text(day).first).to_be_visible(timeout=60_000)
    assert lake.days("states") == [day]
    assert lake.read("states").num_rows > 0
