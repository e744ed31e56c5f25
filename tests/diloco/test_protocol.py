"""The protocol in one process: replicas are threads, a kill is an exception.

No result depends on how fast a thread is: a dead replica's heartbeat is made old by the
store's clock, hooks wait for what the log shows, and the other limits are far away.
"""

import datetime as dt
import os
import threading
from pathlib import Path

import pytest
import torch

from composer_pipeline.diloco import rounds
from composer_pipeline.diloco.codecs import state_sha
from composer_pipeline.diloco.fragments import merged_steps, read_state
from composer_pipeline.diloco.log import OuterLog, OuterLogError
from composer_pipeline.diloco.replica import Replica
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.errors import InputError
from tests.diloco.buckets import bucket_settings
from tests.fixtures.waiting import DEADLINE_S, wait_until


class Killed(BaseException):
    """The end of a thread that plays a killed process."""


def spec(**changes) -> DiLoCoSpec:
    times = {
        "join_timeout_s": DEADLINE_S,
        "grace_s": DEADLINE_S,
        "heartbeat_timeout_s": DEADLINE_S,
        "takeover_s": 0.5,
        "round_timeout_s": DEADLINE_S,
    }
    base = {"rounds": 4, "inner_steps": 4, "outer_lr": 0.7, "outer_momentum": 0.9}
    return DiLoCoSpec(**{**times, **base, **changes})


#: Seconds by which a dead replica's last heartbeat lies back.
LONG_AGO_S = 2 * DEADLINE_S


def silence(url: str, member: str) -> None:
    """Make the last heartbeat of a member in a folder so old that it counts as dead."""
    path = Path(url, "runs", "run", member)
    then = path.stat().st_mtime - LONG_AGO_S
    os.utime(path, (then, then))


@pytest.fixture
def run(toy):
    """Run slots as threads; returns ``(log, {slot: results or exception})``.

    A killed slot falls silent at once, unless ``silence`` is None: then it counts as alive.
    """

    def go(url, agreed, slots=None, *, hooks=None, attempt=1, seed=None, silence=silence):
        outcomes = {}

        def one(slot: int) -> None:
            log = toy.HookedLog.open(str(url), "run")
            hook = (hooks or {}).get(slot, lambda where, round_: None)
            log.hook = hook
            replica = Replica(log, agreed, slot, attempt)
            try:
                outcomes[slot] = toy.replica_loop(replica, hook, seed)
            except (Killed, InputError, OuterLogError) as error:
                outcomes[slot] = error
            finally:
                replica.close()
            if isinstance(outcomes.get(slot), Killed) and silence is not None:
                silence(str(url), f"members/{slot}/{attempt}.json")

        chosen = range(agreed.replicas) if slots is None else slots
        threads = [threading.Thread(target=one, args=(slot,), daemon=True) for slot in chosen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * DEADLINE_S)
        assert not any(thread.is_alive() for thread in threads)
        return OuterLog.open(str(url), "run"), outcomes

    return go


def kill_at(where: str, round_: int):
    def hook(there: str, now: int) -> None:
        if (there, now) == (where, round_):
            raise Killed

    return hook


def included(log: OuterLog) -> list[list[int]]:
    return [[part.slot for part in commit.included] for commit in log.commits()[1:]]


def test_all_slots_contribute_to_all_rounds_and_end_equal(run, toy, tmp_path) -> None:
    log, outcomes = run(tmp_path, spec(replicas=3))
    assert included(log) == [[0, 1, 2]] * 4
    assert all(result.contributed for results in outcomes.values() for result in results)
    theta, commit = read_state(str(tmp_path), "run")
    assert commit.round == 4
    assert theta.keys() == toy.Inner(0).parameters().keys()
    losses = []
    for round_ in (0, 4):
        inner = toy.Inner(0)
        inner.adopt(read_state(str(tmp_path), "run", round_)[0])
        x = torch.randn(256, 6, generator=torch.Generator().manual_seed(1))
        target = torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin(), x[:, 3:].sum(1)], 1)
        losses.append(torch.nn.functional.mse_loss(inner.net(x), target).item())
    assert losses[1] < 0.9 * losses[0]


