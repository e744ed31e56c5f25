"""States and deltas as safetensors bytes, made and read tensor by tensor.

Belongs here: the frame of the bytes, states, and checking deltas that are read. Does not belong
here: arithmetic (``outer``), the numbers of a codec (``codecs``) and the store.

Nothing is copied as a whole: bytes are views of the tensors they come from, and come again for
each pass (one to hash, one to send).
"""

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch

from composer_pipeline.diloco.log import CorruptObject
from composer_pipeline.diloco.spec import Codec
from composer_pipeline.diloco.store import Pieces
from composer_pipeline.diloco.tensors.codecs import WHOLE, Delta
from composer_pipeline.diloco.tensors.outer import OuterState, Step, Tensors

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "U8": torch.uint8}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
#: Bytes in one piece: what hashing and sending hold at a time.
PIECE = 4 * 2**20
#: Longest header that is read; safetensors' own bound.
_LONGEST_HEADER = 100_000_000


class _Part(NamedTuple):
    """A tensor's place in the bytes, before it is there."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


# -- states ------------------------------------------------------------------------------------


def encode_state(state: OuterState, steps: Callable[[], Iterable[Step]] | None = None) -> Pieces:
    """Return a state as safetensors bytes; equal states give equal bytes.

    Args:
        state: gives names and shapes; and the values, where ``steps`` is None.
        steps: makes the values, in any order that it keeps: the state after an outer step,
            of which one tensor is in memory at a time.
    """
    names = sorted(state.theta)
    shapes = {name: tuple(state.theta[name].shape) for name in names}
    parts = [
        _Part(f"{kind}.{name}", torch.float32, shapes[name])
        for name in names
        for kind in ("theta", "momentum")
    ]
    made = steps or partial(state.steps, names)

    def tensors() -> Iterator[torch.Tensor]:
        for step in made():
            yield step.theta
            yield step.momentum

    return _framed(parts, tensors, {})


def decode_state(data: bytes | bytearray) -> OuterState:
    """Return the state in ``data``, in tensors of its own.

    Raises:
        CorruptObject: not safetensors, or tensors other than pairs of θ and momentum.
    """
    _, tensors = _parsed(data)
    theta = {n.removeprefix("theta."): t for n, t in tensors.items() if n.startswith("theta.")}
    momentum = {
        n.removeprefix("momentum."): t for n, t in tensors.items() if n.startswith("momentum.")
    }
    if theta.keys() != momentum.keys() or len(tensors) != 2 * len(theta):
        raise CorruptObject("the state's tensors are not pairs of theta and momentum")
    # Copies, so that each can go when its successor is there: views would keep all the bytes.
    return OuterState(*({n: t.clone() for n, t in part.items()} for part in (theta, momentum)))


def state_sha(state: OuterState) -> str:
    """Return the SHA-256 of the encoded state, which identifies it in the log."""
    return encode_state(state).sha256


# -- deltas ------------------------------------------------------------------------------------


def encode_delta(delta: Delta) -> Pieces:
    """Return a delta as safetensors bytes: codec and layout in its header."""
    parts = [_Part(n, t.dtype, tuple(t.shape)) for n, t in delta.parts.items()]
    metadata = {"codec": delta.codec, "layout": delta.layout}
    return _framed(parts, lambda: iter(delta.parts.values()), metadata)


def decode_delta(
    data: bytes | bytearray, like: Mapping[str, torch.Tensor], codec: Codec = "fp32"
) -> Delta:
    """Return the delta in ``data``, checked against the run's codec and the parameters it is for.

    Raises:
        CorruptObject: not safetensors, another codec, other names, shapes or dtypes, or a value
            or block scale that is not finite.
    """
    metadata, tensors = _parsed(data)
    there = metadata.get("codec", "fp32")
    if there != codec and (there, codec) != (WHOLE, "fp32"):
        raise CorruptObject(f"the delta's codec is {there}, the run's is {codec}")
    delta = Delta.of(there, like, tensors)
    layout = metadata.get("layout", delta.layout)
    if layout != delta.layout:
        raise CorruptObject("the delta is of parameters with other names or shapes")
    return delta


# -- the frame: https://github.com/safetensors/safetensors, "Format" -----------------------------


def _framed(
    parts: Sequence[_Part], tensors: Callable[[], Iterator[torch.Tensor]], metadata: dict[str, str]
) -> Pieces:
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for part in parts:
        start, end = end, end + part.dtype.itemsize * torch.Size(part.shape).numel()
        header[part.name] = {
            "dtype": _NAMES[part.dtype],
            "shape": part.shape,
            "data_offsets": (start, end),
        }
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
    """Return metadata and tensors, which are views of ``data``.

    Raises:
        CorruptObject: not safetensors, or tensors that do not fill the bytes one by one.
    """
    # Bytes that cannot be written to would make torch warn; nothing here writes to them.
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
            size = dtype.itemsize * shape.numel()
            if list(entry["data_offsets"]) != [at, at + size] or 8 + length + at + size > len(
                buffer
            ):
                raise CorruptObject(f"not a safetensors object: {name} is at another place")
            tensors[name] = _view(buffer, dtype, shape, 8 + length + at)
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
