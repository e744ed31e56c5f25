"""The deployment, followed: the containers' commands as processes, with a real PostgreSQL.

PostgreSQL is real and the bucket is moto's, over HTTP. The commands are read from
``deploy/compose.yaml``, the instance settings are ``deploy/dagster.yaml``; what is left out is the
containers themselves.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script
from composer_pipeline.testing.samples import answers, sample_sessions_dir
from composer_pipeline.traces.archive import session_days
from examples.demo.profile import demo_settings, to_env
from tests.fixtures.postgres import PostgresServer
from tests.fixtures.waiting import wait_until
from tests.places import ROOT

pytestmark = [
    pytest.mark.slow,
    # It waits for queues and monitors for minutes; the other tests of the folder are quick.
    pytest.mark.skipif(not os.environ.get("FOLLOW_DEPLOY"), reason="make follow-deploy runs it"),
]

ENV = ROOT / "deploy" / "env.example"
_RUN = """{ runOrError(runId: %s) { ... on Run {
  status eventConnection { events { ... on MessageEvent { message } } } } } }"""
_NODES = "{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Deployment:
    """The services of compose.yaml as processes of this machine."""

    def __init__(self, home: Path, env: dict[str, str]) -> None:
        self.home, self.env = home, env
        self.code, self.port = free_port(), free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
        shutil.copy(ROOT / "deploy" / "dagster.yaml", home)
        workspace = (ROOT / "deploy" / "workspace.yaml").read_text()
        (home / "workspace.yaml").write_text(workspace.replace("4000", str(self.code)))

    def start(self, name: str) -> None:
        words = {
            "0.0.0.0": "127.0.0.1", "4000": str(self.code), "3000": str(self.port),
            "/opt/dagster/workspace.yaml": str(self.home / "workspace.yaml"),
        }  # fmt: skip
        program, *rest = self.services[name]["command"]
        command = [str(Path(sys.executable).with_name(program)), *(words.get(w, w) for w in rest)]
        with (self.home / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command, cwd=self.home, env=self.env, stdout=log, stderr=log, start_new_session=True
            )

    def stop(self) -> None:
        for process in self.running.values():
            os.killpg(process.pid, signal.SIGTERM)
        for process in self.running.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def graphql(self, query: str) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql",
            json.dumps({"query": query}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            answer = urllib.request.urlopen(request, timeout=120)
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error
        with answer:
            found = json.load(answer)
        assert "errors" not in found, found
        return found["data"]

    def ready(self) -> bool:
        for name, process in self.running.items():
            assert process.poll() is None, (self.home / f"{name}.log").read_text()
        try:
            found = self.graphql(
                "{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }"
            )
        except OSError:
            return False
        return bool(found["repositoriesOrError"].get("nodes"))

    def launch(self, job: str, first: str, last: str) -> str:
        tags = (
            f'[{{key: "dagster/asset_partition_range_start", value: "{first}"}},'
            f' {{key: "dagster/asset_partition_range_end", value: "{last}"}}]'
        )
        found = self.graphql(f"""
            mutation {{ launchPipelineExecution(executionParams: {{
              selector: {{repositoryLocationName: "composer_pipeline",
                repositoryName: "__repository__", pipelineName: "{job}"}},
              executionMetadata: {{tags: {tags}}}, runConfigData: "{{}}"
            }}) {{ ... on LaunchRunSuccess {{ run {{ runId }} }}
                 ... on PythonError {{ message }} }} }}
        """)["launchPipelineExecution"]
        return str(found["run"]["runId"])

    def run(self, run_id: str) -> tuple[str, list[str]]:
        found = self.graphql(_RUN % json.dumps(run_id))["runOrError"]
        return found["status"], [e.get("message", "") for e in found["eventConnection"]["events"]]

    def ended(self, run_id: str) -> str:
        """Wait for a run's end; return its status."""

        def found() -> str:
            status = self.run(run_id)[0]
            return status if status in ("SUCCESS", "FAILURE", "CANCELED") else ""

        return wait_until(found, f"run {run_id} ends")

    def worker(self, run_id: str) -> int:
        """Wait for a run's process; return its id."""
        pattern = re.compile(
            r"Started process for run \(pid: (\d+)\)|Executing steps .*\(pid: (\d+)\)"
        )

        def found() -> int:
            texts = " ".join(self.run(run_id)[1])
            match = pattern.search(texts)
            return int(match[1]) if match else 0

        return wait_until(found, f"the process of run {run_id}")


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    boto3 = pytest.importorskip("boto3", reason="pip install 'moto[server]'")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    env = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1",
    }  # fmt: skip
    client = boto3.client(
        "s3", endpoint_url=env["AWS_ENDPOINT_URL"], aws_access_key_id="test",
        aws_secret_access_key="test", region_name="us-east-1",
    )  # fmt: skip
    client.create_bucket(Bucket="lakes")
    yield env
    server.stop()


