"""A real browser materialises one partition, and sees what the assets draw of it."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.sync_api import expect

from composer_pipeline.chat.convert import to_chat, wire_messages
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.states.load import load_states
from composer_pipeline.testing.personas import PersonaName, Script
from composer_pipeline.testing.samples import answers, sample_sessions_dir
from composer_pipeline.traces.archive import session_days
from composer_pipeline.traces.ingest import ingest

pytestmark = pytest.mark.ui


def answer(lake: Lake, day: str) -> None:
    """Write what three simulated teachers say; the replay itself has its own tests."""
    states = list(load_states(lake, days=[day]))
    script = Script.from_states(states, answers())
    personas: dict[PersonaName, str] = {"careful": "a", "steady": "b", "contrarian": "c"}
    for persona, family in personas.items():
        rows = [
            {
                "state_id": state.state_id,
                "session_id": state.session_id,
                "family": family,
                "request_hash": f"{family}{state.state_id}",
                "model": f"m/{family}",
                "status": "ok",
                "action": script.decide(
                    persona, {"messages": wire_messages(to_chat(state).messages)}
                ).to_json(),
                "cost_picodollars": 1,
                "simulated": True,
                "training_terms": "enforced",
                "created_at": datetime(2026, 11, 20, tzinfo=UTC),
            }
            for state in states
        ]
        lake.write("replies", rows, day=day, teacher=persona)


def fill_other_days(lake: Lake, day: str) -> None:
    """Bring the other days to where this one is, and keep every pair of all of them."""
    ingest(lake, [sample_sessions_dir()])
    for other in lake.days("states"):
        if other != day:
            answer(lake, other)
            build_pairs(lake, days=[other])
        rows = lake.rows("pairs", days=[other])
        kept = [{k: v for k, v in row.items() if k != "day"} | {"recipe": "r"} for row in rows]
        lake.write("normalized_pairs", kept, day=other)


def see_picture(page: Any, key: str, name: str) -> None:
    """Open a metadata entry and see that the browser has drawn its picture."""
    row = page.locator("tr").filter(has=page.get_by_text(key, exact=True))
    row.get_by_text("Show Markdown").last.click()
    image = page.locator(f"img[alt*='{name}']").first
    image.wait_for(state="visible")
    assert image.evaluate("image => image.complete && image.naturalWidth > 100"), name
    page.keyboard.press("Escape")
    image.wait_for(state="detached")


def test_one_partition_from_the_lineage_page(
    start_dagster: Callable[[], Any], lake: Lake, page: Any
) -> None:
    dagster = start_dagster()
    day = sorted(session_days([sample_sessions_dir()]))[0]
    page.goto(f"{dagster.url}/locations/composer_pipeline/asset-groups/traces/lineage")
    expect(page.get_by_text("raw_sessions").first).to_be_visible()
    # The community pop-up would cover the page; `nux: false` in dagster.yaml keeps it away.
    expect(page.get_by_text("Join the Dagster community")).to_have_count(0)
    page.get_by_role("button", name="Materialize all").click()
    expect(page.get_by_role("button", name="Launch").last).to_be_visible()
    show_all = page.get_by_text("Show all partitions")
    if show_all.count():
        show_all.first.click()
    field = page.locator("input[type=text]:visible").last
    field.fill(day)
    field.press("Enter")
    page.get_by_role("button", name="Launch").last.click()
    dagster.wait_for_success(1)
    page.goto(f"{dagster.url}/assets/trace_states?view=partitions&partition={day}")
    expect(page.get_by_text(day).first).to_be_visible()
    assert lake.days("states") == [day]
    assert lake.read("states").num_rows > 0

    answer(lake, day)
    dagster.launch("preference_pairs", day)
    dagster.wait_for_success(2)
    page.goto(f"{dagster.url}/assets/preference_pairs?view=partitions&partition={day}")
    see_picture(page, "agreement", "agreement heatmap")
    see_picture(page, "funnel", "funnel")
    # One day has too few pairs for separability; the dataset's own page has the figure.
    expect(page.get_by_text("Separability was not measured").first).to_be_visible()
    fill_other_days(lake, day)
    dagster.launch("training_dataset")
    dagster.wait_for_success(3)
    page.goto(f"{dagster.url}/assets/training_dataset")
    see_picture(page, "agreement", "agreement heatmap")
    see_picture(page, "funnel", "funnel")
    see_picture(page, "separability", "ROC")
