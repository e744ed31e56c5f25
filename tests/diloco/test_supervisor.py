"""What the supervisor does when a replica ends: its exit code decides, not the quorum."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.diloco.places.local import ReplicaCommand
from composer_pipeline.diloco.replica import Replica
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.diloco.supervisor import ReplicaFailed, ReplicasFailed, SlotEnd, Supervisor
from composer_pipeline.errors import InputError
from tests.fixtures.waiting import DEADLINE_S
from tests.places import ROOT

SPEC = DiLoCoSpec(rounds=4, inner_steps=5, replicas=2, min_quorum=1)


def supervisor(tmp_path: Path, *scripts: str, **options) -> Supervisor:
    return Supervisor(
        url=str(tmp_path / "outer"),
        run_id="run",
        spec=SPEC,
        commands=[ReplicaCommand(["sh", "-c", script]) for script in scripts],
        run_dir=tmp_path / "replicas",
        timeout_s=60,
        **options,
    )


@pytest.mark.parametrize(
    ("code", "kind"), [(2, InputError), (4, ReplicaFailed)], ids=["bad input", "would repeat"]
)
def test_one_replica_ends_the_run_with_its_sentence_whatever_the_quorum(
    tmp_path, code, kind
) -> None:
    wrong = f"echo loading; echo 'error: channel sdpo is dead'; echo bye; exit {code}"
    with pytest.raises(kind) as failure:
        supervisor(tmp_path, "sleep 60", wrong, max_restarts=5).run()
    assert str(failure.value) == "channel sdpo is dead (replica 1)"
    assert (tmp_path / "replicas" / "slot-1.log").read_text().count("loading") == 1, "no restart"


def test_a_run_goes_on_with_the_software_that_began_it_alone(tmp_path) -> None:
    """An upgrade between two starts is said before any replica is started."""
    log = OuterLog.open(str(tmp_path / "outer"), "run")
    log.agree(SPEC.model_copy(update={"software": "torch 2.12.0", "base": "weights 12"}))
    there = supervisor(tmp_path, "exit 1", "exit 1")
    there.spec = SPEC.model_copy(update={"software": "torch 2.13.0"})
    with pytest.raises(InputError, match=r"torch is 2.12.0 there and 2.13.0 here; finish the run"):
        there.run()
    assert not list((tmp_path / "replicas").glob("*"))


def test_a_crash_is_started_again_and_then_the_quorum_decides(tmp_path) -> None:
    crash = "echo 'error: no memory'; exit 1"
    ends: list[SlotEnd] = []
    with pytest.raises(ReplicasFailed, match="slot 0 ended with 1: no memory"):
        supervisor(tmp_path, crash, crash, max_restarts=1, on_end=ends.append).run()
    # Who watches hears of each end: the first restart, and that none is left.
    assert {(end.slot, end.restart) for end in ends} == {(0, 1), (1, 1), (0, 0), (1, 0)}
    assert {(end.code, end.sentence) for end in ends} == {(1, "no memory")}
    assert (tmp_path / "replicas" / "slot-0.log").read_text().count("memory") == 2


class Quick:
    """The place and the job of a slot that works in its last ``poll``, which ends it."""

    def __init__(self, work, code: int, polls: int = 1) -> None:
        self.work, self.code, self.polls, self.launches = work, code, polls, 0

    def launch(self, slot, attempt, env) -> "Quick":
        self.launches += 1
        return self

    def find(self, slot) -> None:
        return None

    def poll(self) -> int | None:
        self.polls -= 1
        if not self.polls:
            self.work()
        return None if self.polls > 0 else self.code

    def lines(self) -> list[str]:
        return []

    def last_sentence(self) -> str:
        return "done"

    def cancel(self) -> None:
        return

    kill = close = cancel


@pytest.mark.parametrize("code", [0, -9])
def test_an_end_right_behind_the_last_commit_is_no_restart(toy, tmp_path, code) -> None:
    """Slot 1 has crashed and is due again when slot 0 ends with the run: neither is started."""
    spec = DiLoCoSpec(
        rounds=1, inner_steps=1, replicas=2, join_timeout_s=0.01, heartbeat_timeout_s=0.5,
        grace_s=0.01, takeover_s=0.01,
    )  # fmt: skip
    url = str(tmp_path / "outer")

    def whole_run() -> None:
        toy.replica_loop(Replica(OuterLog.open(url, "run"), spec, 0, 1))
        time.sleep(0.6)  # the restart of slot 1 is due

    places = Quick(whole_run, code, polls=2), Quick(lambda: None, 1)
    ends: list[SlotEnd] = []
    report = Supervisor(
        url=url, run_id="run", spec=spec, commands=[], places=places,
        run_dir=tmp_path / "replicas", timeout_s=60, on_end=ends.append,
    ).run()  # fmt: skip
    assert [(end.slot, end.code) for end in ends] == [(1, 1)], "the crash alone"
    assert report.restarts == {0: 0, 1: 1}
    assert report.exit_codes == {0: [code], 1: [1]}
    assert [place.launches for place in places] == [1, 1]


def test_a_line_torn_by_the_end_of_an_attempt_is_not_glued_to_the_next(tmp_path) -> None:
    lines: list[str] = []
    with pytest.raises(ReplicasFailed):
        supervisor(
            tmp_path,
            'echo whole; printf "{\\"event"; exit 1',
            "exit 1",
            max_restarts=1,
            on_log=lambda slot, line: lines.append(line),
        ).run()
    assert lines == ["whole", "whole"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")
def test_the_kernel_ends_a_replica_whose_supervisor_is_killed(tmp_path) -> None:
    replica = (
        "import os, signal\n"
        "from composer_pipeline.diloco.supervisor import end_with_supervisor\n"
        "end_with_supervisor()\n"
        "signal.alarm(600)\n"  # one that nobody ends is not left behind for ever
        "print(os.getpid(), flush=True)\n"
        "signal.pause()\n"
    )
    (tmp_path / "replica.py").write_text(replica)
    parent = (
        "import os, subprocess, sys\n"
        "env = os.environ | {'COMPOSER_DILOCO_SUPERVISOR': str(os.getpid())}\n"
        f"subprocess.Popen([sys.executable, {str(tmp_path / 'replica.py')!r}], env=env).wait()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert int(process.stdout.readline()) != process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    # The replica holds the other end of the pipe: its end comes when the replica is gone.
    try:
        gone, _, _ = select.select([process.stdout], [], [], DEADLINE_S)
        assert gone, "the replica goes on without its supervisor"
        assert process.stdout.read() == ""
    finally:
        process.stdout.close()
