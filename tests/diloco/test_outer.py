import math

import pytest
import torch
from safetensors.torch import save

from composer_pipeline.diloco.codecs import (
    Delta,
    decode_delta,
    decode_state,
    encode_delta,
    encode_state,
    state_sha,
)
from composer_pipeline.diloco.log import CorruptObject
from composer_pipeline.diloco.outer_optimizer import (
    OuterState,
    Tensors,
    outer_steps,
    pseudo_gradient,
    signature,
    squares,
)


def tensors(seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: scale * torch.randn(s, generator=generator) for n, s in (("w", (4, 3)), ("b", (5,)))}


def merged(base, deltas, **given) -> Tensors:
    return {s.name: s.theta for s in outer_steps(OuterState.initial(base), deltas, **given)}


def test_a_local_change_of_plus_one_moves_the_global_by_plus_one() -> None:
    base = {"w": torch.tensor([2.0])}
    delta = pseudo_gradient(base, {"w": torch.tensor([3.0])})
    assert delta["w"].item() == -1.0
    assert merged(base, [delta], lr=1.0, momentum=0.0)["w"].item() == 3.0


def test_two_replicas_are_averaged() -> None:
    base = {"w": torch.zeros(2)}
    deltas = [pseudo_gradient(base, {"w": torch.tensor([x, 0.0])}) for x in (1.0, 3.0)]
    assert merged(base, deltas, lr=1.0, momentum=0.0)["w"].tolist() == [2.0, 0.0]
    weighted = merged(base, deltas, lr=1.0, momentum=0.0, weights=[1, 0])
    assert weighted["w"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.9), (1.0, 0.3), (0.4, 0.8)])
def test_outer_step_equals_torch_sgd_nesterov(lr: float, momentum: float) -> None:
    state = OuterState.initial(tensors(0))
    parameters = {n: torch.nn.Parameter(t.clone()) for n, t in state.theta.items()}
    sgd = torch.optim.SGD(parameters.values(), lr=lr, momentum=momentum, nesterov=True)
    for round_ in range(8):
        deltas = [tensors(10 * round_ + slot, 0.1) for slot in range(1, 4)]
        list(outer_steps(state, deltas, lr=lr, momentum=momentum))
        for name, parameter in parameters.items():
            parameter.grad = torch.stack([d[name] for d in deltas]).mean(0)
        sgd.step()
    for name, parameter in parameters.items():
        assert (state.theta[name] - parameter).abs().max().item() <= 1e-6


def test_outer_step_has_the_bits_of_whole_tensors_and_measures_itself() -> None:
    """A parameter of more elements than are computed at a time, and one without any."""
    generator = torch.Generator().manual_seed(1)
    shapes = {"b": (), "none": (0, 3), "w": (300, 701)}
    theta, momentum, one, other = (
        {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        for _ in range(4)
    )
    state = OuterState(*({n: t.clone() for n, t in part.items()} for part in (theta, momentum)))
    copy = {n: t.clone() for n, t in one.items()}
    steps = list(outer_steps(state, [one, other], lr=0.7, momentum=0.9, weights=[0.3, 0.7]))
    assert [step.name for step in steps] == sorted(shapes)
    for step in steps:
        mean = one[step.name] * 0.3 + other[step.name] * 0.7
        buffer = momentum[step.name] * 0.9 + mean
        expected = theta[step.name] - (mean + buffer * 0.9) * 0.7
        assert torch.equal(state.theta[step.name], expected)
        assert torch.equal(state.momentum[step.name], buffer)
        assert step.theta is state.theta[step.name]
        moved = (expected - theta[step.name]).double().square().sum().item()
        assert step.moved == pytest.approx(moved, rel=1e-5)
    assert all(torch.equal(one[n], copy[n]) for n in one)
    with pytest.raises(ValueError, match="at least one delta"):
        list(outer_steps(state, [], lr=1, momentum=0))


def test_a_sum_of_squares_is_finite_only_if_all_values_are() -> None:
    """Also where fp32 would overflow or lose it."""
    for value in (3e38, 1e-30):
        assert squares(torch.full((70_000,), value)) == pytest.approx(70_000 * value**2)
    for odd in (float("nan"), float("inf"), float("-inf")):
        tensor = torch.zeros(200_000)
        tensor[150_000] = odd
        assert not math.isfinite(squares(tensor))


def test_the_bytes_of_a_state_are_those_after_the_step_in_each_pass() -> None:
    state, again = OuterState.initial(tensors(0)), OuterState.initial(tensors(0))
    data = encode_state(state, outer_steps(state, [tensors(1)], lr=0.7, momentum=0.9))
    digest = data.sha256
    list(outer_steps(again, [tensors(1)], lr=0.7, momentum=0.9))
    assert (
        digest == state_sha(state) == state_sha(again) != state_sha(OuterState.initial(tensors(0)))
    )
    assert bytes(data) == bytes(encode_state(again))


def test_states_and_deltas_survive_their_encoding_bit_for_bit() -> None:
    state = OuterState(tensors(3), tensors(4))
    again = decode_state(bytes(encode_state(state)))
    assert state_sha(again) == state_sha(state)
    # The order of the parameters does not change the bytes.
    turned = OuterState(*(dict(reversed(d.items())) for d in (state.theta, state.momentum)))
    assert state_sha(turned) == state_sha(state)
    delta = tensors(5)
    data = bytes(encode_delta(Delta.pack(delta)))
    assert all(torch.equal(t, delta[n]) for n, t in decode_delta(data, delta).items())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: {**d, "w": d["w"] * float("nan")}, "not finite"),
        (lambda d: {**d, "w": d["w"].half()}, "float16"),
        (lambda d: {**d, "w": d["w"].reshape(3, 4)}, r"\(3, 4\)"),
        (lambda d: {"w": d["w"]}, "names"),
    ],
)
def test_a_delta_that_does_not_fit_is_corrupt(spoil, message: str) -> None:
    delta = tensors(6)
    with pytest.raises(CorruptObject, match=message):
        decode_delta(save(spoil(delta)), delta)


def test_bytes_that_are_no_safetensors_are_corrupt() -> None:
    with pytest.raises(CorruptObject, match="safetensors"):
        decode_delta(b"\x80\x04pickle", tensors(0))
    with pytest.raises(CorruptObject, match="pairs"):
        decode_state(save({"theta.w": torch.zeros(1)}))


def test_the_signature_sees_names_shapes_and_dtypes() -> None:
    base = tensors(0)
    others = [
        {**base, "w": base["w"].half()},
        {**base, "w": base["w"].reshape(3, 4)},
        {"v": base["w"], "b": base["b"]},
    ]
    assert signature(tensors(1)) == signature(base)
    assert len({signature(o) for o in [base, *others]}) == 4
