"""One process in a run folder, and a new start that deletes nothing."""

import fcntl
import os
import signal
import subprocess
import sys

import pytest

from composer_pipeline.errors import ComposerError
from composer_pipeline.training.run import LOCK, alone, set_aside
from tests.places import ROOT

HOLD = (
    "import sys, pathlib, signal\n"
    "from composer_pipeline.training.run import alone\n"
    "with alone(pathlib.Path(sys.argv[1])):\n"
    "    print('held', flush=True)\n"
    "    signal.pause()\n"
)


def test_a_killed_holder_frees_the_folder(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ComposerError, match="another process is training in"), alone(tmp_path):
            pass
        with pytest.raises(ComposerError, match="another process is training in"):
            set_aside(tmp_path)
        assert tmp_path.is_dir()
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    with alone(tmp_path):
        pass


def test_a_run_is_moved_aside_whole_and_numbered(tmp_path):
    run = tmp_path / "demo-abc"
    assert set_aside(run) is None
    for number in (1, 2):
        run.mkdir()
        (run / "composer.json").write_text(str(number))
        assert set_aside(run) == tmp_path / f"demo-abc.{number}"
        assert not run.exists()
    assert (tmp_path / "demo-abc.1" / "composer.json").read_text() == "1"
    assert (tmp_path / "demo-abc.2" / "composer.json").read_text() == "2"


def test_a_lock_on_a_folder_that_was_moved_meanwhile_is_refused(tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    real = fcntl.flock

    def moved_first(file, how):
        (run / LOCK).rename(tmp_path / "moved")
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", moved_first)
    with pytest.raises(ComposerError, match="moved aside"), alone(run):
        pass
