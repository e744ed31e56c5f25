"""The outer step of DiLoCo, on CPU fp32 tensors.

Every replica must compute the same bits, so that a commit can be reconstructed from its deltas:
only separate multiplications and additions (no fused multiply-add, no reductions), always in
the order of the slots.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

#: Tensors by the names of the model's parameters, each in its parameter's shape.
Tensors = dict[str, torch.Tensor]
#: Elements that are computed at a time, so that what lies between stays in the processor's cache.
_AT_ONCE = 2**16


class Step(NamedTuple):
    """One parameter after an outer step, with its momentum: fp32 on the CPU, in its shape.

    ``moved`` is the sum of squares of what the step has changed.
    """

    name: str
    theta: torch.Tensor
    momentum: torch.Tensor
    moved: float = 0.0


@dataclass(frozen=True)
class OuterState:
    """The global parameters and the outer momentum, fp32 on the CPU, by parameter name."""

    theta: Tensors
    momentum: Tensors

    def steps(self, names: Iterable[str] | None = None) -> Iterator[Step]:
        """Yield the parameters as they are, by default in the order of their names."""
        yield from map(self.step, sorted(self.theta) if names is None else names)

    def step(self, name: str) -> Step:
        """Return one parameter as it is."""
        return Step(name, self.theta[name], self.momentum[name])

    def only(self, names: Iterable[str]) -> "OuterState":
        """Return these parameters alone; the tensors are shared."""
        chosen = list(names)
        return OuterState({n: self.theta[n] for n in chosen}, {n: self.momentum[n] for n in chosen})

    @classmethod
    def initial(cls, theta: Mapping[str, torch.Tensor]) -> "OuterState":
        """Return the state of round 0: a copy of ``theta`` and no momentum."""
        copied = {name: master(tensor) for name, tensor in theta.items()}
        return cls(copied, {name: torch.zeros_like(tensor) for name, tensor in copied.items()})


def master(tensor: torch.Tensor) -> torch.Tensor:
    """Return an fp32 CPU copy of ``tensor`` that shares no memory with it."""
    return tensor.detach().to(device="cpu", dtype=torch.float32, copy=True).contiguous()


def signature(parameters: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of the names, shapes and dtypes of what is trained."""
    described = [
        [name, list(tensor.shape), str(tensor.dtype)] for name, tensor in sorted(parameters.items())
    ]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


class LazyTensors(Mapping[str, torch.Tensor]):
    """Tensors by name, made by ``make`` on each access, so that one is in memory at a time."""

    def __init__(self, names: Iterable[str], make: Callable[[str], torch.Tensor]) -> None:
        self._names, self._make = list(names), make

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def pseudo_gradient(
    base: Mapping[str, torch.Tensor], local: Mapping[str, torch.Tensor]
) -> LazyTensors:
    """Return ``θ_global − θ_local`` by name, in the parameters' shapes, fp32 on the CPU, lazily.

    The sign is that of a gradient: SGD subtracts it, so the global parameters move towards
    the local ones (``_save_grads`` of torchft's ``local_sgd.py`` does the same).
    """
    return LazyTensors(base, lambda name: _fp32(base[name]) - _fp32(local[name]))


def _fp32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", torch.float32)


def outer_steps(
    state: OuterState,
    deltas: Sequence[Mapping[str, torch.Tensor]],
    *,
    lr: float,
    momentum: float,
    weights: Sequence[float] | None = None,
) -> Iterator[Step]:
    """Take the outer step in place; yield each parameter after it, in the order of their names.

    SGD with Nesterov momentum over the weighted mean ``g``, as ``torch.optim.SGD(nesterov=
    True)`` defines it: ``b ← μ·b + g``, then ``θ ← θ − lr·(g + μ·b)``. With momentum 0 and
    learning rate 1 it is plain averaging.

    Args:
        state: the state that every delta started from, in contiguous tensors, which are changed.
        deltas: ``θ_global − θ_local`` of each included slot, in the order of the slots, each
            with the names and shapes of ``state``.
        lr: outer learning rate.
        momentum: μ, at least 0 and below 1.
        weights: one for each delta, adding up to 1; None means equal.

    Raises:
        ValueError: no delta, or not one weight for each.
    """
    if not deltas:
        raise ValueError("an outer step needs at least one delta")
    shares = list(weights) if weights is not None else [1.0 / len(deltas)] * len(deltas)
    if len(shares) != len(deltas):
        raise ValueError(f"{len(shares)} weights for {len(deltas)} deltas")
    room = torch.empty(2, _AT_ONCE)
    for name in sorted(state.theta):
        flat = [t.view(-1) for t in (state.theta[name], state.momentum[name])]
        flat += [delta[name].reshape(-1) for delta in deltas]
        moved = 0.0
        for theta, buffer, *changes in zip(*(t.split(_AT_ONCE) for t in flat), strict=True):
            gradient, product = room[:, : len(theta)]
            torch.mul(changes[0], shares[0], out=gradient)
            for change, share in zip(changes[1:], shares[1:], strict=True):
                gradient.add_(torch.mul(change, share, out=product))
            buffer.mul_(momentum).add_(gradient)
            gradient.add_(torch.mul(buffer, momentum, out=product)).mul_(lr)
            theta.sub_(gradient)
            moved += squares(gradient)
        yield state.step(name)._replace(moved=moved)


def squares(tensor: torch.Tensor) -> float:
    """Return the sum of squares of a tensor, in fp64: finite only if all its values are."""
    parts = tensor.detach().reshape(-1).split(_AT_ONCE)
    return sum(float(torch.linalg.vector_norm(p, dtype=torch.float64)) ** 2 for p in parts)
