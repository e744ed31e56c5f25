"""A real `dagster dev`, and what a browser test needs to watch it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.lake.store import Lake
from examples.demo.profile import demo_settings, to_env

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

#: `dagster dev` is ready in 13 to 60 s, a queued run starts in about 10: many times that.
PATIENCE_S = 600

_RUNS = (
    "{ runsOrError { ... on Runs { results { runId status startTime endTime tags { key } } } } }"
)


class DagsterDev:
    """A running `dagster dev`: its URL, and GraphQL questions about its runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def graphql(self, query: str) -> Any:
        request = urllib.request.Request(
            f"{self.url}/graphql",
            json.dumps({"query": query}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["data"]

    def runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.graphql(_RUNS)["runsOrError"]["results"]
        return found

    def wait_for_runs(self, count: int) -> list[dict[str, Any]]:
        """Return all runs once there are ``count`` and none is going on."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            runs = self.runs()
            ended = {"SUCCESS", "FAILURE", "CANCELED"}
            if len(runs) >= count and {run["status"] for run in runs} <= ended:
                return runs
            assert time.monotonic() < deadline, runs
            time.sleep(1)

    def wait_for_success(self, count: int) -> None:
        """Wait until ``count`` runs have ended, all of them well."""
        runs = self.wait_for_runs(count)
        assert {run["status"] for run in runs} == {"SUCCESS"}, runs

    def launch(self, asset: str, day: str = "") -> None:
        """Materialise one asset through the API that the page's button calls."""
        tags = f'[{{key: "dagster/partition", value: "{day}"}}]' if day else "[]"
        query = f"""
            mutation {{ launchPipelineExecution(executionParams: {{
              selector: {{repositoryLocationName: "composer_pipeline",
                repositoryName: "__repository__", pipelineName: "__ASSET_JOB",
                assetSelection: [{{path: ["{asset}"]}}], assetCheckSelection: null}},
              executionMetadata: {{tags: {tags}}}, runConfigData: "{{}}"
            }}) {{ __typename ... on PythonError {{ message }} }} }}"""
        found = self.graphql(query)["launchPipelineExecution"]
        assert found["__typename"] == "LaunchRunSuccess", found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def start_dagster(tmp_path: Path, root: Path, lake: Lake) -> Iterator[Callable[..., DagsterDev]]:
    """Start a `dagster dev` with its own storage and the lake; kill its whole group."""
    started: list[subprocess.Popen[bytes]] = []
    log = tmp_path / "dev.log"

    def start(**variables: str) -> DagsterDev:
        for name in ("dagster.yaml", "workspace.yaml"):
            shutil.copy(root / name, tmp_path)
        port = free_port()
        env = {**os.environ, **to_env(demo_settings(lake=lake.root)), **variables}
        env["PYTHONPATH"] = str(root)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    *("-m", "dagster", "dev", "-w", "workspace.yaml"),
                    *("-h", "127.0.0.1", "-p", str(port)),
                ],
                cwd=tmp_path,
                env=env,
                start_new_session=True,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        started.append(process)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=5).close()
                return DagsterDev(f"http://127.0.0.1:{port}")
            except OSError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.5)

    yield start
    for process in started:  # killed: it takes half a minute to end by itself, with nothing to keep
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def page(chromium: str) -> Iterator[Any]:
    """A page of a real browser."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_S * 1000)  # without it 5 s, whatever the page's is
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1500, "height": 900})
        page.set_default_timeout(PATIENCE_S * 1000)
        yield page
        browser.close()
