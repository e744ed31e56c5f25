"""Several ingests of one lake at once, some of them killed, leave what one alone would."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.reports import Progress
from composer_pipeline.traces.archive import WAITING, harvest, writer_lock
from composer_pipeline.traces.ingest import ingest

INGEST = """
import sys
from composer_pipeline.lake.store import Lake
from composer_pipeline.traces.ingest import ingest
def progress(label, done, total):
    print(label, done, flush=True)
ingest(Lake(sys.argv[1]), [sys.argv[2]], progress=progress)
print("done", flush=True)
"""
PROCESSES, SESSIONS = 4, 3


def _sessions(script: Any, folder: Path, who: int) -> Path:
    for number in range(SESSIONS):
        s = script(f"s{who}-{number}", "2026-11-16")
        s.user(f"task {who} {number}")
        s.say(f"m{who}-{number}", "answer")
        s.write(folder / f"p{who}")
    return folder / f"p{who}"


def _start(lake: Path, folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", INGEST, str(lake), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _read_until(process: "subprocess.Popen[str]", start: str) -> None:
    assert process.stdout is not None
    assert any(line.startswith(start) for line in process.stdout), f"no line {start}"


@pytest.mark.slow
def test_ingests_add_up_although_some_are_killed(
    tmp_path: Path, script: Any, files_of: Any
) -> None:
    folders = [_sessions(script, tmp_path / "sessions", who) for who in range(PROCESSES)]
    shared, alone = tmp_path / "shared", tmp_path / "alone"
    # Each harvest starts while another one runs; one dies in its harvest, one in its parse.
    for when in ("harvest 1", "parse 1"):
        victim = _start(shared, folders[0])
        _read_until(victim, when)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    running = [_start(shared, folder) for folder in folders]
    for process in running:
        _read_until(process, "done")
        assert process.wait() == 0
    for folder in folders:
        ingest(Lake(alone), [folder])
    tables = ("raw_files", "sessions", "states", "messages", "chains")
    for table in tables:
        assert Lake(shared).rows(table) == Lake(alone).rows(table), table
    assert len(Lake(shared).rows("raw_files")) == PROCESSES * SESSIONS


def test_a_stage_waits_for_the_other_and_says_so(
    tmp_path: Path, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _sessions(script, tmp_path / "sessions", 0)
    lake = Lake(tmp_path / "lake")
    harvest(lake, [folder])
    with writer_lock(lake, None):
        waiting = _start(tmp_path / "lake", folder)
        _read_until(waiting, WAITING)
        assert lake.days("states") == []
    _read_until(waiting, "done")
    assert waiting.wait() == 0
    assert lake.days("states") == ["2026-11-16"]


def test_no_progress_is_reported_when_nothing_waits(tmp_path: Path) -> None:
    labels: list[str] = []

    def progress(label: str, done: int, total: int) -> None:
        labels.append(label)

    callback: Progress = progress
    with writer_lock(Lake(tmp_path), callback):
        pass
    with writer_lock(Lake(tmp_path), callback):
        pass
    assert labels == []
