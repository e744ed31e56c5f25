"""Real processes through the supervisor, compared bit for bit with one process."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.diloco.codecs import Delta, decode_state, state_sha
from composer_pipeline.diloco.fragments import read_state
from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.diloco.outer_optimizer import OuterState
from composer_pipeline.diloco.places.local import ReplicaCommand
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.diloco.supervisor import ReplicasFailed, Supervisor
from composer_pipeline.errors import InputError
from tests.diloco.buckets import bucket_settings
from tests.fixtures.waiting import DEADLINE_S
from tests.places import ROOT

TOY = Path(__file__).with_name("toy_replica.py")
SPEC = DiLoCoSpec(
    rounds=4,
    inner_steps=5,
    min_quorum=2,
    outer_lr=0.7,
    outer_momentum=0.9,
    join_timeout_s=DEADLINE_S,
    grace_s=DEADLINE_S,
    takeover_s=DEADLINE_S,
    round_timeout_s=DEADLINE_S,
)


def supervisor(
    tmp_path: Path, spec: DiLoCoSpec = SPEC, *, url: str = "", kill: str = "", **options
) -> Supervisor:
    env = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TOY_KILL": kill}
    return Supervisor(
        url=url or str(tmp_path / "outer"),
        run_id="run",
        spec=spec,
        commands=[ReplicaCommand([sys.executable, str(TOY)], env)] * spec.replicas,
        run_dir=tmp_path / "replicas",
        timeout_s=3 * DEADLINE_S,
        drain_s=DEADLINE_S,
        **options,
    )


def first_state(log: OuterLog) -> OuterState:
    first = log.commits()[0]
    return decode_state(log.read(first.state_key, first.state_sha, first.state_size))


def oracle(
    toy, state: OuterState, spec: DiLoCoSpec, fresh: dict[int, set[int]],
    fragments: Sequence[Sequence[str]] = (),
) -> list[str]:  # fmt: skip
    """Return the state SHA after each round, computed by one loop without the log's protocol.

    Args:
        toy: the module of the toy replica.
        state: the initial weights, which are those of whichever process was first.
        spec: the run's spec.
        fresh: slots whose inner optimiser starts empty, by round, from the committed parameters.
        fragments: names of the parameters that rounds merge in turn, up to the last one.
    """
    lr, mu = spec.outer_step
    replicas = [toy.Inner(slot) for slot in range(spec.replicas)]
    lost: list[dict[str, Any]] = [{} for _ in replicas]
    shas = []
    for replica in replicas:
        replica.adopt(state.theta)
    for round_ in range(1, spec.rounds + 1):
        changes, names = [], list(state.theta)
        if fragments and round_ < spec.rounds:
            names = list(fragments[(round_ - 1) % len(fragments)])
        for slot in range(spec.replicas):
            if slot in fresh.get(round_, ()):
                replicas[slot], lost[slot] = toy.Inner(slot), {}
                replicas[slot].adopt(state.theta)
            replicas[slot].steps(round_, spec.inner_steps)
            after = {n: p.detach().clone() for n, p in replicas[slot].parameters().items()}
            change = {n: state.theta[n] - after[n] for n in names}
            change = {n: t + lost[slot].get(n, 0) for n, t in change.items()}
            arrived = Delta.pack(change, spec.codec)
            if spec.feeds_back(spec.codec):
                lost[slot] |= {n: t - arrived[n] for n, t in change.items()}
            changes.append(arrived)
        for name in names:
            theta = state.theta[name]
            mean = sum(change[name] * (1 / spec.replicas) for change in changes)
            buffer = mu * state.momentum[name] + mean
            state.momentum[name] = buffer
            state.theta[name] = theta - lr * (mean + mu * buffer)
        for replica in replicas:
            replica.adopt(state.theta, names)
        shas.append(state_sha(state))
    return shas


@pytest.mark.slow
def test_two_processes_equal_one_process_bit_for_bit(toy, tmp_path) -> None:
    seen: list[Any] = []
    lines: list[Any] = []
    report = supervisor(
        tmp_path, on_round=seen.append, on_log=lambda *line: lines.append(line)
    ).run()
    log = OuterLog.open(str(tmp_path / "outer"), "run")
    assert [r.state_sha for r in report.rounds] == oracle(toy, first_state(log), SPEC, {})
    assert [r.slots for r in report.rounds] == [(0, 1)] * 4
    assert report.exit_codes == {0: [0], 1: [0]}
    assert report.rounds == tuple(seen)
    ends = {(slot, line.rsplit(" ", 1)[1]) for slot, line in lines if "ends with" in line}
    assert ends == {(0, report.state_sha), (1, report.state_sha)}
    assert "ends with" in (tmp_path / "replicas" / "slot-0.log").read_text()

    # Complete: running it again starts nothing.
    again = supervisor(tmp_path).run()
    assert (again.rounds, again.exit_codes) == (report.rounds, {0: [], 1: []})
    with pytest.raises(InputError, match="inner_steps is 5 there and 6 here"):
        supervisor(tmp_path, SPEC.model_copy(update={"inner_steps": 6})).run()


@pytest.mark.slow
def test_a_killed_replica_is_restarted_and_no_round_is_lost(toy, tmp_path, caplog) -> None:
    spec = SPEC.model_copy(update={"codec": "int8", "error_feedback": True})
    with caplog.at_level(logging.WARNING):
        report = supervisor(tmp_path, spec, kill="1:inner:2,0:after_delta:3").run()
    log = OuterLog.open(str(tmp_path / "outer"), "run")
    # A restarted replica trains its round again, with an empty inner optimiser.
    assert [r.state_sha for r in report.rounds] == oracle(
        toy, first_state(log), spec, {2: {1}, 3: {0}}
    )
    assert [r.slots for r in report.rounds] == [(0, 1)] * 4
    assert report.exit_codes == {0: [-9, 0], 1: [-9, 0]}
    assert report.restarts == {0: 1, 1: 1}
    assert "slot 1 ended with -9; restart 1" in caplog.text


@pytest.mark.slow
def test_after_all_replicas_died_the_run_resumes_at_the_last_commit(
    toy, tmp_path, monkeypatch
) -> None:
    """In a bucket, of four bits, with adapters."""
    spec = SPEC.model_copy(update={"codec": "int4", "kept_rounds": 4})
    monkeypatch.setenv("TOY_LORA", "1")
    with bucket_settings("toy") as settings:
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        _resumes("s3://toy/outer", spec, toy, tmp_path)


def _resumes(url: str, spec: DiLoCoSpec, toy, tmp_path: Path) -> None:
    with pytest.raises(ReplicasFailed, match="2 of 4 rounds are committed") as failure:
        supervisor(tmp_path, spec, url=url, kill="0:inner:3,1:inner:3", max_restarts=0).run()
    assert "killed at inner of round 3" in str(failure.value)
    log = OuterLog.open(url, "run")
    before = log.commits()
    first = first_state(log)
    assert all(name.endswith(("lora_a", "lora_b")) for name in first.theta)
    report = supervisor(tmp_path, spec, url=url).run()
    assert log.commits()[:3] == before
    assert [r.state_sha for r in report.rounds] == oracle(toy, first, spec, {3: {0, 1}})
    # What only rounds up to the second needed is gone; that is said.
    with pytest.raises(
        InputError, match="round 1 of run run was removed: the log keeps rounds from 2 on"
    ):
        read_state(url, "run", 1)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["folder", "s3"])
def test_processes_that_merge_fragments_equal_one_process(
    toy, tmp_path, monkeypatch, place
) -> None:
    """In a folder two fragments in fp32, in a bucket three in int8; each with a killed replica."""
    if place == "folder":
        changes: dict[str, Any] = {"fragments": 2}
        fragments = [["0.bias", "0.weight"], ["2.bias", "2.weight"]]
        _merges_fragments(str(tmp_path / "outer"), changes, fragments, toy, tmp_path)
        return
    changes = {"fragments": 3, "codec": "int8", "kept_rounds": 4}
    fragments = [["0.weight"], ["2.weight"], ["0.bias", "2.bias"]]
    with bucket_settings("toy") as settings:
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        _merges_fragments("s3://toy/fragments", changes, fragments, toy, tmp_path)


def _merges_fragments(
    url: str, changes: dict[str, Any], fragments: list[list[str]], toy, tmp_path: Path
) -> None:
    spec = SPEC.model_copy(update=changes)
    seen: list[Any] = []
    # In the second round, so that the whole states of a log that forgets are still there.
    kept: list[OuterState] = []
    log = OuterLog.open(url, "run")

    def on_round(report: Any) -> None:
        if not kept:
            kept.append(first_state(log))
        seen.append(report)

    report = supervisor(tmp_path, spec, url=url, kill="1:inner:2", on_round=on_round).run()
    shas = oracle(toy, kept[0], spec, {2: {1}}, fragments)
    assert [r.state_sha for r in report.rounds] == shas
    assert [r.slots for r in report.rounds] == [(0, 1)] * 4
    assert [commit.fragment for commit in log.commits()[1:4]] == [
        n % len(fragments) for n in range(3)
    ]
    sizes = [commit.included[0].size for commit in log.commits()[1:]]
    assert all(size < sizes[-1] for size in sizes[:-1])


def test_bad_input_is_not_restarted(tmp_path) -> None:
    command = ReplicaCommand(["sh", "-c", "echo no such model; exit 2"])
    with pytest.raises(InputError, match=r"^no such model \(replica [01]\)$") as failure:
        Supervisor(
            url=str(tmp_path / "outer"),
            run_id="run",
            spec=SPEC,
            commands=[command, command],
            run_dir=tmp_path / "replicas",
        ).run()
    slot = str(failure.value)[-2]  # whichever ended first; the other may not have spoken
    assert (tmp_path / "replicas" / f"slot-{slot}.log").read_text() == "no such model\n"


def test_exiting_with_0_before_the_end_is_a_failure(tmp_path) -> None:
    with pytest.raises(ReplicasFailed, match=r"slot \d ended with 0"):
        Supervisor(
            url=str(tmp_path / "outer"),
            run_id="run",
            spec=SPEC,
            commands=[ReplicaCommand(["true"])] * 2,
            run_dir=tmp_path / "replicas",
            max_restarts=1,
        ).run()


class Clock:
    """The supervisor's clock, which leaps by an hour once all replicas have written a line."""

    def __init__(self, logs: list[Path]) -> None:
        self.logs = logs

    def monotonic(self) -> float:
        spoken = all(log.exists() and log.read_text().endswith("\n") for log in self.logs)
        return time.monotonic() + 3600 * spoken

    sleep = staticmethod(time.sleep)


