"""Sequences as a tree of tokens: equal beginnings are kept, and computed, once.

Belongs here: the tree, and which rows share one. Does not belong here: tensors
(``trainers.trl.shared_prefix.masks``).

A causal model's state at a token depends on the tokens before it and on nothing else. So the
chosen, the rejected, every answer and the plain side of a hint need one state for each distinct
beginning. Prompts of different windows share what is equal at their start.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trainers.trl.rows.batches import Row

#: A row joins a tree that holds at least this part of its longest sequence already.
SHARED = 0.5


class Tree:
    """Nodes in the order in which they came; each is one token behind its parent.

    Attributes:
        tokens: id of each node.
        parents: node before each; -1 at the beginning of a sequence, always smaller than the node.
        depths: how many tokens stand before each: its position.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self._children: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, row: Row) -> None:
        """Add what a row's selected tokens are predicted from."""
        node = -1
        for token in _read(row):
            child = self._children.get((node, token))
            if child is None:
                child = len(self.tokens)
                self._children[node, token] = child
                self.tokens.append(token)
                self.parents.append(node)
                self.depths.append(self.depths[node] + 1 if node >= 0 else 0)
            node = child

    def cut(self, size: int) -> None:
        """Take back all but the first ``size`` nodes."""
        for node in range(size, len(self)):
            del self._children[self.parents[node], self.tokens[node]]
        for kept in (self.tokens, self.parents, self.depths):
            del kept[size:]

    def places(self, row: Row) -> list[int]:
        """Return the nodes whose states predict a row's selected tokens, in their order.

        Raises:
            KeyError: the row was never added.
        """
        node, path = -1, []
        for token in _read(row):
            node = self._children[node, token]
            path.append(node)
        return path[len(path) - row.size :]


@dataclass
class Item:
    """A row of a channel, and the sequences that it needs states of; they stay together."""

    channel: str
    row: Any
    sequences: Sequence[Row]


@dataclass
class Shared:
    """A tree and the items that live in it."""

    tree: Tree = field(default_factory=Tree)
    items: list[Item] = field(default_factory=list)

    def take(self, item: Item, limit: int) -> bool:
        """Add an item where it shares enough and the tree stays within ``limit`` nodes."""
        before = len(self.tree)
        for row in item.sequences:
            self.tree.add(row)
        longest = max(len(row.prompt) + row.start + row.size - 1 for row in item.sequences)
        new, held = len(self.tree) - before, bool(self.items)
        if held and (len(self.tree) > limit or new > (1 - SHARED) * longest):
            self.tree.cut(before)
            return False
        self.items.append(item)
        return True


def trees_of(items: Sequence[Item], limit: int) -> list[Shared]:
    """Return trees of at most ``limit`` nodes that hold every item once.

    A single item may exceed the limit.
    """
    trees: list[Shared] = []
    # Equal beginnings stand side by side in the order of their prompts.
    for item in sorted(items, key=_beginning):
        if not trees or not trees[-1].take(item, limit):
            trees.append(Shared())
            trees[-1].take(item, limit)
    return trees


def _read(row: Row) -> list[int]:
    """Return the tokens that a model must read: the last selected one predicts nothing."""
    return [*row.prompt, *row.response[: row.start + row.size - 1]]


def _beginning(item: Item) -> list[int]:
    return list(item.sequences[0].prompt)
