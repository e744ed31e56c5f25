"""What a delta's numbers become on the wire, and the safetensors bytes of deltas and states.

The integer codecs have a scale for each block of one parameter's elements, none of which crosses
into the next parameter: the largest absolute value over the largest integer for ``int8`` and
``int4``; for ``int2`` the root mean square, whose four levels ±½ and ±3/2 are nearly the best
uniform ones for normally distributed values (J. Max, Quantizing for minimum distortion, 1960: step
0.996 σ). Scales are bfloat16, because changes of a small learning rate are below float16's range.
Decoding is one fp32 multiplication on the CPU, so all replicas merge the same bits.
"""

import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, get_args

import torch

from composer_pipeline.diloco.log import CorruptObject
from composer_pipeline.diloco.outer_optimizer import OuterState, Step, Tensors, master, squares
from composer_pipeline.diloco.spec import Codec
from composer_pipeline.diloco.store import Pieces

SCALES, VALUES = "scales", "values"
#: Codec of a delta that travels as the parameters that it leads to.
WHOLE = "whole"


class _Integers(NamedTuple):
    """An integer codec: bits of each, and elements that share a scale."""

    bits: int
    block: int

    @property
    def top(self) -> int:
        """The largest integer; ``int2`` has its own levels."""
        return (1 << self.bits - 1) - 1

    def blocks(self, count: int) -> int:
        """Return the number of scales of a parameter with ``count`` elements."""
        return -(-count // self.block)

    def size(self, count: int) -> int:
        """Return the bytes of the integers of a parameter with ``count`` elements."""
        return -(-count * self.bits // 8)


_INTEGERS = {"int8": _Integers(8, 256), "int4": _Integers(4, 64), "int2": _Integers(2, 64)}
#: Codecs from the finest to the coarsest.
CODECS: tuple[Codec, ...] = get_args(Codec)
_FLOATS = {"fp32": torch.float32, "bf16": torch.bfloat16, WHOLE: torch.float32}


def bytes_of(codec: Codec, count: int) -> int:
    """Return how many bytes ``count`` elements take, without the header."""
    if codec in _FLOATS:
        return int(count * _FLOATS[codec].itemsize)
    return _INTEGERS[codec].size(count) + 2 * _INTEGERS[codec].blocks(count)


class Delta(Mapping[str, torch.Tensor]):
    """A delta as it travels; each access to a parameter decodes it, fp32 on the CPU.

    Attributes:
        codec: its name.
        parts: the tensors of its bytes, by name: a parameter's own, or ``scales`` and ``values``
            of all parameters, in the order of their names; or the resulting parameters if whole.
        norm: Euclidean norm of the change that it was made from; 0 for one that was read.
    """

    norm = 0.0

    def __init__(
        self, codec: str, shapes: Mapping[str, torch.Size], parts: dict[str, torch.Tensor],
        base: Mapping[str, torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        self.codec, self.parts, self._base = codec, parts, base or {}
        self._shapes = {name: shapes[name] for name in sorted(shapes)}
        self._squares: dict[str, float] = {}
        self._places: dict[str, tuple[int, int]] = {}
        if codec in _INTEGERS:
            self._places = _places(_INTEGERS[codec], self._shapes)

    @classmethod
    def pack(cls, delta: Mapping[str, torch.Tensor], codec: Codec = "fp32") -> "Delta":
        """Return ``delta`` (fp32, in its parameters' shapes) as the codec represents it."""
        shapes: dict[str, torch.Size] = {}
        sums: dict[str, float] = {}
        parts: Tensors = {}
        packed: list[tuple[torch.Tensor, torch.Tensor]] = []
        for name in sorted(delta):
            tensor = delta[name]  # which may be made by this access
            shapes[name], sums[name] = tensor.shape, squares(tensor)
            if codec in _FLOATS:
                parts[name] = tensor.contiguous().to(_FLOATS[codec])
            else:
                packed.append(_quantised(_INTEGERS[codec], tensor))
        if packed:
            scales, values = zip(*packed, strict=True)
            parts = {SCALES: torch.cat(scales), VALUES: torch.cat(values)}
        made = cls(codec, shapes, parts)
        made.norm = math.sqrt(sum(sums.values()))
        if codec == "fp32":
            made._squares = sums
        return made

    @classmethod
    def to(cls, local: Mapping[str, torch.Tensor], base: Mapping[str, torch.Tensor]) -> "Delta":
        """Return the delta from ``base`` to ``local``, which travels as ``local`` in fp32."""
        parts = {name: master(local[name]) for name in sorted(base)}
        made = cls(WHOLE, {name: tensor.shape for name, tensor in parts.items()}, parts, base)
        made.norm = math.sqrt(sum(map(made.squares, made)))
        return made

    @property
    def whole(self) -> bool:
        """Whether ``parts`` are the parameters that it leads to."""
        return self.codec == WHOLE

    @classmethod
    def of(
        cls, codec: str, like: Mapping[str, torch.Tensor], parts: dict[str, torch.Tensor]
    ) -> "Delta":
        """Return the delta read as ``parts``; raises ``CorruptObject`` where it is invalid."""
        delta = cls(codec, {name: tensor.shape for name, tensor in like.items()}, parts, like)
        expected = delta._expected()
        if parts.keys() != expected.keys():
            raise CorruptObject("the delta's parameter names are not the model's")
        for name, (dtype, shape) in expected.items():
            found = parts[name]
            if found.shape != shape or found.dtype != dtype:
                raise CorruptObject(f"the delta of {name} is {found.dtype} {tuple(found.shape)}")
            if not dtype.is_floating_point:
                continue
            total = delta.squares(name) if codec in _FLOATS else squares(found)
            if not math.isfinite(total):
                raise CorruptObject(f"the delta of {name} has values that are not finite")
        return delta

    def squares(self, name: str) -> float:
        """Return the sum of squares of a decoded parameter, computed once."""
        if name not in self._squares:
            self._squares[name] = squares(self[name])
        return self._squares[name]

    @property
    def layout(self) -> str:
        """A hash of the parameters' names and shapes, which the integers' bytes don't show."""
        text = json.dumps([[name, list(shape)] for name, shape in self._shapes.items()])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _expected(self) -> dict[str, tuple[torch.dtype, torch.Size]]:
        if self.codec in _FLOATS:
            return {name: (_FLOATS[self.codec], shape) for name, shape in self._shapes.items()}
        kind = _INTEGERS[self.codec]
        counts = [shape.numel() for shape in self._shapes.values()]
        return {
            SCALES: (torch.bfloat16, torch.Size([sum(map(kind.blocks, counts))])),
            VALUES: (torch.uint8, torch.Size([sum(map(kind.size, counts))])),
        }

    def __getitem__(self, name: str) -> torch.Tensor:
        shape = self._shapes[name]
        if self.whole:
            return self._base[name] - self.parts[name]
        if self.codec in _FLOATS:
            return self.parts[name].to(torch.float32)
        kind, (scale, value) = _INTEGERS[self.codec], self._places[name]
        count = shape.numel()
        scales = self.parts[SCALES][scale : scale + kind.blocks(count)]
        packed = self.parts[VALUES][value : value + kind.size(count)]
        integers = _unpacked(kind, packed)[:count].to(torch.float32)
        if kind.bits == 2:
            integers = integers * 0.5
        each = scales.to(torch.float32).repeat_interleave(kind.block)[:count]
        return (integers * each).reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def _places(kind: _Integers, shapes: Mapping[str, torch.Size]) -> dict[str, tuple[int, int]]:
    """Return where each parameter's scales and integers begin."""
    places, scale, value = {}, 0, 0
    for name, shape in shapes.items():
        places[name] = scale, value
        scale, value = scale + kind.blocks(shape.numel()), value + kind.size(shape.numel())
    return places


def _quantised(kind: _Integers, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a parameter's scales, bfloat16 ``[blocks]``, and its packed integers, ``[bytes]``."""
    flat = master(tensor).reshape(-1)
    count = flat.numel()
    blocks = torch.nn.functional.pad(flat, (0, -count % kind.block)).reshape(-1, kind.block)
    if kind.bits == 2:
        # The last block's mean is over the elements it has.
        sizes = torch.full((len(blocks), 1), float(kind.block))
        sizes[-1:] = float(count - (len(blocks) - 1) * kind.block)
        wide = blocks.double().square().sum(1, keepdim=True) / sizes
        scales = wide.sqrt().to(torch.bfloat16)
    else:
        scales = (blocks.abs().amax(1, keepdim=True) / kind.top).to(torch.bfloat16)
    # Divided by the scale that readers see; a block of zeros has none.
    ratio = torch.where(scales > 0, blocks / scales.to(torch.float32), 0.0).reshape(-1)[:count]
    if kind.bits == 2:
        integers = (ratio.floor() * 2 + 1).clamp(-3, 3)
    else:
        integers = ratio.round().clamp(-kind.top, kind.top)
    return scales.reshape(-1), _packed(kind, integers.to(torch.int8))


def _packed(kind: _Integers, integers: torch.Tensor) -> torch.Tensor:
    """Return integers as bytes: two's complement, or several in a byte, the first one lowest."""
    if kind.bits == 8:
        return integers.view(torch.uint8)
    codes = (integers + 8 if kind.bits == 4 else (integers + 3) // 2).to(torch.uint8)
    each = 8 // kind.bits
    codes = torch.nn.functional.pad(codes, (0, -len(codes) % each)).reshape(-1, each)
    out = codes[:, 0]
    for place in range(1, each):
        out = out | (codes[:, place] << (place * kind.bits))
    return out.contiguous()


def _unpacked(kind: _Integers, packed: torch.Tensor) -> torch.Tensor:
    """Return the integers of ``_packed``, with those that pad its last byte."""
    if kind.bits == 8:
        return packed.view(torch.int8)
    mask, each = 2**kind.bits - 1, 8 // kind.bits
    codes = [(packed >> (place * kind.bits)) & mask for place in range(each)]
    integers = torch.stack(codes, 1).reshape(-1).to(torch.int8)
    return integers - 8 if kind.bits == 4 else integers * 2 - 3


_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
#: Bytes that hashing and sending hold at a time.
PIECE = 4 * 2**20
#: safetensors' own bound.
_LONGEST_HEADER = 100_000_000


# -- states ------------------------------------------------------------------------------------


def encode_state(state: OuterState, steps: Iterable[Step] | None = None) -> Pieces:
    """Return a state as safetensors bytes; equal states give equal bytes.

    The first pass over the bytes takes ``steps``, which change the state parameter by parameter,
    in the order of their names.
    """
    names = sorted(state.theta)
    shapes = {name: tuple(state.theta[name].shape) for name in names}
    parts = [
        (f"{kind}.{name}", torch.float32, shapes[name])
        for name in names
        for kind in ("theta", "momentum")
    ]

    def tensors() -> Iterator[torch.Tensor]:
        nonlocal steps
        first, steps = steps, None
        for step in state.steps(names) if first is None else first:
            yield step.theta
            yield step.momentum

    return framed(parts, tensors, {})


def decode_state(data: bytes | bytearray) -> OuterState:
    """Return the state in ``data``, in tensors of its own; raises ``CorruptObject``."""
    _, tensors = _parsed(data)
    theta = {n.removeprefix("theta."): t for n, t in tensors.items() if n.startswith("theta.")}
    momentum = {
        n.removeprefix("momentum."): t for n, t in tensors.items() if n.startswith("momentum.")
    }
    if theta.keys() != momentum.keys() or len(tensors) != 2 * len(theta):
        raise CorruptObject("the state's tensors are not pairs of theta and momentum")
    # Copies, so that each can be freed on its own: views would keep all the bytes.
    return OuterState(*({n: t.clone() for n, t in part.items()} for part in (theta, momentum)))


def state_sha(state: OuterState) -> str:
    """Return the SHA-256 of the encoded state, which identifies it in the log."""
    return encode_state(state).sha256


# -- deltas ------------------------------------------------------------------------------------


def encode_delta(delta: Delta) -> Pieces:
    """Return a delta as safetensors bytes, with codec and layout in its header."""
    parts = [(n, t.dtype, tuple(t.shape)) for n, t in delta.parts.items()]
    metadata = {"codec": delta.codec, "layout": delta.layout}
    return framed(parts, lambda: iter(delta.parts.values()), metadata)


def decode_delta(
    data: bytes | bytearray, like: Mapping[str, torch.Tensor], codec: Codec = "fp32"
) -> Delta:
    """Return the delta in ``data``; raises ``CorruptObject`` where it does not fit.

    Its codec may be coarser than ``codec``, that of the run.
    """
    metadata, tensors = _parsed(data)
    there = metadata.get("codec", "fp32")
    if there not in CODECS[CODECS.index(codec) :] and (there, codec) != (WHOLE, "fp32"):
        raise CorruptObject(f"the delta's codec is {there}, the run's is {codec}")
    delta = Delta.of(there, like, tensors)
    layout = metadata.get("layout", delta.layout)
    if layout != delta.layout:
        raise CorruptObject("the delta is of parameters with other names or shapes")
    return delta


# -- the frame: https://github.com/safetensors/safetensors, "Format" -----------------------------


def framed(
    parts: Iterable[tuple[str, torch.dtype, tuple[int, ...]]],
    tensors: Callable[[], Iterable[torch.Tensor]],
    metadata: dict[str, str],
) -> Pieces:
    """Return safetensors bytes of tensors on the CPU, which are made one by one in each pass.

    ``parts`` are name, dtype and shape of each, in the order of ``tensors``.
    """
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, dtype, shape in parts:
        start, end = end, end + dtype.itemsize * torch.Size(shape).numel()
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = struct.pack("<Q", len(text)) + text

    def pieces() -> Iterator[bytes | memoryview]:
        yield head
        for tensor in tensors():
            flat = tensor.contiguous().reshape(-1).view(torch.uint8)
            view = memoryview(flat.numpy())
            yield from (view[at : at + PIECE] for at in range(0, len(view), PIECE))

    return Pieces(len(head) + end, pieces)


def _parsed(data: bytes | bytearray) -> tuple[dict[str, str], Tensors]:
    """Return metadata and tensors, which are views of ``data``; raises ``CorruptObject``."""
    # torch warns about read-only bytes; nothing here writes to them.
    buffer = data if isinstance(data, bytearray) else bytearray(data)
    length = int.from_bytes(buffer[:8], "little")
    if len(buffer) < 8 or length > min(len(buffer) - 8, _LONGEST_HEADER):
        raise CorruptObject("not a safetensors object: its header is cut off")
    try:
        header = json.loads(buffer[8 : 8 + length])
        metadata = header.pop("__metadata__", {})
        entries = sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"]))
        tensors, at = {}, 0
        for name, entry in entries:
            dtype, shape = _DTYPES[entry["dtype"]], torch.Size(entry["shape"])
            begin, size = 8 + length + at, dtype.itemsize * shape.numel()
            if list(entry["data_offsets"]) != [at, at + size] or begin + size > len(buffer):
                raise CorruptObject(f"not a safetensors object: {name} is at another place")
            tensors[name] = _view(buffer, dtype, shape, begin)
            at += size
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise CorruptObject(f"not a safetensors object: {error!r}") from None
    if 8 + length + at != len(buffer):
        raise CorruptObject("not a safetensors object: bytes without a tensor")
    return metadata, tensors


def _view(data: bytearray, dtype: torch.dtype, shape: torch.Size, at: int) -> torch.Tensor:
    if not shape.numel():
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=shape.numel(), offset=at).reshape(shape)
