"""A replica's private state in a file: what a restart inside a round needs besides the log.

The file is safetensors with plain numbers as JSON in its header, never pickle. It belongs to one
place of one run: to a round, the steps made in it, and the hash of the state that the round began
from.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from composer_pipeline.diloco.codecs import framed
from composer_pipeline.diloco.log import CorruptObject
from composer_pipeline.diloco.outer_optimizer import Tensors
from composer_pipeline.diloco.replica import Replica
from composer_pipeline.diloco.spec import DiLoCoSpec, identity_by_name
from composer_pipeline.errors import InputError
from composer_pipeline.files import replacing

FILE = "inner.safetensors"
#: Tensors and plain JSON of one thing that is kept.
Part = tuple[Tensors, dict[str, Any]]


@dataclass(frozen=True)
class InnerState:
    """A replica after ``inner`` steps of ``round``, which began from ``base_sha``.

    ``identity`` is what it was made with; ``tensors`` and ``numbers`` (plain JSON) are by part.
    ``ended``: its round was over.
    """

    round: int
    inner: int
    base_sha: str
    identity: dict[str, str]
    tensors: Tensors
    numbers: dict[str, Any]
    ended: bool = False

    def part(self, name: str) -> Part:
        """Return a part's tensors and numbers."""
        prefix = f"{name}/"
        own = {n.removeprefix(prefix): t for n, t in self.tensors.items() if n.startswith(prefix)}
        return own, self.numbers.get(name, {})


def read(path: Path) -> InnerState | None:
    """Return the state in the file, or None without a file; raises ``CorruptObject``."""
    if not path.is_file():
        return None
    try:
        with safe_open(str(path), framework="pt") as source:
            plain = json.loads((source.metadata() or {})["inner"])
            tensors = {name: source.get_tensor(name) for name in source.keys()}  # noqa: SIM118
        return InnerState(**plain, tensors=tensors)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CorruptObject(f"{path} is damaged: {error}") from None


def bare(optimizer: Any) -> torch.optim.Optimizer:
    """Return the optimizer that accelerate may have wrapped."""
    found: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
    return found


def optimizer_state(optimizer: torch.optim.Optimizer) -> Part:
    """Return an optimizer's state by ``<parameter's number>/<name>``, without its groups."""
    tensors, numbers = Tensors(), dict[str, Any]()
    for number, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            kept: dict[str, Any] = tensors if isinstance(value, torch.Tensor) else numbers
            kept[f"{number}/{name}"] = value
    return tensors, numbers


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, tensors: Tensors, numbers: Mapping[str, Any]
) -> None:
    """Restore :func:`optimizer_state`; rates and decay stay the recipe's and the schedule's."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **numbers}.items():
        number, _, name = key.partition("/")
        state.setdefault(int(number), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def random_state() -> Part:
    """Return the state of the generators of Python, NumPy, torch and this process's GPU."""
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


#: Called with an event's kind (``resumed``, ``inner_dropped``) and its fields.
OnEvent = Callable[[str, dict[str, Any]], None]


class HasPrivateState(Protocol):
    """A trainer with a state of its own that a restart needs."""

    def private(self) -> Part:
        """Return tensors and plain numbers, by name."""
        ...

    def load_private(self, tensors: dict[str, torch.Tensor], numbers: dict[str, Any]) -> None:
        """Restore :meth:`private`."""
        ...


class InnerCheckpoint:
    """The file of one replica's private state, on its own machine.

    It is written after every ``every`` optimizer steps of a round (``None``: only after the last).
    ``on_event`` hears whether a restart resumes from it, or why not.
    """

    def __init__(
        self, path: Path, *, every: int | None, trainer: HasPrivateState | None = None,
        on_event: OnEvent = lambda kind, facts: None,
    ) -> None:  # fmt: skip
        self._path, self._every, self._trainer, self.on_event = path, every, trainer, on_event

    def due(self, inner: int) -> bool:
        """Return whether the state is written after ``inner`` steps of a round."""
        return self._every is not None and inner % self._every == 0

    def save(
        self, replica: Replica, inner: int, parameters: Mapping[str, torch.Tensor],
        optimizer: Any, counts: Mapping[str, int], *, ended: bool,
    ) -> None:  # fmt: skip
        """Replace the file by the state after ``inner`` steps of the replica's round."""
        parts: dict[str, Part] = {
            "parameter": (dict(parameters), {}),
            "random": random_state(),
            "replica": replica.private(),
        }
        if optimizer is not None:
            parts["optimizer"] = optimizer_state(bare(optimizer))
        if self._trainer is not None:
            parts["trainer"] = self._trainer.private()
        tensors = {
            f"{part}/{name}": tensor for part, (own, _) in parts.items()
            for name, tensor in own.items()
        }  # fmt: skip
        plain = {
            "round": replica.round, "inner": inner, "base_sha": replica.sha,
            "identity": _identity(replica.spec), "ended": ended,
            "numbers": {name: numbers for name, (_, numbers) in parts.items()}
            | {"counts": dict(counts)},
        }  # fmt: skip
        like = [(name, t.dtype, tuple(t.shape)) for name, t in tensors.items()]
        # One tensor at a time leaves its device, so that memory does not grow with the model.
        with replacing(self._path) as stream:
            for piece in framed(
                like,
                lambda: (tensor.detach().cpu() for tensor in tensors.values()),
                {"inner": json.dumps(plain)},
            ):
                stream.write(piece)

    def find(self, replica: Replica) -> InnerState | None:
        """Return the file's state if the joined replica may resume from it, else report why."""
        try:
            found = read(self._path)
        except CorruptObject as error:
            self.on_event("inner_dropped", {"reason": str(error)})
            return None
        if found is None or replica.finished:
            return None
        identity = _identity(replica.spec)
        names = {**found.identity, **identity}
        if odd := [name for name in names if found.identity.get(name) != identity.get(name)]:
            raise InputError(
                f"{self._path} was written with another {' and '.join(odd)}: train with what it was"
                " written with, or remove the file to resume from the last committed round"
            )
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
        self.on_event("inner_dropped", {"reason": reason})
        return None

    def load(self, found: InnerState, replica: Replica, optimizer: Any) -> dict[str, int]:
        """Restore everything but parameters and random numbers; return the counts."""
        if optimizer is not None:
            load_optimizer_state(bare(optimizer), *found.part("optimizer"))
        replica.load_private(*found.part("replica"))
        if self._trainer is not None:
            self._trainer.load_private(*found.part("trainer"))
        counts: dict[str, int] = found.numbers["counts"]
        return counts


def _identity(spec: DiLoCoSpec) -> dict[str, str]:
    known = {"trained parameters": spec.model_signature, "rows": spec.data_plan}
    return known | identity_by_name(spec.base)
