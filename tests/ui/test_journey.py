"""From a fresh clone to a published dataset and a model, by clicks alone: ``make journey``.

Takes minutes, so ``make test`` leaves it out. With ``JOURNEY_PICTURES=1`` it writes the pictures
of ``docs/journey.md`` again. ``COMPOSER_TRAIN`` names a shorter recipe.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.fixtures.waiting import wait_until
from tests.places import ROOT
from tests.ui.conftest import DagsterDev, free_port
from tests.ui.lineage_facts import NODES, areas, states

pytestmark = [
    pytest.mark.ui,
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("JOURNEY"), reason="make journey runs it"),
]

PICTURES = ROOT / "docs" / "images"
#: Seconds that a job may take: the training is most of the journey.
PATIENCE_S = 3600
OWN = ("OPENROUTER_API_KEY", "COMPOSER_FIRST_DAY", "COMPOSER_LAST_DAY", "COMPOSER_LAKE",
       "COMPOSER_SESSIONS", "COMPOSER_TEACHERS", "HF_TOKEN", "DAGSTER_HOME")  # fmt: skip


@pytest.fixture
def dagster(tmp_path: Path) -> Iterator[DagsterDev]:
    """``make dev`` in a fresh clone, without its set-up: the packages are those of this checkout."""
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

    wait_until(ready, "the UI is there", PATIENCE_S)
    yield found
    process.send_signal(signal.SIGTERM)
    process.wait(120)


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
        self.click("link", job, exact=True)

    def new_runs(self, known: set[str]) -> list[Any]:
        """Wait until runs that were not known have begun and ended; return them, all well."""

        def ended() -> bool:
            runs = [run for run in self.dagster.runs() if run["runId"] not in known]
            over = {"SUCCESS", "FAILURE", "CANCELED"}
            return bool(runs) and {run["status"] for run in runs} <= over

        wait_until(ended, "the runs end", PATIENCE_S)
        wait_until(lambda: not self.going_on(), "the backfill ends", PATIENCE_S)
        wait_until(ended, "the last runs end", PATIENCE_S)
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
        self.click("button", "Materialize all")
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
        self.page.get_by_placeholder("Partition").click()
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
        for group in ("traces", "replay", "preferences", "training"):
            shown = self.page.locator("svg").get_by_text(group, exact=True)
            expect(shown.first).to_be_visible()
            if self.page.get_by_role("img", name="unfold_more").count():
                shown.first.click()
        expect(self.page.locator("svg").get_by_text("published_dataset").first).to_be_visible()


def test_a_person_who_only_clicks(dagster: DagsterDev, page: Any, tmp_path: Path) -> None:
    album = PICTURES if os.environ.get("JOURNEY_PICTURES") else tmp_path
    person = Person(dagster, page, album)
    person.run_job("harvest", "harvest")
    person.run_job("replay_and_pair")
    person.open_lineage()
