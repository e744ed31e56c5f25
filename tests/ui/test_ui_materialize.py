"""A real browser materialises one partition from the lineage page of a real `dagster dev`."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from assets.profile import demo_settings, to_env
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.replay.convert import to_chat, wire_messages
from composer_pipeline.testing.personas import PersonaName, Script
from composer_pipeline.testing.sessions import answers, sample_sessions_dir
from composer_pipeline.traces.harvest import session_days
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.traces.load import load_states

pytestmark = pytest.mark.ui

#: Without these Chromium asks for hosts of its own, which a closed network refuses.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

#: `dagster dev` is ready in 13 to 60 s, a queued run starts in about 10: twice that and more.
PATIENCE_S = 180


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def graphql(url: str, query: str) -> Any:
    request = urllib.request.Request(
        f"{url}/graphql",
        json.dumps({"query": query}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["data"]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def url(tmp_path: Path, root: Path, lake: Lake) -> Iterator[str]:
    """A `dagster dev` with its own storage and lake, stopped with its whole group."""
    for name in ("dagster.yaml", "workspace.yaml"):
        shutil.copy(root / name, tmp_path)
    port = free_port()
    env = {**os.environ, **to_env(demo_settings(lake=lake.root)), "PYTHONPATH": str(root)}
    log = (tmp_path / "dev.log").open("wb")
    process = subprocess.Popen(
        [
            sys.executable,
            *("-m", "dagster", "dev", "-w", "workspace.yaml"),
            *("-h", "127.0.0.1", "-p", str(port)),
        ],
        cwd=tmp_path,
        env=env,
        start_new_session=True,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    base = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                urllib.request.urlopen(f"{base}/server_info", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, (tmp_path / "dev.log").read_text()
                assert time.monotonic() < deadline, (tmp_path / "dev.log").read_text()
                time.sleep(0.5)
        yield base
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.close()


def wait_for_runs(url: str, number: int) -> None:
    """Wait until so many runs have ended, all of them well."""
    query = "{ runsOrError { ... on Runs { results { status } } } }"
    deadline = time.monotonic() + PATIENCE_S
    statuses: list[str] = []
    while time.monotonic() < deadline:
        runs = graphql(url, query)["runsOrError"]["results"]
        statuses = [run["status"] for run in runs]
        if len(statuses) >= number and set(statuses) <= {"SUCCESS", "FAILURE", "CANCELED"}:
            break
        time.sleep(1)
    assert len(statuses) >= number, "no run was launched"
    assert set(statuses) == {"SUCCESS"}


def launch(url: str, asset: str, day: str = "") -> None:
    """Materialise one asset through the API that the page's button calls."""
    tags = f'[{{key: "dagster/partition", value: "{day}"}}]' if day else "[]"
    query = f"""
        mutation {{ launchPipelineExecution(executionParams: {{
          selector: {{repositoryLocationName: "composer_pipeline",
            repositoryName: "__repository__", pipelineName: "__ASSET_JOB",
            assetSelection: [{{path: ["{asset}"]}}], assetCheckSelection: null}},
          executionMetadata: {{tags: {tags}}}, runConfigData: "{{}}"
        }}) {{ __typename ... on PythonError {{ message }} }} }}"""
    found = graphql(url, query)["launchPipelineExecution"]
    assert found["__typename"] == "LaunchRunSuccess", found


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
            build_pairs(lake, other)
        rows = lake.rows("pairs", days=[other])
        kept = [{k: v for k, v in row.items() if k != "day"} | {"recipe": "r"} for row in rows]
        lake.write("normalized_pairs", kept, day=other)


def see_picture(page: Any, key: str, name: str) -> None:
    """Open a metadata entry and see that the browser has drawn its picture."""
    row = page.locator("tr").filter(has=page.get_by_text(key, exact=True))
    row.get_by_text("Show Markdown").last.click()
    image = page.locator(f"img[alt*='{name}']").first
    image.wait_for(state="visible", timeout=60_000)
    assert image.evaluate("image => image.complete && image.naturalWidth > 100"), name
    page.keyboard.press("Escape")
    image.wait_for(state="detached", timeout=60_000)


def test_one_partition_from_the_lineage_page(url: str, lake: Lake, chromium: str) -> None:
    from playwright.sync_api import expect, sync_playwright

    day = sorted(session_days([sample_sessions_dir()]))[0]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1500, "height": 900})
        page.set_default_timeout(60_000)
        page.goto(f"{url}/locations/composer_pipeline/asset-groups/traces/lineage")
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

        wait_for_runs(url, 1)
        page.goto(f"{url}/assets/trace_states?view=partitions&partition={day}")
        expect(page.get_by_text(day).first).to_be_visible(timeout=60_000)
        assert lake.days("states") == [day]
        assert lake.read("states").num_rows > 0

        answer(lake, day)
        launch(url, "preference_pairs", day)
        wait_for_runs(url, 2)
        page.goto(f"{url}/assets/preference_pairs?view=partitions&partition={day}")
        see_picture(page, "agreement", "agreement heatmap")
        see_picture(page, "funnel", "funnel")
        # One day has too few pairs for separability; the dataset's own page has the figure.
        expect(page.get_by_text("Separability was not measured").first).to_be_visible()
        fill_other_days(lake, day)
        launch(url, "training_dataset")
        wait_for_runs(url, 3)
        page.goto(f"{url}/assets/training_dataset")
        see_picture(page, "agreement", "agreement heatmap")
        see_picture(page, "funnel", "funnel")
        see_picture(page, "separability", "ROC")
        browser.close()
