"""One replica against a log that others have written to."""

from pathlib import Path

import pytest
import torch

from composer_pipeline.diloco.callback import adopt
from composer_pipeline.diloco.codecs import Delta, encode_delta
from composer_pipeline.diloco.log import Commit, Contribution, OuterLog
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