def test_each_replica_computes_each_merge_once(run, monkeypatch, tmp_path) -> None:
    """Whether it proposes or follows: a merge passes over the whole model."""
    rounds_merged = []

    def counted(*given):
        rounds_merged.append(given)
        return merged_steps(*given)

    monkeypatch.setattr(rounds, "merged_steps", counted)
    run(tmp_path, spec(takeover_s=DEADLINE_S))
    assert len(rounds_merged) == 2 * 4


def test_all_replicas_merge_at_the_same_time(run, monkeypatch, tmp_path) -> None:
    """With all changes there, nobody waits for the commit and merges only then."""
    together, merge = threading.Barrier(3, timeout=DEADLINE_S), rounds.Follower._merge

    def met(replica, *given):
        together.wait()
        return merge(replica, *given)

    monkeypatch.setattr(rounds.Follower, "_merge", met)
    log, _ = run(tmp_path, spec(replicas=3, takeover_s=DEADLINE_S))
    assert included(log) == [[0, 1, 2]] * 4


def test_a_replica_killed_while_training_is_left_behind(run, tmp_path) -> None:
    log, outcomes = run(tmp_path, spec(replicas=3), hooks={1: kill_at("inner", 2)})
    assert isinstance(outcomes[1], Killed)
    assert included(log) == [[0, 1, 2], [0, 2], [0, 2], [0, 2]]


def test_a_replica_killed_between_delta_and_manifest_is_left_out(run, tmp_path) -> None:
    log, _ = run(tmp_path, spec(replicas=3), hooks={1: kill_at("after_delta", 2)})
    assert included(log)[1] == [0, 2]
    assert any("/delta/1-" in entry.key for entry in log.store.list("rounds/2"))


def killed_committer(round_: int) -> dict:
    """Return hooks: slot 0 dies as it commits, and slot 1 does not overtake it before."""
    dying = threading.Event()

    def first(where: str, now: int) -> None:
        if (where, now) == ("after_state", round_):
            dying.set()
            raise Killed

    def second(where: str, now: int) -> None:
        if (where, now) == ("after_state", round_):
            assert dying.wait(DEADLINE_S)

    return {0: first, 1: second}


def test_a_killed_committer_is_replaced_and_its_delta_counts(run, tmp_path) -> None:
    agreed = spec(kept_rounds=4)  # round 2 has a whole state, which both of them write
    calm, _ = run(tmp_path / "calm", agreed, seed=7)
    log, outcomes = run(tmp_path / "killed", agreed, hooks=killed_committer(2), seed=7)
    assert isinstance(outcomes[0], Killed)
    assert included(log) == [[0, 1], [0, 1], [1], [1]]
    again, there = log.commits()[2], calm.commits()[2]
    assert again.by == 1
    assert again.state_sha == there.state_sha
    assert len([e for e in log.store.list("state") if e.key.startswith("state/2-")]) == 1


@pytest.fixture
def torn(monkeypatch):
    """Spoil the delta that one slot uploads in one round, after its SHA was recorded."""

    def install(slot: int, round_: int, spoil) -> None:
        original = OuterLog.put_delta

        def put_delta(self, r, s, data):
            key, digest = original(self, r, s, data)
            if (r, s) == (round_, slot):
                self.store.put(key, spoil(bytes(data)))
            return key, digest

        monkeypatch.setattr(OuterLog, "put_delta", put_delta)

    return install


def test_a_torn_delta_is_rejected_and_the_others_commit(run, torn, tmp_path) -> None:
    torn(1, 2, lambda data: data[:-7])
    log, outcomes = run(tmp_path, spec(replicas=3))
    assert included(log) == [[0, 1, 2], [0, 2], [0, 1, 2], [0, 1, 2]]
    (rejected,) = log.commits()[2].rejected
    assert rejected.slot == 1
    assert "bytes instead of" in rejected.reason
    assert [result.contributed for result in outcomes[1]] == [True, False, True, True]
    assert outcomes[1][-1].wasted_tokens == 128


