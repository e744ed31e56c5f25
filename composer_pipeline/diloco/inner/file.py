"""The file of a replica's private state: safetensors, with its numbers as JSON in the header.

Belongs here: writing and reading it, and what it was made with. Does not belong here: what is in
it (``parts``) and whether it fits the log (``keeping``). Never pickle.

It belongs to one place of one run: to a round, the steps made in it, and the hash of the state
that the round began from.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open

from composer_pipeline.diloco.log import CorruptObject
from composer_pipeline.diloco.spec import DiLoCoSpec, identity_by_name
from composer_pipeline.diloco.tensors.outer import Tensors
from composer_pipeline.errors import InputError
from composer_pipeline.files import replacing

FILE = "inner.safetensors"
#: Names of dtypes in a safetensors header.
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class InnerState:
    """What a replica holds after ``inner`` steps of ``round``, which began from ``base_sha``.

    ``identity`` is what it was made with; ``tensors`` and ``numbers`` (plain JSON) are by name.
    ``ended``: its round was at its end.
    """

    round: int
    inner: int
    base_sha: str
    identity: dict[str, str]
    tensors: Tensors = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)
    ended: bool = False

    def part(self, name: str) -> tuple[Tensors, dict[str, Any]]:
        """Return a part's tensors and numbers."""
        return below(self.tensors, f"{name}/"), self.numbers.get(name, {})

    @property
    def parameters(self) -> Tensors:
        """The trained parameters."""
        return self.part("parameter")[0]

    @property
    def random(self) -> tuple[Tensors, dict[str, Any]]:
        """The random numbers to come (``parts.random_state``)."""
        return self.part("random")


def identity_of(spec: DiLoCoSpec) -> dict[str, str]:
    """Return what a state is made with, by name: a state of something else is another run's."""
    known = {"trained parameters": spec.model_signature, "rows": spec.data_plan}
    return known | identity_by_name(spec.base)


def require_same(path: Path, state: InnerState, identity: Mapping[str, str]) -> None:
    """Refuse a state that was made with something else.

    Raises:
        InputError: names the file, what differs and the remedy.
    """
    names = {**state.identity, **identity}
    odd = [name for name in names if state.identity.get(name) != identity.get(name)]
    if odd:
        raise InputError(
            f"{path} was written with another {' and '.join(odd)}: train with what it was written"
            " with, or remove the file to go on from the last committed round"
        )


# -- the file ----------------------------------------------------------------------------------


def write(path: Path, state: InnerState) -> None:
    """Replace the file by a state: readers see the old one or the new one, whole.

    One tensor at a time is copied from its device, so that memory does not grow with the model.

    Raises:
        StorageError: it cannot be written; the old one is there.
    """
    plain = {
        "round": state.round, "inner": state.inner, "base_sha": state.base_sha,
        "identity": state.identity, "numbers": state.numbers, "ended": state.ended,
    }  # fmt: skip
    with replacing(path) as stream:
        _save(stream, state.tensors, json.dumps(plain))


def _save(stream: IO[bytes], tensors: Tensors, text: str) -> None:
    """Write a safetensors file: length of the header, header, bytes of the tensors in its order."""
    header: dict[str, Any] = {"__metadata__": {"inner": text}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }  # fmt: skip
    data = json.dumps(header).encode()
    data += b" " * (-len(data) % 8)
    stream.write(len(data).to_bytes(8, "little") + data)
    for tensor in tensors.values():
        flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        stream.write(flat.numpy().data)


def read(path: Path) -> InnerState | None:
    """Return the state in the file, or None where there is no file.

    Raises:
        CorruptObject: it is not a state.
    """
    if not path.is_file():
        return None
    try:
        with safe_open(str(path), framework="pt") as source:
            plain = json.loads((source.metadata() or {})["inner"])
            tensors = {name: source.get_tensor(name) for name in source.keys()}  # noqa: SIM118
        return InnerState(**plain, tensors=tensors)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CorruptObject(f"{path} is damaged: {error}") from None


def below(tensors: Tensors, prefix: str) -> Tensors:
    """Return the tensors whose name begins with a prefix, by the rest of it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def under(tensors: Mapping[str, torch.Tensor], prefix: str) -> Tensors:
    """Return tensors with a prefix before their names."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
