"""A lake with runs, a server over it, and a bundle of it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

from composer_pipeline.evaluation.evaluate import FOLDER, RESULTS, TRAINED
from composer_pipeline.evaluation.judge import Judgement
from composer_pipeline.evaluation.results import BASE, StateResult, write_results
from composer_pipeline.lake.store import Lake

COMMAND = [sys.executable, "-m", "composer_pipeline.cli", "view"]


class Answer(NamedTuple):
    status: int
    body: Any


class Viewer:
    """A running ``composer-pipeline view``."""

    def __init__(self, lake: Path) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "--lake", str(lake), "--port", "0"], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr
        self.url = self.process.stderr.readline().split()[0]
        self.said: list[str] = []
        self._reader = threading.Thread(target=self.said.extend, args=[self.process.stderr])
        self._reader.start()

    def get(self, name: str, **query: Any) -> Answer:
        asked = urlencode(query, doseq=True)
        request = urllib.request.Request(f"{self.url}{name}{'?' + asked if asked else ''}")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Answer(answer.status, json.loads(answer.read() or "null"))
        except urllib.error.HTTPError as error:
            return Answer(error.code, json.loads(error.read()))

    def page(self, name: str, **query: Any) -> Any:
        status, body = self.get(f"api/{name}", **query)
        assert status == 200, body
        return body

    def rows(self, **query: Any) -> list[dict[str, Any]]:
        """Return all rows that match, of every page."""
        found: list[dict[str, Any]] = []
        while True:
            page = self.page("rows", offset=len(found), **query)
            found += page["rows"]
            if len(found) >= page["total"]:
                assert len(found) == page["total"]
                return found

    def stop(self) -> None:
        """End it as a person does; nothing but its URL was printed."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(30) in (0, 130)
        self._reader.join()
        assert self.process.stderr
        self.process.stderr.close()
        assert not self.said, "".join(self.said)


def _result(state: dict[str, Any], logp: float, canonical: bool) -> StateResult:
    return StateResult(
        state_id=state["state_id"], session_id=state["session_id"], kind="easy",
        answer=f"<b>answer</b> at {logp}", ended=True,
        judgement=Judgement(None, canonical, "L0" if canonical else "none", None, ""),
        logp_right=logp, tokens_right=10,
    )  # fmt: skip


def add_runs(lake: Path) -> None:
    """Two unfinished runs of two replicas; the first was evaluated on two states."""
    for name, first in (("run-one", 2.0), ("run-two", 1.0)):
        folder = lake / "runs" / name
        folder.mkdir(parents=True)
        events = [
            {"event": "step", "slot": slot, "step": step, "sft_loss": first / step + slot}
            for slot in (0, 1)
            for step in (1, 2, 3)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    states = Lake(lake).rows("states", columns=["state_id", "session_id"])[:2]
    folder = lake / "runs" / "run-one" / FOLDER
    folder.mkdir()
    write_results(folder / RESULTS, {
        BASE: [_result(states[0], -10, False), _result(states[1], -10, True)],
        TRAINED: [_result(states[0], -5, True), _result(states[1], -9, True)],
    })  # fmt: skip


@pytest.fixture(scope="session")
def shown_lake(whole_lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the whole lake with training runs; nobody changes it."""
    lake = tmp_path_factory.mktemp("shown") / "lake"
    shutil.copytree(whole_lake, lake)
    add_runs(lake)
    return lake


@pytest.fixture
def own_lake(shown_lake: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    lake = shutil.copytree(shown_lake, tmp_path / "lake")
    (lake / "exports.json").unlink(missing_ok=True)  # names the bundle of the lake it was
    return lake


@pytest.fixture(scope="session")
def viewer(shown_lake: Path) -> Iterator[Viewer]:
    server = Viewer(shown_lake)
    yield server
    server.stop()


@pytest.fixture
def own_viewer(own_lake: Path) -> Iterator[Viewer]:
    """A server over the lake that the test changes."""
    server = Viewer(own_lake)
    yield server
    server.stop()


def bundle_of(lake: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "--lake", str(lake), "--bundle", str(folder), "--json"],
        capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip


@pytest.fixture(scope="session")
def bundle(shown_lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "site"
    made = bundle_of(shown_lake, folder)
    assert made.returncode == 0, made.stderr
    return folder
