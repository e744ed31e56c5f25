"""``make dev`` prints where things are, accepts one server only, and ends on a signal."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._daemon.types import DaemonHeartbeat

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger, ledger_target
from examples.demo import one_server
from examples.demo.one_server import claim
from examples.demo.process_group import SIGNALS
from examples.demo.profile import demo_settings, to_env
from examples.demo.start_lines import start_lines
from examples.demo.web import _port
from tests.fixtures.waiting import wait_until
from tests.places import ROOT


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_second_one_names_the_first(tmp_path: Path, port: int) -> None:
    with (
        claim(tmp_path, port),
        pytest.raises(InputError, match=rf"process {os.getpid()}\): open http.*:{port},"),
        claim(tmp_path, port + 1),
    ):
        pass
    with claim(tmp_path, port):
        pass


def test_a_child_that_lives_on_holds_the_storage(tmp_path: Path, port: int) -> None:
    with claim(tmp_path, port) as lock:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, pass_fds=[lock])
    with pytest.raises(InputError, match="already runs"), claim(tmp_path, port):
        pass
    child.communicate(b"\n")
    with claim(tmp_path, port):
        pass


def test_a_busy_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with pytest.raises(InputError, match=f"^port {port} of .*in use"), claim(tmp_path, port):
            pass


@pytest.mark.parametrize("text", ["", "0", "65536", "-1", "x", "3000.0"])
def test_a_port_that_is_none(text: str) -> None:
    with pytest.raises(InputError, match=r"^PORT: "):
        _port(text)


def heartbeat(folder: Path, ago: float) -> None:
    """Give a daemon's sign of life as Dagster itself does, so many seconds ago."""
    settings = yaml.safe_load((ROOT / "dagster.yaml").read_text())
    storage = {"sqlite": {"base_dir": str(folder / "storage")}}
    home = folder / "instance"
    home.mkdir(exist_ok=True)
    (home / "dagster.yaml").write_text(yaml.safe_dump({**settings, "storage": storage}))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - ago, "SENSOR", "a", []))


class Clock:
    """Time that passes only when somebody sleeps; a daemon may use the pause."""

    def __init__(self, folder: Path, *, beats: bool) -> None:
        self.now, self.slept, self.folder, self.beats = time.time(), 0.0, folder, beats

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now, self.slept = self.now + seconds, self.slept + seconds
        if self.beats and self.slept > 20:
            heartbeat(self.folder, -self.slept)


@pytest.mark.parametrize(
    ("ago", "beats", "ended", "refused", "waits"),
    [
        (10, True, False, True, True),  # a daemon of `dagster dev` works here
        (10, False, False, False, True),  # one was killed ten seconds ago
        (10, False, True, False, False),  # `make dev` ended as it should just now
        (300, False, False, False, False),  # long gone
    ],
)
def test_another_daemon_on_the_storage(
    ago: int,
    beats: bool,
    ended: bool,
    refused: bool,
    waits: bool,
    tmp_path: Path,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if ended:
        with claim(tmp_path, port):
            pass
    heartbeat(tmp_path, ago)
    clock = Clock(tmp_path, beats=beats)
    monkeypatch.setattr(one_server, "time", clock)
    expected = pytest.raises(InputError, match="daemon works on") if refused else nullcontext()
    with expected, claim(tmp_path, port):
        pass
    assert (clock.slept > 0) == waits


def test_what_it_says_of_itself(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for day in ("2026-11-01", "2026-11-03"):
        lake.write("states", [], day=day)
    with Ledger(ledger_target(lake)) as ledger:
        ledger.do(operations.set_ceiling("global", Decimal("2.5")))
    lines = start_lines(to_env(demo_settings(lake=lake.root, max_usd="0.5")))
    assert [line.split()[0] for line in lines] == ["lake", "teachers", "ledger", "ceiling", "Hub"]
    assert "2 days, 2026-11-01 to 2026-11-03" in lines[0]
    assert "careful" in lines[1]
    assert "simulated" in lines[1]
    assert lines[2].endswith("ledger.db ($0 spent)")
    assert lines[3].split(maxsplit=1)[1] == "$0.5 a run, $2.5 global"
    assert "nothing is published" in lines[4]


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080, a stand-in on this machine"),
        ("https://hub.example.org", "https://hub.example.org"),
        ("", "https://huggingface.co"),
    ],
)
def test_it_says_to_which_hub_it_publishes(tmp_path: Path, endpoint: str, said: str) -> None:
    env = {
        "COMPOSER_LAKE": str(tmp_path),
        "COMPOSER_PUBLISH_REPO": "me/pairs",
        "HF_ENDPOINT": endpoint,
    }
    assert start_lines(env)[-1] == f"Hub       me/pairs at {said}"


