"""A process of a training ends with the one that started it."""

import os
import select
import signal
import subprocess
import sys

import pytest

from composer_pipeline.parent import PARENT, end_with_parent
from tests.fixtures.waiting import DEADLINE_S
from tests.places import ROOT

CHILD = (
    "import os, signal\n"
    "from composer_pipeline.parent import end_with_parent\n"
    "end_with_parent()\n"
    "signal.alarm(600)\n"  # one that nobody ends is not left behind for ever
    "os.write(int(os.environ['PIPE']), b'here\\n')\n"
    "signal.pause()\n"
)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")
def test_a_command_ends_when_its_caller_is_killed() -> None:
    ours, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    code = (
        "import sys\n"
        "import subprocess\n"
        "from functools import partial\n"
        "from composer_pipeline.training import events as process\n"
        "process.subprocess.Popen = partial(subprocess.Popen, close_fds=False)\n"
        f"process.run_process([sys.executable, '-c', {CHILD!r}], cwd='.', env={{}},"
        " what='x', on_event=print)\n"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT), "PIPE": str(theirs)}
    caller = subprocess.Popen([sys.executable, "-c", code], env=env, pass_fds=[theirs])
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        assert pipe.readline() == b"here\n"
        os.kill(caller.pid, signal.SIGKILL)
        caller.wait()
        # Caller and command held the other end: its end comes when both are gone.
        gone, _, _ = select.select([pipe], [], [], DEADLINE_S)
        assert gone, "the command goes on without its caller"
        assert pipe.read() == b""


def test_a_process_without_a_parent_of_ours_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PARENT, raising=False)
    end_with_parent()


def test_a_process_whose_parent_is_gone_already_ends() -> None:
    code = f"import os\nos.environ[{PARENT!r}] = '1'\n" + CHILD
    env = os.environ | {"PYTHONPATH": str(ROOT), "PIPE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, check=False, timeout=DEADLINE_S
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == b""


@pytest.mark.parametrize(
    "file",
    ["trainers/__main__.py", "trainers/trl/plan.py", "composer_pipeline/evaluation/worker.py"],
)
def test_every_long_process_looks_at_its_parent(file: str) -> None:
    assert "    end_with_parent()\n" in (ROOT / file).read_text()