def test_two_runs_at_once_and_a_killed_worker(
    postgres_server: PostgresServer,
    bucket: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in bucket.items():
        monkeypatch.setenv(name, value)
    ledger = postgres_server.database()
    written = re.search(r"^DAGSTER_POSTGRES_URL=(.+?)://", ENV.read_text(), re.M)
    assert written
    database = postgres_server.database().replace("postgresql://", f"{written[1]}://")
    script = Script.from_sessions(sample_sessions_dir(), answers())
    held = True
    with LoopbackOpenRouter(
        script, api_key="loopback", flaky_faults=False, lifetime=3600
    ) as provider:
        provider.held = lambda asked: held
        settings = to_env(demo_settings(lake="s3://lakes/lake", max_usd="5"))
        env = {
            **os.environ, **bucket, **settings, "COMPOSER_LEDGER": ledger,
            "COMPOSER_RUNS": str(tmp_path / "runs"), "COMPOSER_OPENROUTER_URL": provider.url,
            "COMPOSER_LOOPBACK_KEY": "loopback", "PYTHONPATH": str(ROOT),
            "DAGSTER_HOME": str(tmp_path), "DAGSTER_LOGS": str(tmp_path / "logs"),
            "DAGSTER_CODE_HOST": "127.0.0.1", "DAGSTER_POSTGRES_URL": database,
        }  # fmt: skip
        deployment = Deployment(tmp_path, env)
        try:
            for name in ("code", "webserver", "daemon"):
                deployment.start(name)
            wait_until(deployment.ready, "the UI knows the code location")
            days = sorted(session_days([sample_sessions_dir()]))
            assert deployment.ended(deployment.launch("harvest", days[0], days[-1])) == "SUCCESS"
            lake = Lake("s3://lakes/lake")
            assert set(days) <= set(lake.days("states"))

            # Two at once, on PostgreSQL; one of them is killed while it waits for replies.
            one, two = (deployment.launch("replay_and_pair", day, day) for day in days[:2])
            victim, other = deployment.worker(one), deployment.worker(two)
            wait_until(lambda: provider.requests > 1, "both ask")
            assert victim != other
            os.kill(victim, signal.SIGKILL)
            assert deployment.ended(one) == "FAILURE"
            held = False
            assert deployment.ended(two) == "SUCCESS", deployment.run(two)[1][-5:]
            again = deployment.launch("replay_and_pair", days[0], days[0])
            assert deployment.ended(again) == "SUCCESS", deployment.run(again)[1][-5:]
        finally:
            held = False
            deployment.stop()
        with Ledger(ledger) as books:
            status = books.status()["global"]
        rows = lake.rows("replies", days=days[:2])
        assert {row["day"] for row in rows} == set(days[:2])
        assert status.spent <= provider.billed <= status.spent + status.held
        assert set(days[:2]) <= set(lake.days("normalized_pairs"))
        said = (tmp_path / "daemon.log").read_text() + (tmp_path / "webserver.log").read_text()
        assert "OperationalError" not in said
