"""Keeping a replica's private state, and whether what was kept fits the log.

Belongs here: which parts a file has, and the rule by which a restart may go on from it. Does not
belong here: the file's bytes (``file``) and the training loop (``diloco.callback``).

A state fits where the log is where the state was: at its round, from its base. After the last step
of a round it is written before the round is contributed; a kill between contribution and commit
leaves it one round behind, and then the parameters are the commit's, and all else is the state's.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from composer_pipeline.diloco.inner.file import (
    InnerState,
    identity_of,
    read,
    require_same,
    under,
    write,
)
from composer_pipeline.diloco.inner.parts import (
    Part,
    bare,
    load_optimizer_state,
    optimizer_state,
    random_state,
)
from composer_pipeline.diloco.log import CorruptObject
from composer_pipeline.diloco.replica import Replica

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
