"""What deltas are on the wire, beside safetensors' and torch's own reading of it."""

import pytest
import torch
from safetensors.torch import load, save

from composer_pipeline.diloco.codecs import Delta, decode_delta, encode_delta, encode_state
from composer_pipeline.diloco.log import CorruptObject
from composer_pipeline.diloco.outer_optimizer import OuterState

#: Odd sizes on purpose: blocks and bytes that are not full, and one without elements.
SHAPES = {"a.weight": (37, 129), "b": (3,), "c": (), "d": (0, 4), "e": (64, 256)}


def delta(scale: float = 1e-4) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: scale * torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def norm(tensors: dict[str, torch.Tensor]) -> float:
    return torch.cat([tensor.double().reshape(-1) for tensor in tensors.values()]).norm().item()


def there_and_back(change: dict[str, torch.Tensor], codec) -> Delta:
    return decode_delta(bytes(encode_delta(Delta.pack(change, codec))), change, codec)


@pytest.mark.parametrize(
    ("codec", "bytes_each", "error"),
    [("fp32", 4.05, 0), ("bf16", 2.05, 2e-3), ("int8", 1.1, 0.01), ("int4", 0.6, 0.12),
     ("int2", 0.3, 0.36)],
)  # fmt: skip
@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1e4])
def test_everyone_merges_what_travelled(codec, bytes_each, error, scale) -> None:
    change = delta(scale)
    packed, read = Delta.pack(change, codec), there_and_back(change, codec)
    assert list(read) == sorted(SHAPES)
    for name in SHAPES:
        assert torch.equal(packed[name], read[name])
        assert read[name].dtype == torch.float32
    lost = norm({name: change[name] - read[name] for name in SHAPES}) / norm(change)
    assert lost <= error
    assert packed.norm == pytest.approx(norm(change))
    for name in SHAPES:
        for one in (packed, read):
            assert one.squares(name) == pytest.approx(norm({name: read[name]}) ** 2)
    count = sum(tensor.numel() for tensor in change.values())
    assert len(encode_delta(packed)) / count <= bytes_each


@pytest.mark.parametrize(("codec", "top", "block"), [("int8", 127, 256), ("int4", 7, 64)])
def test_integers_are_those_of_torchs_fake_quantisation(codec, top: int, block: int) -> None:
    change = {"w": torch.randn(6, block, generator=torch.Generator().manual_seed(2))}
    read = there_and_back(change, codec)
    scales = read.parts["scales"].float()
    assert torch.allclose(scales, change["w"].abs().amax(1) / top, rtol=1 / 128)
    expected = torch.fake_quantize_per_channel_affine(
        change["w"], scales, torch.zeros(6, dtype=torch.int32), 0, -top, top
    )
    torch.testing.assert_close(read["w"], expected, rtol=1e-6, atol=0)


def test_two_bits_are_four_levels_of_the_root_mean_square() -> None:
    change = {"w": torch.tensor([3.0, 1.0, -1.0, -3.0] * 16)}
    scale = torch.tensor(5.0).sqrt().bfloat16().item()
    levels = torch.tensor([1.5, 0.5, -0.5, -1.5] * 16) * scale
    assert torch.equal(there_and_back(change, "int2")["w"], levels)


def test_a_parameter_that_did_not_change_does_not() -> None:
    for codec in ("int8", "int4", "int2"):
        assert not there_and_back({"w": torch.zeros(300)}, codec)["w"].any()


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4", "int2"])
def test_safetensors_reads_the_same_bytes(codec) -> None:
    packed = Delta.pack(delta(), codec)
    theirs = load(bytes(encode_delta(packed)))
    assert theirs.keys() == packed.parts.keys()
    assert all(torch.equal(theirs[name], packed.parts[name]) for name in theirs)
    state = OuterState.initial(delta())
    theirs = load(bytes(encode_state(state)))
    assert all(torch.equal(theirs[f"theta.{name}"], state.theta[name]) for name in SHAPES)


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4", "int2"])
def test_damaged_or_foreign_deltas_are_refused(codec) -> None:
    change = delta()
    packed = Delta.pack(change, codec)
    coarser = bytes(encode_delta(packed))
    assert decode_delta(coarser, change).codec == codec, "than the run's"
    finer = bytes(encode_delta(Delta.pack(change, "fp32")))
    with pytest.raises(CorruptObject, match=f"the delta's codec is fp32, the run's is {codec}"):
        decode_delta(finer, change, codec)
    first = "scales" if "scales" in packed.parts else "a.weight"
    spoilt = {**packed.parts, first: packed.parts[first] * float("nan")}
    with pytest.raises(CorruptObject, match=f"{first} has values that are not finite"):
        decode_delta(save(spoilt, {"codec": codec}), change, codec)
    turned = {**change, "a.weight": change["a.weight"].T}
    with pytest.raises(CorruptObject, match=r"other names or shapes|the delta of a\.weight is"):
        decode_delta(bytes(encode_delta(Delta.pack(turned, codec))), change, codec)
    for part, short in packed.parts.items():
        if short.numel() > 1:
            cut = {**packed.parts, part: short.reshape(-1)[:-1].clone()}
            with pytest.raises(CorruptObject, match=f"the delta of {part} is"):
                decode_delta(save(cut, {"codec": codec}), change, codec)


def test_bytes_are_refused_wherever_they_are_cut() -> None:
    change = {"w": torch.ones(3)}
    whole = bytes(encode_delta(Delta.pack(change, "int8")))
    for end in range(len(whole)):
        with pytest.raises(CorruptObject):
            decode_delta(whole[:end], change, "int8")
    with pytest.raises(CorruptObject, match="without a tensor"):
        decode_delta(whole + b"x", change, "int8")
