"""No key is anywhere, and what redaction does not pass never reaches a socket."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

import composer_pipeline.redaction.redact as redaction
from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.faults import FaultMix
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from tests.fixtures.lake_states import DAY, write_session, write_sessions
from tests.places import ROOT

API_KEY = "sk-or-v1-5d41402abc4b2a76b9719d911017c592recognisable"
MANAGEMENT_KEY = "sk-or-v1-7d793037a0760186574b0282f2f435e7provisioning"

DAGSTER = """
import sys
import dagster as dg
from assets.definitions import build_defs
from composer_pipeline.settings import Settings
defs = build_defs(Settings.from_env())
job = defs.resolve_implicit_global_asset_job_def()
with dg.DagsterInstance.get() as instance:
    result = job.execute_in_process(
        instance=instance, partition_key=sys.argv[1], raise_on_error=False,
        asset_selection=[dg.AssetKey(["teacher_replies", "careful"])],
    )
print(result.success)
"""


class ProcessList(threading.Thread):
    """Reads every process's arguments again and again, as ``ps`` does."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.lines: set[bytes] = set()
        self._stop_asked = threading.Event()

    def run(self) -> None:
        while not self._stop_asked.wait(0.01):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    self.lines.add(path.read_bytes())
                except OSError:
                    continue

    def stop(self) -> bytes:
        self._stop_asked.set()
        self.join()
        return b"\n".join(self.lines)


def teacher_file(folder: Path, url: str, **endpoint: Any) -> Path:
    data = yaml.safe_load((ROOT / "recipes" / "teachers" / "demo.yaml").read_text())
    data["endpoint"] |= {"base_url": url, **endpoint}
    data["limits"] |= {
        "attempts": 2, "backoff_s": 0.01, "backoff_cap_s": 0.05, "read_timeout_s": 1,
        "drain_s": 1, "recover_after_s": 0.2, "sweep_grace_s": 0.3,
    }  # fmt: skip
    path = folder / f"teachers-{len(list(folder.glob('teachers-*')))}.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_no_key_in_any_file_log_exception_or_process_list(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    write_sessions(lake, sessions=2, turns=3)
    home = tmp_path / "dagster"
    home.mkdir()
    said: list[str] = []
    seen = ProcessList()
    seen.start()
    with LoopbackOpenRouter(
        api_key=API_KEY,
        management_key=MANAGEMENT_KEY,
        faults=FaultMix(1, 0.5),
        latency=0.05,
    ) as server:
        minted = teacher_file(tmp_path, server.url, provisioning_key_env="COMPOSER_TEST_MINT")
        plain = teacher_file(tmp_path, server.url)
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "COMPOSER_LAKE": lake.root,
            "COMPOSER_TEACHERS": str(minted),
            "COMPOSER_MAX_USD": "1",
            "COMPOSER_LOOPBACK_KEY": API_KEY,
            "COMPOSER_TEST_MINT": MANAGEMENT_KEY,
            "DAGSTER_HOME": str(home),
            "PYTHONDEVMODE": "1",  # asyncio's debug log, resource warnings
        }
        env.pop("COMPOSER_OPENROUTER_URL", None)

        def run(*command: str, **more: str) -> int:
            done = subprocess.run(
                [sys.executable, *command], env=env | more, cwd=tmp_path,
                capture_output=True, text=True, timeout=600, check=False,
            )  # fmt: skip
            said.append(done.stdout + done.stderr)
            return done.returncode

        command = ("-m", "composer_pipeline.cli", "replay", "--json")
        run(*command)
        assert server.requests > 10
        assert len(server.account.keys) + len(server.account.deleted) > 1  # a run key was made
        # The provider refuses the key: the error says which variable, not what is in it.
        assert run(*command, COMPOSER_TEACHERS=str(plain), COMPOSER_LOOPBACK_KEY="x" + API_KEY) == 1
        assert "COMPOSER_LOOPBACK_KEY" in said[-1]
        run(*command, COMPOSER_TEACHERS=str(plain))
        assert run("-c", DAGSTER, DAY, COMPOSER_TEACHERS=str(plain)) == 0
        secrets = [API_KEY, MANAGEMENT_KEY, *server.account.deleted]
        secrets += [key.secret for key in server.account.keys.values()]
    listed = seen.stop()
    assert b"composer_pipeline.cli" in listed
    assert b"assets.definitions" in listed
    assert any(home.rglob("*.db"))
    secrets = [secret for secret in secrets if len(secret) > 20]
    for secret in secrets:
        # A part of a key is a leak too.
        for part in (secret, secret[-24:]):
            assert part.encode() not in listed
            for text in said:
                assert part not in text
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".parquet" for path in files)
    assert any(path.name.startswith("ledger.db") for path in files)
    for path in files:
        content = path.read_bytes()
        for secret in secrets:
            assert secret[-24:].encode() not in content, path


