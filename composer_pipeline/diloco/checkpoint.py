"""The file of a replica's private state: safetensors, with its numbers as JSON in the header.

Belongs here: writing and reading it, and what it was made with. Does not belong here: what is in
it (``parts``) and whether it fits the log (``keeping``). Never pickle.

It belongs to one place of one run: to a round, the steps made in it, and the hash of the state
that the round began from.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from composer_pipeline.diloco.log import CorruptObject
from composer_pipeline.diloco.outer_optimizer import Tensors
from composer_pipeline.diloco.replica import Replica
from composer_pipeline.diloco.spec import DiLoCoSpec, identity_by_name
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


#: Tensors and plain JSON of one thing that is kept.
Part = tuple[Tensors, dict[str, Any]]


def bare(optimizer: Any) -> torch.optim.Optimizer:
    """Return the optimizer itself: accelerate wraps it."""
    found: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
    return found


def optimizer_state(optimizer: torch.optim.Optimizer) -> Part:
    """Return an optimizer's state as tensors and numbers, by ``<parameter's number>/<name>``.

    Its groups are left out: rates and decay are the recipe's, and the schedule's.
    """
    tensors, numbers = Tensors(), dict[str, Any]()
    for number, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            key = f"{number}/{name}"
            if isinstance(value, torch.Tensor):
                tensors[key] = value
            else:
                numbers[key] = value
    return tensors, numbers


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, tensors: Tensors, numbers: Mapping[str, Any]
) -> None:
    """Restore :func:`optimizer_state`; without any, the optimizer is as at its beginning."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **numbers}.items():
        number, _, name = key.partition("/")
        state.setdefault(int(number), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def random_state() -> Part:
    """Return the random numbers to come of Python, NumPy, torch and this process's GPU."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    tensors = {
        "python": torch.tensor(words, dtype=torch.int64),
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    return tensors, {
        "python": [version, gauss],
        "numpy": [kind, int(position), int(has_gauss), float(cached)],
    }


def set_random_state(tensors: Tensors, numbers: Mapping[str, Any]) -> None:
    """Restore :func:`random_state`."""
    version, gauss = numbers["python"]
    random.setstate((version, tuple(tensors["python"].tolist()), gauss))
    kind, position, has_gauss, cached = numbers["numpy"]
    keys = tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state((kind, keys, position, has_gauss, cached))
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])


#: Called with a kind (``resumed``, ``inner_dropped``) and its facts.
Say = Callable[[str, dict[str, Any]], None]


class Keeper(Protocol):
    """What has a state of its own that a restart needs: the trainer."""

    def private(self) -> Part:
        """Return tensors and plain numbers, by name."""
        ...

    def load_private(self, tensors: dict[str, torch.Tensor], numbers: dict[str, Any]) -> None:
        """Restore :meth:`private`."""
        ...


class Keeping:
    """One replica's file of its private state.

    Args:
        path: on this replica's machine; replaced whole.
        every: optimizer steps of a round after which it is written; ``None``: only after the last.
        keeper: adds its own state.
        say: told whether a restart goes on from the file, or why not.
    """

    def __init__(
        self, path: Path, *, every: int | None, keeper: Keeper | None = None,
        say: Say = lambda kind, facts: None,
    ) -> None:  # fmt: skip
        self._path, self._every, self._keeper, self.say = path, every, keeper, say

    def due(self, inner: int) -> bool:
        """Whether the state is written after ``inner`` steps of a round."""
        return self._every is not None and inner % self._every == 0

    def save(
        self, replica: Replica, inner: int, parameters: Mapping[str, torch.Tensor],
        optimizer: Any, counts: Mapping[str, int], *, ended: bool,
    ) -> None:  # fmt: skip
        """Write the state after ``inner`` steps of the replica's round, ``ended`` with them or not.

        Raises:
            StorageError: it cannot be written; the old one is there.
        """
        parts: dict[str, Part] = {"random": random_state(), "replica": replica.private()}
        if optimizer is not None:
            parts["optimizer"] = optimizer_state(bare(optimizer))
        if self._keeper is not None:
            parts["trainer"] = self._keeper.private()
        tensors = under(parameters, "parameter/")
        for name, (own, _) in parts.items():
            tensors |= under(own, f"{name}/")
        numbers = {name: plain for name, (_, plain) in parts.items()} | {"counts": dict(counts)}
        known = identity_of(replica.spec)
        state = InnerState(replica.round, inner, replica.sha, known, tensors, numbers, ended)
        write(self._path, state)

    def find(self, replica: Replica) -> InnerState | None:
        """Return what the file holds, where a replica that has joined may go on from it.

        Says why where it may not: then the replica begins at the commit, with new moments.

        Raises:
            InputError: it was made with another model, data or recipe.
        """
        try:
            found = read(self._path)
        except CorruptObject as error:
            self.say("inner_dropped", {"reason": str(error)})
            return None
        if found is None or replica.finished:
            return None
        require_same(self._path, found, identity_of(replica.spec))
        if (found.round, found.base_sha) == (replica.round, replica.sha):
            return found
        if found.round == replica.round - 1 and found.ended:
            commit = replica.log.commit(found.round)
            if commit is not None and commit.base_sha == found.base_sha:
                return found
        reason = (
            f"it is of round {found.round} after {found.inner} steps, and the log is at the"
            f" beginning of round {replica.round}"
        )
        self.say("inner_dropped", {"reason": reason})
        return None

    def load(self, found: InnerState, replica: Replica, optimizer: Any) -> dict[str, int]:
        """Give each its part back but for parameters and random numbers; return the counts."""
        if optimizer is not None:
            load_optimizer_state(bare(optimizer), *found.part("optimizer"))
        replica.load_private(*found.part("replica"))
        if self._keeper is not None:
            self._keeper.load_private(*found.part("trainer"))
        counts: dict[str, int] = found.numbers["counts"]
        return counts
