"""How a replica leaves: its supervisor is gone, it was asked to, or it was too late."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from composer_pipeline.diloco.heartbeat import EXIT_TERMINATED, GracefulExit
from composer_pipeline.diloco.log import Commit, OuterLog
from composer_pipeline.diloco.supervisor import ReplicasFailed
from composer_pipeline.errors import ComposerError
from tests.diloco.test_callback import SPEC
from tests.diloco.test_supervisor import supervisor
from tests.diloco.test_true_rounds import NAN, delta, joined
from tests.places import ROOT


class Gone(ComposerError):
    pass


def gone() -> None:
    raise Gone


def test_who_waits_for_a_commit_looks_for_the_supervisor(tmp_path: Path) -> None:
    replica = joined(tmp_path, replicas=2, heartbeat_timeout_s=1000, grace_s=1000)
    joined(tmp_path, replicas=2, heartbeat_timeout_s=1000, grace_s=1000, slot=1)
    replica.watch = gone
    with pytest.raises(Gone):
        replica.sync(delta(1))


def test_who_waits_for_others_to_join_looks_for_it_too(tmp_path, monkeypatch) -> None:
    from composer_pipeline.diloco.replica import Replica

    monkeypatch.setattr(Replica, "watch", staticmethod(gone))
    with pytest.raises(Gone):
        joined(tmp_path, replicas=2, join_timeout_s=1000)


def test_the_callback_gives_the_replica_something_to_look_for(tmp_path, monkeypatch) -> None:
    from composer_pipeline.diloco.callback import DiLoCoCallback

    url = str(tmp_path)
    callback = DiLoCoCallback(url=url, run_id="run", slot=0, spec=SPEC, supervisor=os.getppid())
    callback.replica.watch()
    monkeypatch.setattr(os, "getppid", lambda: 1_000_000)
    with pytest.raises(ComposerError, match="supervisor of DiLoCo slot 0 is gone"):
        callback.replica.watch()


def test_an_upload_that_has_begun_ends_before_the_process_leaves(tmp_path: Path) -> None:
    """SIGTERM between delta and manifest: both are there; while waiting, it leaves at once."""
    script = """
import os, signal, sys
from pathlib import Path
from composer_pipeline.diloco.log import OuterLog
from tests.diloco.test_true_rounds import delta, joined
replica = joined(Path(sys.argv[1]), replicas=2, grace_s=1000)
replica.graceful_exit.install()
put = OuterLog.put_delta
def put_delta(self, *args):
    os.kill(os.getpid(), signal.SIGTERM)
    return put(self, *args)
OuterLog.put_delta = put_delta
try:
    replica.sync(delta(1))
finally:
    replica.leave()
"""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=env, check=False)
    assert done.returncode == EXIT_TERMINATED == 128 + signal.SIGTERM
    log = OuterLog.open(str(tmp_path), "run")
    assert set(log.contributions(1)[0]) == {0}
    assert log.commit(1) is None
    assert log.members() == {}


def test_outside_of_an_upload_it_leaves_at_once() -> None:
    leaving = GracefulExit()
    with pytest.raises(SystemExit, match=str(EXIT_TERMINATED)):
        leaving._on_signal(signal.SIGTERM, None)
    leaving, steps = GracefulExit(), list[str]()

    def upload() -> None:
        with leaving.deferred():
            leaving._on_signal(signal.SIGTERM, None)
            steps.append("ended")

    with pytest.raises(SystemExit):
        upload()
    assert steps == ["ended"]


def test_outside_of_the_main_thread_a_call_stands_for_the_signal(monkeypatch) -> None:
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr(GracefulExit, "_of_thread", None)
    leaving = GracefulExit()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(leaving.install).result()
    with pytest.raises(SystemExit, match=str(EXIT_TERMINATED)):
        GracefulExit.leave()
    assert not leaving.terminated
    steps = list[str]()

    def upload() -> None:
        with leaving.deferred():
            GracefulExit.leave()
            steps.append("ended")

    with pytest.raises(SystemExit, match=str(EXIT_TERMINATED)):
        upload()
    assert steps == ["ended"]


def test_restarts_are_counted_over_supervisors(tmp_path: Path) -> None:
    """The second one may start each slot once, and has no further restarts to give."""
    crash = "echo 'error: no memory'; exit 1"
    for _ in range(2):
        with pytest.raises(ReplicasFailed, match="slot 0 ended with 1: no memory"):
            supervisor(tmp_path, crash, crash, max_restarts=1).run()
    assert (tmp_path / "replicas" / "slot-0.log").read_text().count("memory") == 3


def commit_without(replica, round_: int) -> None:
    """The others commit a round without this replica, and leave the state as it is."""
    first = replica.log.commit(0)
    state = first.state_sha, first.state_key, first.state_size
    replica.log.try_commit(Commit(round_, (), (), replica.sha, *state, 1))


@pytest.mark.parametrize(
    ("decay", "moved", "wasted"), [(0.0, 1.0, 10), (0.5, 1.0 + 0.5 * 8.0, 0)], ids=["drop", "carry"]
)
def test_a_late_change_is_dropped_and_counted_or_carried(tmp_path, decay, moved, wasted) -> None:
    replica = joined(tmp_path, late_decay=decay, max_empty_rounds=9)
    commit_without(replica, 1)
    assert not replica.sync(delta(8), tokens=10).contributed
    result = replica.sync(delta(1), tokens=3)
    assert (result.contributed, result.wasted_tokens) == (True, wasted)
    assert result.commit.tokens == 13 - wasted
    assert replica.state.theta["w"].tolist() == [1 - moved, 1]
    assert replica.sync(delta(0)).contributed
    assert replica.state.theta["w"].tolist() == [1 - moved, 1], "once"


def test_what_was_carried_and_is_late_again_is_lost(tmp_path: Path) -> None:
    replica = joined(tmp_path, late_decay=0.5, max_empty_rounds=9)
    for round_, size in ((1, 8.0), (2, 4.0)):
        commit_without(replica, round_)
        replica.sync(delta(size), tokens=10)
    assert replica.wasted_tokens == 10
    replica.sync(delta(0), tokens=1)
    assert replica.state.theta["w"].tolist() == [1 - 0.5 * 4.0, 1]


def test_what_is_not_finite_is_not_carried(tmp_path: Path) -> None:
    replica = joined(tmp_path, late_decay=0.5, max_empty_rounds=9)
    commit_without(replica, 1)
    replica.sync(dict(NAN), tokens=4)
    assert replica.wasted_tokens == 4
    assert replica.sync(delta(1)).contributed