def test_a_mistake_is_said_in_its_line(tmp_path: Path) -> None:
    (tmp_path / "teachers.yaml").write_text("teachers: 3")
    env = {
        "COMPOSER_LAKE": str(tmp_path / "none"),
        "COMPOSER_TEACHERS": str(tmp_path / "teachers.yaml"),
        "COMPOSER_LEDGER": "postgresql://u:secret@h:x/db",
    }
    lake, teachers, ledger, *_ = start_lines(env)
    assert "(empty)" in lake
    assert "teachers.yaml: line 1: " in teachers
    assert "secret" not in ledger
    assert not (tmp_path / "none").exists()


FAMILY = """
import pathlib, signal, subprocess, sys, time
if {stubborn}:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
pathlib.Path("there").touch()
try:
    time.sleep(1000)
except KeyboardInterrupt:
    pathlib.Path("told").touch()
"""
STARTER = """
import os, pathlib, sys
from examples.demo import process_group
process_group.GRACE_S = 1
process_group.run_group([sys.executable, "family.py"], cwd=pathlib.Path(), env=os.environ)
"""


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_whole_family(
    number: signal.Signals, stubborn: bool, tmp_path: Path
) -> None:
    """Started as a script's ``&`` does it: there SIGINT is ignored."""
    (tmp_path / "family.py").write_text(FAMILY.format(stubborn=stubborn))
    shell = subprocess.Popen(
        ["sh", "-c", '"$0" -c "$1" & echo $!; wait $!', sys.executable, STARTER],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path, stdout=-1, text=True,
    )  # fmt: skip
    assert shell.stdout
    starter = int(shell.stdout.readline())
    wait_until((tmp_path / "there").exists, "the family is there")
    os.kill(starter, number)
    shell.communicate(timeout=60)  # all of them hold the pipe: it ends when the last one has
    assert (tmp_path / "told").exists() != stubborn


@pytest.mark.slow
def test_one_line_each_and_nothing_of_other_projects(port: int, tmp_path: Path) -> None:
    folder, foreign, text = tmp_path / "root", tmp_path / "foreign", tmp_path / "log"
    folder.mkdir()
    foreign.mkdir()
    for name in ("dagster.yaml", "workspace.yaml"):
        (folder / name).symlink_to(ROOT / name)
    start = f"from examples.demo import web; web.ROOT = web.Path({str(folder)!r}); web.main()"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        view = f"http://127.0.0.1:{probe.getsockname()[1]}"
    env = {**os.environ, "PORT": str(port), "DAGSTER_HOME": str(foreign), "PYTHONPATH": str(ROOT),
           "COMPOSER_VIEW_URL": view}  # fmt: skip
    with text.open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", start], env=env, stdout=log, stderr=log)
    wait_until(lambda: "UI   " in text.read_text() or process.poll() is not None, "the UI answers")
    with urllib.request.urlopen(f"{view}/api/rows", timeout=60) as answer:
        assert "total" in json.load(answer)  # asset pages link to it
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0, text.read_text()
    said = text.read_text()
    assert [line.split()[0] for line in said.splitlines() if "View" not in line] == [
        "lake", "teachers", "ledger", "ceiling", "Hub", "UI",
    ], said  # fmt: skip
    assert f"View      {view}/" in said
    assert list(foreign.iterdir()) == []
    assert (folder / ".dagster" / "storage" / "history" / "runs.db").exists()
    with claim(folder / ".dagster", port):
        pass  # nothing is left that holds the storage, and the port is free
