"""A replica alone: its parameters travel themselves, and the round takes them as they are."""

import pytest
import torch

from composer_pipeline.diloco.codecs import Delta, decode_delta, encode_delta
from composer_pipeline.diloco.fragments import merged_steps
from composer_pipeline.diloco.log import CorruptObject, OuterLog
from composer_pipeline.diloco.outer_optimizer import OuterState, outer_steps, pseudo_gradient
from composer_pipeline.diloco.replica import Replica
from composer_pipeline.diloco.spec import DiLoCoSpec

#: 1 − (1 − 1e-10) is 0 in fp32.
BASE, LOCAL = {"w": torch.tensor([1.0, -2.0])}, {"w": torch.tensor([1e-10, -2.0000002])}


def spec(**changes) -> DiLoCoSpec:
    return DiLoCoSpec.model_validate({"rounds": 3, "inner_steps": 1, "replicas": 1} | changes)


def whole() -> Delta:
    return decode_delta(bytes(encode_delta(Delta.to(LOCAL, BASE))), BASE)


def after(deltas, lr: float) -> torch.Tensor:
    (step,) = outer_steps(OuterState.initial(BASE), deltas, lr=lr, momentum=0.0)
    return step.theta


def test_a_replica_alone_is_where_it_trained_to() -> None:
    state, delta = OuterState.initial(BASE), dict(pseudo_gradient(BASE, LOCAL))
    (step,) = merged_steps(state, [whole()], [1.0], spec())
    assert torch.equal(step.theta, LOCAL["w"])
    assert torch.equal(state.theta["w"], LOCAL["w"])
    assert step.moved == pytest.approx(delta["w"].square().sum().item())
    # Which the difference alone does not give.
    assert not torch.equal(after([delta], 1.0), LOCAL["w"])


def test_elsewhere_it_counts_as_the_change_that_it_is() -> None:
    others = {"w": torch.tensor([0.5, 0.5])}
    steps = merged_steps(
        OuterState.initial(BASE), [whole(), Delta.pack(others)], [0.5, 0.5], spec(replicas=2)
    )
    delta = dict(pseudo_gradient(BASE, LOCAL))
    assert torch.equal(next(steps).theta, after([delta, others], 1.0))
    half = spec(outer_lr=0.5, outer_momentum=0.0)
    (step,) = merged_steps(OuterState.initial(BASE), [whole()], [1.0], half)
    assert torch.equal(step.theta, BASE["w"] - delta["w"] * 0.5)


def test_a_run_of_another_codec_has_none() -> None:
    with pytest.raises(CorruptObject, match="codec is whole, the run's is int8"):
        decode_delta(bytes(encode_delta(Delta.to(LOCAL, BASE))), BASE, "int8")


def test_a_change_that_carries_more_than_the_parameters_travels_as_one(tmp_path) -> None:
    one = Replica(OuterLog.open(str(tmp_path), "run"), spec(late_decay=0.5), 0)
    one.join(BASE)
    late = {"w": torch.tensor([4.0, 8.0])}
    numbers = {"round": 1, "late": {"0": 0}, "wasted": 0}
    one.load_private({"late/w": late["w"]}, numbers)
    one.sync(pseudo_gradient(BASE, LOCAL), local=LOCAL)
    one.close()
    expected = BASE["w"] - (BASE["w"] - LOCAL["w"] + late["w"] * 0.5)
    assert torch.equal(one.state.theta["w"], expected)
