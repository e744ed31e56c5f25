"""One replica against a log that others have written to."""

from pathlib import Path

import pytest
import torch

from composer_pipeline.diloco.callback import adopt
from composer_pipeline.diloco.codecs import Delta, encode_delta, state_sha
from composer_pipeline.diloco.log import Commit, Contribution, OuterLog
from composer_pipeline.diloco.outer_optimizer import OuterState, outer_steps, pseudo_gradient
from composer_pipeline.diloco.replica import Replica
from composer_pipeline.diloco.spec import DiLoCoSpec

DELTA = {"w": torch.full((2,), 0.5)}


@pytest.fixture
def joined(tmp_path: Path) -> Replica:
    """Slot 0 of a run of two, alone so far."""
    spec = DiLoCoSpec(
        replicas=2, rounds=3, inner_steps=1, outer_lr=0.7, outer_momentum=0.9, min_quorum=1,
        join_timeout_s=0.01, grace_s=20, heartbeat_timeout_s=2, takeover_s=0.01, round_timeout_s=20,
        max_empty_rounds=2,
    )  # fmt: skip
    replica = Replica(OuterLog.open(str(tmp_path), "run"), spec, 0)
    replica.join({"w": torch.ones(2)})
    return replica


def test_a_delta_of_an_older_base_is_rejected(joined: Replica) -> None:
    data = encode_delta(Delta.pack(DELTA))
    key, digest = joined.log.put_delta(1, 1, data)
    joined.log.contribute(Contribution(1, 1, 1, key, digest, len(data), "0" * 64))
    commit = joined.sync(dict(DELTA)).commit
    joined.close()
    assert [part.slot for part in commit.included] == [0]
    (rejected,) = commit.rejected
    assert rejected.slot == 1
    assert "its base is 0000000000000000" in rejected.reason


def test_work_that_is_thrown_away_adds_up(joined: Replica) -> None:
    start = joined.log.commit(0)
    assert start is not None
    wasted = []
    for round_, tokens in ((1, 10), (2, 7)):
        # The others were done before this one had anything.
        joined.log.try_commit(
            Commit(
                round_, (), (), joined.sha, start.state_sha, start.state_key, start.state_size, 1
            )
        )
        result = joined.sync(dict(DELTA), tokens=tokens)
        assert not result.contributed
        wasted.append(result.wasted_tokens)
    joined.close()
    assert wasted == [10, 17]


def test_training_leaves_the_adopted_state_alone() -> None:
    model = torch.nn.Linear(2, 2)
    theta = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    adopt(model, theta)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert all(not tensor.any() for tensor in theta.values())


def test_a_proposal_that_lost_to_another_commit_leaves_no_trace(
    joined: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the state had its values already: the committed ones come from the log."""
    log, other = joined.log, {"w": torch.full((2,), -3.0)}
    data = encode_delta(Delta.pack(other))
    key, digest = log.put_delta(1, 1, data)
    offer = Contribution(1, 1, 1, key, digest, len(data), joined.sha)
    log.contribute(offer)
    state = OuterState.initial({"w": torch.ones(2)})
    list(outer_steps(state, [other], lr=0.7, momentum=0.9))
    create = log.try_commit

    def too_late(proposal: Commit) -> bool:
        assert proposal.slots == (0, 1)
        alone = offer.included(1.0, 3.0 * 2**0.5)
        assert create(Commit(1, (alone,), (), joined.sha, state_sha(state), "", 0, 1))
        return create(proposal)

    monkeypatch.setattr(log, "try_commit", too_late)
    result = joined.sync(dict(DELTA))
    joined.close()
    assert (result.contributed, result.commit.slots) == (False, (1,))
    assert (joined.round, joined.sha) == (2, state_sha(state))
    assert state_sha(joined.state) == joined.sha


def test_a_commit_that_is_not_seen_at_once_is_not_merged_twice(
    joined: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, answers = joined.log.commit, iter([None] * 3)
    monkeypatch.setattr(joined.log, "commit", lambda round_: next(answers, look(round_)))
    create, proposals = joined.log.try_commit, list[Commit]()

    def noted(commit: Commit) -> bool:
        proposals.append(commit)
        return create(commit)

    monkeypatch.setattr(joined.log, "try_commit", noted)
    result = joined.sync(dict(DELTA))
    joined.close()
    assert result.moved == pytest.approx(0.7 * 1.9 * 0.5 * 2**0.5)
    assert joined.state.theta["w"].tolist() == pytest.approx([1 - 0.7 * 1.9 * 0.5] * 2)
    assert state_sha(joined.state) == joined.sha == result.commit.state_sha
    assert proposals == [result.commit] * 2


def test_a_round_that_merges_nothing_moves_nothing(joined: Replica) -> None:
    assert joined.sync(dict(DELTA)).moved > 0
    joined.log.try_commit(Commit(2, (), (), joined.sha, joined.sha, "", 0, 1))
    assert joined.sync(dict(DELTA)).moved == 0
    joined.close()


@pytest.mark.parametrize("changes", [{"late_decay": 0.5}, {"error_feedback": True}])
def test_a_change_may_be_made_from_the_state_itself(joined: Replica, changes, monkeypatch) -> None:
    """What is read of it after the merge, which changes the state, is what was trained."""
    joined.spec = joined.spec.model_copy(update={"codec": "int2", **changes})
    local, given = {"w": torch.tensor([0.5, 0.9])}, {"w": torch.tensor([0.5, 0.1])}
    create = joined.log.try_commit

    def first(proposal: Commit) -> bool:
        if changes.get("late_decay"):  # another one was first
            create(Commit(1, (), (), joined.sha, joined.sha, "", 0, 1))
        return create(proposal)

    monkeypatch.setattr(joined.log, "try_commit", first)
    joined.sync(pseudo_gradient(joined.state.theta, local))
    joined.close()
    tensors, _ = joined.private()
    (kept,) = tensors.values()
    lost = given["w"] - Delta.pack(given, "int2")["w"]
    expected = given["w"] if changes.get("late_decay") else lost
    assert torch.allclose(kept, expected)