def test_the_supervisor_stops_its_own_children_and_only_those(tmp_path, monkeypatch) -> None:
    logs = [tmp_path / "replicas" / f"slot-{slot}.log" for slot in (0, 1)]
    monkeypatch.setattr("composer_pipeline.diloco.supervisor.STOP_PATIENCE_S", 0.5)
    monkeypatch.setattr("composer_pipeline.diloco.supervisor.time", Clock(logs))
    bystander = subprocess.Popen(["sleep", "3600"])
    deaf = "trap '' TERM; echo $$; sleep 3600 & wait; sleep 3600"
    try:
        with pytest.raises(ReplicasFailed, match="time is up after 3000 s"):
            Supervisor(
                url=str(tmp_path / "outer"),
                run_id="run",
                spec=SPEC.model_copy(update={"replicas": 2}),
                commands=[ReplicaCommand(["sh", "-c", deaf])] * 2,
                run_dir=tmp_path / "replicas",
                timeout_s=3000,
            ).run()
        for log in logs:
            with pytest.raises(ProcessLookupError):
                os.kill(int(log.read_text()), 0)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_one_command_for_each_replica(tmp_path) -> None:
    with pytest.raises(InputError, match="1 replica commands for replicas 2"):
        Supervisor(
            url=str(tmp_path),
            run_id="run",
            spec=SPEC,
            commands=[ReplicaCommand(["true"])],
            run_dir=tmp_path,
        )
