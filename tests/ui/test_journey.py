"""From a fresh clone to a published dataset and a model, by clicks alone: ``make journey``.

Takes minutes, so ``make test`` leaves it out. With ``JOURNEY_PICTURES=1`` it writes the pictures
of ``docs/journey.md`` again, and those of its last two steps. ``COMPOSER_TRAIN`` names a shorter
recipe.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.places import ROOT
from tests.ui.conftest import DagsterDev, free_port
from tests.ui.lineage_facts import BOX, NODES, areas, states

pytestmark = [
    pytest.mark.ui,
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("JOURNEY"), reason="make journey runs it"),
]

#: Where the page has its graph: right of the list of groups, left of the zoom.
GRAPH = {"x": 545, "y": 200, "width": 935, "height": 530}
PICTURES = ROOT / "docs" / "images"
#: Seconds that a job may take: the training is most of the journey.
PATIENCE_S = 3600
OWN = ("OPENROUTER_API_KEY", "COMPOSER_FIRST_DAY", "COMPOSER_LAST_DAY", "COMPOSER_LAKE",
       "COMPOSER_SESSIONS", "COMPOSER_TEACHERS", "HF_TOKEN", "DAGSTER_HOME")  # fmt: skip


@pytest.fixture
def dagster(tmp_path: Path) -> Iterator[DagsterDev]:
    """``make dev`` in a fresh clone, with the packages of this checkout."""
    clone, port = tmp_path / "clone", free_port()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    env = {name: value for name, value in os.environ.items() if name not in OWN}
    env |= {"PORT": str(port), "PYTHONPATH": str(clone)}
    with (tmp_path / "dev.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "examples.demo.web"],
            cwd=clone,
            env=env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    found = DagsterDev(f"http://127.0.0.1:{port}")

    def ready() -> bool:
        assert process.poll() is None, (tmp_path / "dev.log").read_text()
        return "UI  " in (tmp_path / "dev.log").read_text()

    wait_for(ready, "the UI is there")
    yield found
    process.send_signal(signal.SIGTERM)
    process.wait(120)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait for what takes minutes, asking once a second."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(1)


class Person:
    """Somebody with a browser who only clicks, and a camera."""

    def __init__(self, dagster: DagsterDev, page: Any, album: Path) -> None:
        self.dagster, self.page, self.album = dagster, page, album
        self.pictures: list[Path] = []

    def click(self, role: str, name: str, exact: bool = False) -> None:
        self.page.get_by_role(role, name=name, exact=exact).last.click()

    def picture(self, name: str, clip: Any = None, width: int = 1100) -> Path:
        """Keep what the browser shows, in few colours; a clip keeps its size."""
        file = self.album / f"journey-{len(self.pictures) + 1}-{name}.png"
        self.page.screenshot(path=file, clip=clip)
        with Image.open(file) as image:
            small = image.convert("RGB")
            if clip is None:
                small.thumbnail((width, width))
            small.quantize(64).save(file, optimize=True)
        self.pictures.append(file)
        return file

    def open_job(self, job: str) -> None:
        self.page.goto(self.dagster.url)
        self.click("link", "Jobs")
        self.page.get_by_text(job, exact=True).last.click()

    def new_runs(self, known: set[str]) -> list[Any]:
        """Wait until runs that were not known have begun and ended; return them, all well."""

        def ended() -> bool:
            runs = [run for run in self.dagster.runs() if run["runId"] not in known]
            over = {"SUCCESS", "FAILURE", "CANCELED"}
            return bool(runs) and {run["status"] for run in runs} <= over

        wait_for(ended, "the runs end")
        wait_for(lambda: not self.going_on(), "the backfill ends")
        wait_for(ended, "the last runs end")
        runs = [run for run in self.dagster.runs() if run["runId"] not in known]
        assert {run["status"] for run in runs} == {"SUCCESS"}, runs
        return runs

    def going_on(self) -> bool:
        query = "{ partitionBackfillsOrError { ... on PartitionBackfills { results { status } } } }"
        found = self.dagster.graphql(query)["partitionBackfillsOrError"]["results"]
        return any(each["status"] in ("REQUESTED", "CANCELING") for each in found)

    def known(self) -> set[str]:
        return {run["runId"] for run in self.dagster.runs()}

    def run_job(self, job: str, picture: str = "", days: bool = True) -> list[Any]:
        """Materialise a job's assets, for all days where it has days."""
        known = self.known()
        self.open_job(job)
        self.page.get_by_role("button", name="Materialize").first.click()
        if days:
            self.click("button", "All", exact=True)
            expect(self.page.get_by_text("All partitions").or_(
                self.page.get_by_text("4 partitions")).first).to_be_visible()  # fmt: skip
            if picture:
                self.picture(picture)
            self.page.get_by_role("button", name="Launch").last.click()
        return self.new_runs(known)

    def choose_ceiling(self, amount: str, picture: str = "") -> None:
        known = self.known()
        self.open_job("choose_ceiling")
        self.click("tab", "Launchpad")
        field = self.page.get_by_placeholder("Partition")
        expect(field).to_be_visible()
        if field.input_value():  # it still has the last one, and lists only what fits that
            self.page.get_by_text("+ Add").click()
            expect(field).to_have_value("")
        field.click()
        self.page.get_by_text(amount, exact=True).last.click()
        launch = self.page.get_by_role("button", name="Launch Run")
        expect(launch).to_be_enabled()
        if picture:
            self.picture(picture)
        launch.click()
        self.new_runs(known)

    def open_asset(self, *path: str) -> None:
        self.page.goto(f"{self.dagster.url}/assets/{'/'.join(path)}")

    def open_lineage(self) -> None:
        """Open the lineage page with every group unfolded."""
        self.page.goto(self.dagster.url)
        self.click("link", "Lineage")
        expect(self.page.get_by_text("Materialize all").first).to_be_visible()
        boxes = self.page.locator("svg")
        expect(boxes.get_by_text("traces").first).to_be_visible()
        self.page.get_by_label("settings", exact=True).last.click()
        unfold = self.page.get_by_role("menuitem").filter(has_text="Expand all groups")
        expect(self.page.get_by_role("menuitem").first).to_be_visible()
        if unfold.count():  # the browser remembers it
            unfold.click()
        self.page.keyboard.press("Escape")
        expect(boxes.get_by_text("published_dataset").first).to_be_visible()
        self.page.wait_for_timeout(3000)  # for the picture: until the graph has moved into place


