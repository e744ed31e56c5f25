"""What a codec loses of one round comes with the next, and no loss comes twice."""

from pathlib import Path

import torch

from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.diloco.replica import Replica
from composer_pipeline.diloco.spec import DiLoCoSpec

START = {"w": torch.zeros(64)}


def alone(path: Path, *, attempt: int = 1, **changes) -> Replica:
    spec = DiLoCoSpec(
        replicas=1, rounds=9, inner_steps=1, codec="int2", norm_guard=None,
        **{"error_feedback": True, **changes},
    )  # fmt: skip
    replica = Replica(OuterLog.open(str(path), "run"), spec, 0, attempt)
    replica.join(START)
    replica.close()
    return replica


def change() -> dict[str, torch.Tensor]:
    return {"w": torch.linspace(-1, 1, 64)}


def test_what_was_lost_is_made_up_for(tmp_path: Path) -> None:
    gaps = {}
    for feedback in (True, False):
        replica = alone(tmp_path / str(feedback), error_feedback=feedback)
        for _ in range(8):
            replica.sync(change())
        gaps[feedback] = (replica.state.theta["w"] + 8 * change()["w"]).abs().max().item()
    # Eight rounds lose what one does; without the feedback the losses add up.
    assert gaps[True] < 1
    assert gaps[False] > 2


def test_a_restart_takes_up_the_loss_of_its_own_round_only(tmp_path: Path) -> None:
    first = alone(tmp_path)
    first.sync(change())
    kept = first.private()
    again = alone(tmp_path, attempt=2)
    assert not again.lost
    again.load_private(*kept)
    assert torch.equal(again.lost["w"], first.lost["w"])
    assert again.lost["w"].any()
    again.sync(change())
    # The contribution to the round has carried it already.
    third = alone(tmp_path, attempt=3)
    third.load_private(*kept)
    assert not third.lost


def test_a_change_that_was_not_merged_leaves_the_loss_as_it_was(tmp_path: Path) -> None:
    replica = alone(tmp_path, max_empty_rounds=1)
    replica.sync(change())
    before = replica.lost
    replica.sync({"w": change()["w"] / 0})
    assert replica.lost is before
