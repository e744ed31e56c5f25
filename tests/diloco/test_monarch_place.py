"""Replicas in actors of Monarch; ``make proof-monarch`` runs this where the library is."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from composer_pipeline.diloco.places.job import LOST
from composer_pipeline.diloco.places.local import SUPERVISOR, ReplicaCommand
from composer_pipeline.errors import ComposerError
from tests.fixtures.waiting import DEADLINE_S, wait_until
from tests.places import ROOT

pytest.importorskip("monarch")

from composer_pipeline.diloco.places import monarch_actors
from composer_pipeline.diloco.places.monarch_actors import MonarchActors

SAYS = "print(os.getpid(), os.getcwd(), *sys.argv[1:], flush=True)\n"


def place(folder: Path, script: str, *arguments: str) -> MonarchActors:
    """Return the place of a module with this text."""
    (folder / "said.py").write_text("import os, signal, sys, time\n" + SAYS + script)
    argv = [sys.executable, "-m", "said", *arguments]
    return MonarchActors(ReplicaCommand(argv, {"OWN": "1"}, folder), folder)


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Start a script in an actor; after the test it is closed, which leaves no process."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    jobs = []

    def start(script, *arguments, **env):
        jobs.append(place(tmp_path, script, *arguments).launch(3, 1, env))
        return jobs[-1]

    yield start
    for job in jobs:
        if not job._tail.closed:
            job.close()
    pids = re.findall(r"^(\d+) /", (tmp_path / "slot-3.log").read_text(), re.MULTILINE)
    wait_until(lambda: not any(map(_runs, map(int, pids))), "the processes have ended")


def code_of(job) -> int:
    wait_until(lambda: job.poll() is not None, "the actor has ended")
    return job.poll()


def started(job, log: Path) -> int:
    """Return the process of a replica that has begun."""
    wait_until(lambda: log.read_text().splitlines(), "the replica speaks")
    return int(log.read_text().split()[0])


@pytest.mark.parametrize(
    ("script", "code", "sentence"),
    [
        ("print('out'); sys.stderr.write('last')", 0, "last"),
        ("os.system('echo error: bad'); sys.exit(2)", 2, "bad"),
        ("raise KeyError('lost')", 1, "KeyError: 'lost'"),
        ("sys.exit(None)", 0, ""),
        ("os._exit(3)", LOST, ""),
    ],
)
def test_a_module_runs_with_arguments_output_and_exit_code(
    launch, tmp_path, script, code, sentence
):
    job = launch(script, "--run-dir", "x")
    assert code_of(job) == code
    pid, cwd, *arguments = job.lines()[0].split()
    assert (cwd, arguments) == (str(tmp_path), ["--run-dir", "x"])
    assert int(pid) != os.getpid()
    assert sentence in job.last_sentence()


def test_the_environment_is_the_supervisors_and_the_commands_without_the_parent(launch):
    script = "print(*(os.environ.get(n) for n in ('OWN', 'GIVEN', 'COMPOSER_DILOCO_SUPERVISOR')))"
    job = launch(script, GIVEN="2", **{SUPERVISOR: "1"})
    assert code_of(job) == 0
    assert job.lines()[-1] == "1 2 None"


def test_a_killed_process_is_known_at_once(launch):
    first, second = launch("time.sleep(600)"), launch("time.sleep(600)")
    assert first.poll() is None
    for job in (first, second):
        os.kill(job._host.pid.call_one().get(), signal.SIGKILL)
    begun = time.monotonic()
    assert code_of(first) == LOST
    assert time.monotonic() - begun < 2.0
    # Monarch tells of it later, which neither ends this process nor changes the answer.
    with pytest.raises(RuntimeError, match=r"Killed\(sig=9\)"):
        second._end.get(timeout=DEADLINE_S)
    time.sleep(1.0)
    assert second.poll() == LOST


def test_an_actor_that_does_not_start_is_an_error_in_one_sentence(launch, monkeypatch):
    monkeypatch.setattr(monarch_actors, "SPAWN_S", 0)
    with pytest.raises(ComposerError, match="Monarch started no actor process: "):
        launch("pass")


def test_a_message_ends_a_replica_but_not_an_upload(launch, tmp_path):
    installed = (
        "from composer_pipeline.diloco.heartbeat import GracefulExit\n"
        "leaving = GracefulExit()\nleaving.install()\n"
    )
    job = launch(installed + "time.sleep(600)")
    time.sleep(1.0)
    job.cancel()
    assert code_of(job) == LOST
    upload = (
        "with leaving.deferred():\n  print('begun', flush=True)\n  time.sleep(2)\n  print('up')"
    )
    job = launch(f"{installed}{upload}\ntime.sleep(600)")
    wait_until(lambda: "begun" in (tmp_path / "slot-3.log").read_text(), "the upload has begun")
    job.cancel()
    assert code_of(job) == 143
    assert job.lines()[-1] == "up"


def test_what_a_replica_does_at_exit_is_done(launch, tmp_path):
    """As a reporter of steps that sends its last lines there."""
    job = launch("import atexit; atexit.register(lambda: open('exit', 'w').close())")
    assert code_of(job) == 0
    job.close()
    wait_until(lambda: (tmp_path / "exit").exists(), "the process exits")


def test_a_process_that_does_not_exit_is_ended(launch, tmp_path):
    job = launch("import threading; threading.Thread(target=time.sleep, args=(600,)).start()")
    pid = started(job, tmp_path / "slot-3.log")
    assert code_of(job) == 0
    job.close()
    wait_until(lambda: not _runs(pid), "the process has ended")


def test_an_actor_ends_with_a_supervisor_that_is_killed(tmp_path):
    """Even while the replica's thread holds the interpreter."""
    (tmp_path / "parent.py").write_text(
        "import sys, time\nfrom pathlib import Path\n"
        "from tests.diloco.test_monarch_place import place\n"
        "if __name__ == '__main__':\n"
        '    hold = \'import re; re.match(r"(a+)+$", "a" * 60 + "b")\'\n'
        "    place(Path(sys.argv[1]), hold).launch(3, 1, {})\n"
        "    time.sleep(600)\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    log = tmp_path / "slot-3.log"
    parent = subprocess.Popen([sys.executable, tmp_path / "parent.py", tmp_path], env=env)
    try:
        wait_until(lambda: log.is_file() and log.read_text(), "the replica speaks")
        pid = int(log.read_text().split()[0])
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not _runs(pid), "the actor's process has ended")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
