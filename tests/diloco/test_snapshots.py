"""What stays in a log, and that nobody loses to what goes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from composer_pipeline.diloco.codecs import encode_state, state_sha
from composer_pipeline.diloco.fragments import read_state
from composer_pipeline.diloco.log import CorruptObject, OuterLog, OuterLogError
from composer_pipeline.diloco.outer_optimizer import OuterState
from composer_pipeline.diloco.replica import Replica
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.errors import InputError

KEPT, ROUNDS = 4, 11
PRESENT: list[Replica] = []


def spec(**changes) -> DiLoCoSpec:
    quick = {"join_timeout_s": 0.01, "grace_s": 0.05, "heartbeat_timeout_s": 0.1}
    return DiLoCoSpec(
        replicas=2, rounds=ROUNDS, inner_steps=1, outer_lr=0.7, outer_momentum=0.9, norm_guard=None,
        **{**quick, "kept_rounds": KEPT, **changes},
    )  # fmt: skip


def join(path: Path, slot: int = 0, attempt: int = 1, **changes) -> Replica:
    replica = Replica(OuterLog.open(str(path), "run"), spec(**changes), slot, attempt)
    replica.join({"w": torch.ones(3)})
    if slot:
        replica.leave()  # nobody waits for it
    else:
        PRESENT.append(replica)
    return replica


def train(replica: Replica, rounds: int) -> None:
    for _ in range(rounds):
        replica.sync({"w": torch.full((3,), 0.1 * replica.round)})


def kept(log: OuterLog) -> tuple[list[int], list[int]]:
    states = [int(e.key.split("/")[1].split("-")[0]) for e in log.store.list("state")]
    deltas = [int(e.key.split("/")[1]) for e in log.store.list("rounds") if "/delta/" in e.key]
    return sorted(states), sorted(deltas)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch) -> Iterator[None]:
    monkeypatch.setattr("composer_pipeline.diloco.log.READ_PAUSE_S", 0)
    yield
    while PRESENT:
        PRESENT.pop().close()


def test_at_any_time_two_states_and_so_many_deltas_lead_to_the_newest(
    tmp_path: Path, monkeypatch
) -> None:
    """Also just after something went, before the round is committed for which it did."""
    create = OuterLog.try_commit

    def look_then_create(log: OuterLog, commit) -> bool:
        states, deltas = kept(log)
        assert len(states) <= 2
        assert len(deltas) <= KEPT
        theta, last = read_state(str(tmp_path), "run")
        assert last.round == commit.round - 1
        assert torch.equal(theta["w"], before)
        return create(log, commit)

    replica = join(tmp_path)
    monkeypatch.setattr(OuterLog, "try_commit", look_then_create)
    for round_ in range(1, ROUNDS + 1):
        before = replica.state.theta["w"].clone()
        train(replica, 1)
        assert state_sha(replica.state) == replica.sha
        late = join(tmp_path, 1, round_)
        assert (late.sha, late.round) == (replica.sha, round_ + 1)
    assert kept(replica.log) == ([10, 11], [11])
    assert [commit.round for commit in replica.log.commits()] == list(range(ROUNDS + 1))


def test_a_state_that_is_made_again_must_be_the_committed_one(tmp_path: Path) -> None:
    replica = join(tmp_path)
    train(replica, 8)
    newest = replica.log.commits()[8]
    (file,) = [p for p in tmp_path.rglob("*.json") if newest.state_sha in p.read_text()]
    file.write_text(file.read_text().replace(newest.state_sha, "0" * 64))
    with pytest.raises(CorruptObject, match="the deltas of round 8 don't add up to its state"):
        read_state(str(tmp_path), "run", 8)


def test_a_damaged_state_is_made_again_from_the_one_before(tmp_path: Path) -> None:
    replica = join(tmp_path)
    train(replica, 8)
    newest = replica.log.commits()[8]
    replica.log.store.put(newest.state_key, b"torn")
    assert join(tmp_path, 1).sha == replica.sha
    assert torch.equal(read_state(str(tmp_path), "run", 8)[0]["w"], replica.state.theta["w"])
    # What has to lead over the damaged one stays, though another whole state is written.
    train(replica, 2)
    assert kept(replica.log)[0] == [6, 8, 10]
    replica.log.store.put(replica.log.commits()[10].state_key, b"torn")
    assert join(tmp_path, 1, 2).sha == replica.sha


def test_a_slow_reader_goes_to_the_newer_state(tmp_path: Path) -> None:
    slow, replica = join(tmp_path, 1), join(tmp_path)
    train(replica, 9)
    result = slow.sync({"w": torch.ones(3)})
    assert (result.commit.round, result.contributed) == (1, False)
    assert (slow.round, slow.sha) == (replica.round, replica.sha)
    assert slow._guard.norms == replica._guard.norms


def test_a_removed_round_is_said_to_be_removed(tmp_path: Path) -> None:
    replica = join(tmp_path)
    train(replica, 8)
    for gone in (0, 5):
        match = f"the state of round {gone} of run run was removed: the log keeps rounds from 6 on"
        with pytest.raises(InputError, match=match):
            read_state(str(tmp_path), "run", gone)
    assert read_state(str(tmp_path), "run", 7)[1].round == 7
    with pytest.raises(InputError, match="no commit for round 9"):
        read_state(str(tmp_path), "run", 9)


def test_every_round_can_be_read_where_all_are_kept(tmp_path: Path) -> None:
    replica, seen = join(tmp_path, kept_rounds=None), []
    for _ in range(ROUNDS):
        train(replica, 1)
        seen.append(replica.state.theta["w"].clone())
    for round_, theta in enumerate(seen, 1):
        assert torch.equal(read_state(str(tmp_path), "run", round_)[0]["w"], theta)
    assert kept(replica.log) == ([0, 5, 10, 11], list(range(1, ROUNDS + 1)))


def test_one_who_lost_the_race_leaves_no_state_behind(tmp_path: Path) -> None:
    replica = join(tmp_path)
    train(replica, 2)
    other = OuterState.initial({"w": torch.zeros(3)})
    replica.log.put_state(2, encode_state(other))
    assert kept(replica.log)[0] == [0, 2, 2]
    train(replica, 2)
    assert kept(replica.log)[0] == [2, 4]


def test_machines_that_compute_other_bits_are_told_the_remedy(tmp_path: Path, monkeypatch) -> None:
    train(join(tmp_path), 3)
    monkeypatch.setattr(Replica, "_rebuild", lambda self, commit: False)
    with pytest.raises(OuterLogError, match=r"leads to round 3; .* diloco\.kept_rounds: 2"):
        join(tmp_path, 1)
