"""The ranks of a replica live and end together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from composer_pipeline.training.registry import repo_root
from trainers.common.ranks import environment, verdict

#: Starts two ranks of a script.
LAUNCH = (
    "import sys; from pathlib import Path; from trainers.common.ranks import launch;"
    " sys.exit(launch([sys.executable, '-c', sys.argv[1]], 2, Path(sys.argv[2])))"
)
RANK = "import os, signal, sys, time; rank = int(os.environ['COMPOSER_RANK']);"


def start(script, folder):
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, RANK + script, str(folder / "store")],
        cwd=repo_root(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(script, folder):
    launcher = start(script, folder)
    said, _ = launcher.communicate(timeout=300)
    return launcher.returncode, said


def test_all_ranks_done_is_done(tmp_path):
    assert ended(f"open(r'{tmp_path}/' + str(rank), 'w')", tmp_path) == (0, "")
    assert {p.name for p in tmp_path.iterdir()} == {"0", "1"}


def test_a_rank_that_is_killed_ends_one_that_waits_for_it(tmp_path):
    script = (
        "from trainers.common.ranks import Ranks; ranks = Ranks.from_env(); ranks.gather(0);"
        f"open(r'{tmp_path}/pid', 'a').write(str(os.getpid()) + ' ');"
        "rank and os.kill(os.getpid(), signal.SIGKILL); ranks.gather(1); time.sleep(600)"
    )
    code, said = ended(script, tmp_path)
    assert code == 1, "another start may get past it"
    assert said.splitlines()[-1] == (
        "error: rank 1 of 2 was ended by SIGKILL, and the replica with it: was there enough memory?"
    )
    assert not any(map(psutil.pid_exists, map(int, (tmp_path / "pid").read_text().split())))


def test_the_code_of_the_rank_that_failed_is_the_replica_s(tmp_path):
    """The one that it takes along is asked to leave, and has no say."""
    script = "print('error: bad', flush=True) or sys.exit(4) if rank else time.sleep(600)"
    assert ended(script, tmp_path) == (4, "error: bad\n")


@pytest.mark.parametrize(
    ("codes", "code"), [([1, 2], 2), ([4, 1], 4), ([None, 4], 4), ([1, None], 1), ([3, 0], 3)]
)
def test_bad_input_on_one_rank_is_bad_input(codes, code):
    assert verdict(codes) == (code, "")


def test_a_signal_comes_before_what_it_causes():
    assert verdict([1, -signal.SIGTERM])[1].startswith("rank 1 of 2 was ended by SIGTERM")
    assert verdict([-9, 2])[0] == 1


def test_asked_to_leave_all_leave(tmp_path):
    script = f"open(r'{tmp_path}/pid' + str(rank), 'w').write(str(os.getpid())); time.sleep(600)"
    launcher = start(script, tmp_path)
    files = [tmp_path / f"pid{rank}" for rank in range(2)]
    while not all(f.is_file() and f.read_text() for f in files):
        assert launcher.poll() is None
        time.sleep(0.05)
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=300)
    assert launcher.returncode == 143
    assert not any(psutil.pid_exists(int(f.read_text())) for f in files)


def test_each_rank_has_its_device_and_its_parent():
    given = {"CUDA_VISIBLE_DEVICES": "4,6", "OTHER": "kept"}
    own = [environment(given, rank, 2, Path("store")) for rank in range(2)]
    assert [env["CUDA_VISIBLE_DEVICES"] for env in own] == ["4", "6"]
    assert [env["COMPOSER_RANK"] for env in own] == ["0", "1"]
    for env in own:
        assert env["OTHER"] == "kept"
        assert env["GLOO_SOCKET_IFNAME"].startswith("lo"), "nobody else is listened to"
        assert env["COMPOSER_DILOCO_SUPERVISOR"] == str(os.getpid())
    assert "CUDA_VISIBLE_DEVICES" not in environment({}, 0, 2, Path("store"))