def test_flipped_bits_are_rejected(run, torn, tmp_path) -> None:
    torn(0, 1, lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    log, _ = run(tmp_path, spec())
    assert included(log)[0] == [1]
    assert "SHA-256" in log.commits()[1].rejected[0].reason


def test_a_delta_that_is_not_finite_is_rejected_just_as_a_missing_one(run, torn, tmp_path) -> None:
    def hook(where: str, round_: int):
        if (where, round_) == ("delta", 2):
            return lambda delta: {name: tensor / 0 for name, tensor in delta.items()}
        return None

    log, _ = run(tmp_path / "nan", spec(replicas=3), hooks={1: hook}, seed=7)
    assert included(log) == [[0, 1, 2], [0, 2], [0, 1, 2], [0, 1, 2]]
    assert "not finite" in log.commits()[2].rejected[0].reason
    torn(1, 2, lambda data: data[:-7])
    other, _ = run(tmp_path / "torn", spec(replicas=3), seed=7)
    assert other.commits()[2].state_sha == log.commits()[2].state_sha


def test_a_round_without_enough_valid_deltas_is_committed_empty(run, torn, tmp_path) -> None:
    torn(1, 2, lambda data: data[:-7])
    log, _ = run(tmp_path, spec(min_quorum=2))
    assert included(log) == [[0, 1], [], [0, 1], [0, 1]]
    assert log.commits()[2].state_sha == log.commits()[1].state_sha


def test_a_straggler_is_left_behind_after_the_grace_time_and_comes_back(run, tmp_path) -> None:
    grace = 0.5
    agreed = spec(rounds=2, grace_s=grace)

    def contributed(round_: int) -> set[int]:
        return set(OuterLog.open(str(tmp_path), "run").contributions(round_)[0])

    def straggler(where: str, round_: int) -> None:
        if (where, round_) == ("inner", 1):
            log = OuterLog.open(str(tmp_path), "run")
            wait_until(lambda: log.commit(1), "round 1 is committed without the straggler")
        elif (where, round_) == ("after_contribution", 2):
            wait_until(lambda: contributed(2) == {0, 1}, "both contribute to round 2")

    def other(where: str, round_: int) -> None:
        if (where, round_) == ("inner", 2):
            wait_until(lambda: 1 in contributed(2), "the straggler contributes to round 2")

    log, outcomes = run(tmp_path, agreed, hooks={0: other, 1: straggler})
    assert included(log) == [[0], [0, 1]]
    assert [result.contributed for result in outcomes[1]] == [False, True]
    assert outcomes[1][-1].wasted_tokens == 128
    times = {entry.key: entry.last_modified for entry in log.store.list("rounds/1")}
    waited = times["rounds/1/commit.json"] - times["rounds/1/contrib/0.json"]
    assert waited.total_seconds() > grace


def test_without_a_quorum_the_round_fails_by_name(run, tmp_path) -> None:
    agreed = spec(min_quorum=2, join_timeout_s=0.3, round_timeout_s=1)
    _, outcomes = run(tmp_path, agreed, [0])
    assert isinstance(outcomes[0], OuterLogError)
    assert "round 1 of run run got 1 contributions" in str(outcomes[0])


def test_the_fastest_replica_waits_for_the_others_to_join(run, toy, tmp_path) -> None:
    agreed, looks = spec(rounds=1), []
    hooks = {0: lambda where, round_: looks.append(where)}
    first = threading.Thread(target=run, args=(tmp_path, agreed, [0]), kwargs={"hooks": hooks})
    first.start()
    wait_until(lambda: looks.count("members") >= 4, "slot 0 looks four times for the other")
    assert "inner" not in looks
    log, _ = run(tmp_path, agreed, [1])
    first.join(DEADLINE_S)
    assert included(log) == [[0, 1]]


def test_a_replica_that_joins_after_the_end_trains_nothing(run, tmp_path) -> None:
    log, _ = run(tmp_path, spec())
    before = log.commits()
    _, outcomes = run(tmp_path, spec(), [1], attempt=2)
    assert outcomes == {1: []}
    assert log.commits() == before


def test_a_restart_after_contributing_does_not_train_the_round_again(run, tmp_path) -> None:
    kills = {slot: kill_at("after_contribution", 2) for slot in (0, 1)}
    # Their heartbeats stay fresh, so that the first to come back waits for the other.
    log, _ = run(tmp_path, spec(), hooks=kills, silence=None)
    assert len(log.commits()) == 2
    log, outcomes = run(tmp_path, spec(), attempt=2)
    assert included(log) == [[0, 1]] * 4
    assert {part.attempt for part in log.commits()[2].included} == {1}
    assert [result.commit.round for result in outcomes[0]] == [3, 4]


@pytest.mark.parametrize("kept", [4, None])
def test_lost_states_are_rebuilt_from_the_deltas(run, toy, tmp_path, kept: int | None) -> None:
    agreed = spec(kept_rounds=kept)
    log, _ = run(tmp_path, agreed)
    commits = log.commits()
    log.store.put(commits[-1].state_key, b"torn")
    replica = Replica(log, agreed, 1, 9)
    replica.join(toy.Inner(1).parameters())
    replica.close()
    assert replica.sha == commits[-1].state_sha


def test_a_follower_that_computes_other_bits_downloads_the_state(run, monkeypatch, tmp_path):
    merge = Replica._merge

    def other_bits(self, parts, deltas):
        if self.slot:
            for tensor in self.state.theta.values():
                tensor.mul_(1 + 1e-6)
        return merge(self, parts, deltas)

    adopted, adopt = [], Replica._adopt

    def record(self, commit):
        adopt(self, commit)
        adopted.append((self.slot, commit.round, state_sha(self.state) == commit.state_sha))

    monkeypatch.setattr(Replica, "_merge", other_bits)
    monkeypatch.setattr(Replica, "_adopt", record)
    log, outcomes = run(tmp_path, spec(takeover_s=DEADLINE_S, kept_rounds=2))
    assert included(log) == [[0, 1]] * 4
    assert {commit.by for commit in log.commits()[1:]} == {0}
    assert all(result.contributed for result in outcomes[1])
    assert sorted(adopted) == [(slot, round_, True) for slot in (0, 1) for round_ in range(5)]


@pytest.mark.parametrize(
    ("changes", "seed_model", "message"),
    [
        ({"outer_lr": 1.0}, (6, 16), "outer_lr is 0.7 there and 1.0 here"),
        ({"codec": "int8"}, (6, 16), "codec is 'fp32' there and 'int8' here"),
        ({"data_plan": "other rows"}, (6, 16), "data_plan"),
        ({}, (6, 17), "model_signature"),
    ],
)
def test_a_replica_with_another_spec_or_model_is_refused(
    run, tmp_path, changes, seed_model, message
) -> None:
    log, _ = run(tmp_path, spec(rounds=1))
    before = [entry.key for entry in log.store.list("")]
    other = dict(torch.nn.Sequential(torch.nn.Linear(*seed_model)).named_parameters())
    if seed_model == (6, 16):
        other = {n: torch.zeros_like(t) for n, t in read_state(str(tmp_path), "run")[0].items()}
    with pytest.raises(InputError, match=message):
        Replica(log, spec(rounds=1, **changes), 1, 2).join(other)
    assert [entry.key for entry in log.store.list("")] == before


def test_a_slot_outside_of_the_spec_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match=r"slot 2 is outside of 0\.\.1"):
        Replica(OuterLog.open(str(tmp_path), "run"), spec(), 2)


def test_reading_a_run_that_is_not_there(tmp_path) -> None:
    with pytest.raises(InputError, match="no commit"):
        read_state(str(tmp_path), "run")


class TestS3:
    """The same protocol against a real S3 server (moto) over HTTP."""

    @pytest.fixture
    def bucket(self, monkeypatch):
        with bucket_settings("outer") as settings:
            for name, value in settings.items():
                monkeypatch.setenv(name, value)
            yield "s3://outer/below"

    def test_a_killed_committer_is_replaced_as_on_a_folder(self, run, bucket, tmp_path) -> None:
        def silence(url: str, member: str) -> None:
            from moto.core.models import DEFAULT_ACCOUNT_ID
            from moto.s3.models import s3_backends

            key = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].get_object(
                "outer", f"below/runs/run/{member}"
            )
            assert key is not None
            key.last_modified -= dt.timedelta(seconds=LONG_AGO_S)

        log, outcomes = run(bucket, spec(rounds=3), hooks=killed_committer(2), silence=silence)
        assert isinstance(outcomes[0], Killed)
        assert included(log) == [[0, 1], [0, 1], [1]]
        assert log.commits()[2].by == 1
        assert read_state(bucket, "run")[1] == log.commits()[3]