# -- the socket ----------------------------------------------------------------------


class Socket(threading.Thread):
    """A listener that keeps every byte, and has nothing at any address."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.received = b""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/api/v1"

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    self.received += data
                    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            except OSError:
                return

    @property
    def requests(self) -> list[bytes]:
        """The first line of every request; a request with a body is a POST."""
        lines = self.received.split(b"\r\n")
        return [line for line in lines if line.endswith(b"HTTP/1.1")]

    def nothing_of_a_session(self) -> bool:
        """Whether nothing came but requests without a body, for what is no call.

        The catalogue is public and asked for first; its request says nothing.
        """
        bodies = [part.partition(b"GET ")[0] for part in self.received.split(b"\r\n\r\n")]
        lines = self.requests
        return not any(bodies) and all(b"/chat/" not in line for line in lines)


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Socket]:
    monkeypatch.delenv("COMPOSER_OPENROUTER_URL", raising=False)
    listening = Socket()
    listening.start()
    yield listening
    listening.listener.close()


def ask(lake: Lake, listener: Socket, folder: Path) -> dict[str, Any]:
    teachers = TeacherSet.load(teacher_file(folder, listener.url))
    report: dict[str, Any] = replay(
        lake, teachers, max_usd=Decimal(1), teachers=["careful"]
    ).to_dict()
    return report


def test_a_clean_prefix_does_reach_the_socket(tmp_path: Path, listener: Socket) -> None:
    """Without this, the tests below would also pass on an engine that sends nothing."""
    lake = Lake(tmp_path / "lake")
    write_sessions(lake, sessions=1, turns=1)
    ask(lake, listener, tmp_path)
    assert any(line.startswith(b"POST /api/v1/chat/") for line in listener.requests)
    assert b"Task 0." in listener.received
    assert not listener.nothing_of_a_session()


def test_a_prefix_with_a_secret_sends_nothing(tmp_path: Path, listener: Socket) -> None:
    lake = Lake(tmp_path / "lake")
    steps = [(Action("", (ToolCall("Bash", {"command": "env"}),)), "done")] * 2
    leak = "ghp_" + "a1B2" * 9
    write_session(lake, "leaky", steps, prompt=f"My token is {leak}.")
    report = ask(lake, listener, tmp_path)
    assert report["refused"] == 2
    assert listener.nothing_of_a_session()
    assert len(listener.received) < 1000


def test_a_scan_that_fails_sends_nothing(
    tmp_path: Path, listener: Socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path / "lake")
    write_sessions(lake, sessions=1, turns=2)

    def broken(text: str) -> list[str]:
        raise RuntimeError("the scanner is broken")

    monkeypatch.setattr(redaction, "find_secrets", broken)
    with pytest.raises(RuntimeError, match="scanner is broken"):
        ask(lake, listener, tmp_path)
    assert listener.nothing_of_a_session()
    assert len(listener.received) < 1000


def test_rules_that_cannot_be_read_send_nothing(
    tmp_path: Path, listener: Socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path / "lake")
    write_sessions(lake, sessions=1, turns=2)
    (tmp_path / "rules.yaml").write_text(json.dumps({"nonsense": 1}))
    monkeypatch.setenv("COMPOSER_REDACTION", str(tmp_path / "rules.yaml"))
    with pytest.raises(InputError, match=r"rules\.yaml"):
        ask(lake, listener, tmp_path)
    assert listener.nothing_of_a_session()
    assert len(listener.received) < 1000