def test_a_person_who_only_clicks(dagster: DagsterDev, page: Any, tmp_path: Path) -> None:
    album = PICTURES if os.environ.get("JOURNEY_PICTURES") else tmp_path
    person = Person(dagster, page, album)
    person.open_lineage()
    assert areas(person.picture("start", clip=GRAPH))["green"] == 0
    assert set(_states(dagster).values()) == {"grey"}

    person.run_job("harvest", "harvest")
    person.run_job("plan")
    person.open_asset("replay_plan")
    expect(page.get_by_text("expected_usd").last).to_be_visible()
    page.get_by_text("by_teacher").last.scroll_into_view_if_needed()
    person.picture("plan")

    person.choose_ceiling("0.05 USD", "ceiling")
    stopped = person.run_job("replay_and_pair")
    page.goto(f"{dagster.url}/runs/{_at_the_ceiling(dagster, stopped)}")
    page.get_by_text("replay", exact=True).first.click()  # its bar: the events of this step alone
    page.get_by_text("Stopped at the ceiling of global").first.scroll_into_view_if_needed()
    person.picture("reached")
    assert "grey" in _states(dagster).values()

    person.choose_ceiling("1 USD", "raised")
    person.run_job("replay_and_pair")
    person.open_asset("preference_pairs")
    expect(page.get_by_text("krippendorff_alpha").last).to_be_visible()
    person.picture("pairs")

    person.run_job("train", days=False)
    person.run_job("publish", days=False)
    person.open_asset("published_dataset")
    expect(page.get_by_text("v2026.").first).to_be_visible()
    person.picture("published")

    found = _states(dagster)
    assert set(found.values()) == {"green"}, found
    person.open_lineage()
    last = person.picture("finished", clip=GRAPH)
    seen = areas(last)
    assert (seen["grey"] > BOX / 2, seen["red"]) == (False, 0)  # the zoom's buttons are grey
    assert seen["green"] > BOX * len(found)


def _states(dagster: DagsterDev) -> dict[str, str]:
    return states(dagster.graphql(NODES))


def _at_the_ceiling(dagster: DagsterDev, runs: list[Any]) -> str:
    """Return the run that a ceiling ended; its tag says so."""
    query = "{ runsOrError { ... on Runs { results { runId tags { key value } } } } }"
    told = {
        run["runId"]: {tag["key"]: tag["value"] for tag in run["tags"]}
        for run in dagster.graphql(query)["runsOrError"]["results"]
    }
    (found,) = (
        run["runId"]
        for run in runs
        if told[run["runId"]].get("composer/ceiling_reached", "no") != "no"
    )
    return str(found)
