"""Trees of tokens: rows with equal beginnings, read once; and what each token of them sees.

Each tree is laid out in preorder, so that what lies below a node is a range behind it, and one
number a node, the end of that range, is the whole attention mask. Shapes: B rows, S positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from trainers.common.rows import Row

#: A row joins a tree that already holds at least this share of its longest sequence.
SHARED = 0.5
#: Tokens of a block of FlexAttention; a packed row has at least two, since torch specialises on 1.
BLOCK = 128


class Tree:
    """Nodes in insertion order; each is one token after its parent.

    ``parents`` is -1 at the beginning of a sequence, and always smaller than the node; ``depths``
    counts the tokens before each: its position.
    """

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self._children: dict[tuple[int, int], int] = {}
        for row in rows:
            self.add(row)

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, row: Row) -> None:
        """Add the tokens that a row's selected tokens are predicted from."""
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
        """Remove all but the first ``size`` nodes."""
        for node in range(size, len(self)):
            del self._children[self.parents[node], self.tokens[node]]
        for kept in (self.tokens, self.parents, self.depths):
            del kept[size:]

    def places(self, row: Row) -> list[int]:
        """Return the nodes whose states predict a row's selected tokens, in their order."""
        node, path = -1, []
        for token in _read(row):
            node = self._children[node, token]
            path.append(node)
        return path[len(path) - row.size :]

    def preorder(self) -> tuple[list[int], list[int]]:
        """Return each node's place in preorder, and the end of the range of what lies below it."""
        sizes = [1] * len(self)
        for node in range(len(self) - 1, 0, -1):
            if self.parents[node] >= 0:
                sizes[self.parents[node]] += sizes[node]
        places: list[int] = []
        free = [0]  # where the next child goes: of the beginning, then of each node
        for node, parent in enumerate(self.parents):
            places.append(free[parent + 1])
            free[parent + 1] += sizes[node]
            free.append(places[node] + 1)
        return places, [place + size for place, size in zip(places, sizes, strict=True)]


@dataclass
class Item:
    """A row of a channel, and the sequences whose states it needs; they stay together."""

    channel: str
    row: Any
    sequences: Sequence[Row]


@dataclass
class Shared:
    """A tree and its items."""

    tree: Tree = field(default_factory=Tree)
    items: list[Item] = field(default_factory=list)

    def take(self, item: Item, limit: int) -> bool:
        """Add an item if it shares enough and the tree stays within ``limit`` nodes."""
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
    """Return trees of at most ``limit`` nodes that hold every item once; one item may exceed it."""
    trees: list[Shared] = []
    # Sorting by prompt puts equal beginnings side by side.
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


class Layout:
    """Trees as tensors: ``ids``, ``positions`` and ``ends``, all (B, S), and where each node is.

    Position q sees position k if k <= q < ends[k]; padding sees itself.

    Args:
        trees: the trees, in their order.
        pad: id of padding.
        packed: all trees side by side in one row of whole blocks, instead of a row each.
    """

    def __init__(self, trees: Sequence[Tree], pad: int, *, packed: bool) -> None:
        sizes = [len(tree) for tree in trees]
        width = max(2 * BLOCK, -(-sum(sizes) // BLOCK) * BLOCK) if packed else max(sizes)
        rows = 1 if packed else len(trees)
        self.ids = torch.full((rows, width), pad, dtype=torch.long)
        self.positions = torch.zeros((rows, width), dtype=torch.long)
        self.ends = torch.arange(1, width + 1, dtype=torch.int32).repeat(rows, 1)
        self._at: list[tuple[int, list[int]]] = []
        start = 0
        for i, tree in enumerate(trees):
            row = 0 if packed else i
            places, ends = tree.preorder()
            where = torch.tensor(places) + start
            self.ids[row, where] = torch.tensor(tree.tokens)
            self.positions[row, where] = torch.tensor(tree.depths)
            self.ends[row, where] = torch.tensor(ends, dtype=torch.int32) + start
            self._at.append((row, where.tolist()))
            start += len(tree) if packed else 0

    def at(self, tree: int, node: int) -> tuple[int, int]:
        """Return the row and the position of a node."""
        row, where = self._at[tree]
        return row, where[node]


def visible(ends: Tensor) -> Tensor:
    """Return (B, S, S) bool: whether position q (row) sees position k (column)."""
    at = torch.arange(ends.shape[-1], device=ends.device)
    return (at <= at[:, None]) & (at[:, None] < ends[:, None, :])


def dense_mask(ends: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask added to attention scores, (B, 1, S, S): 0, or the lowest number."""
    hidden = ~visible(ends)
    mask = torch.zeros(hidden.shape, dtype=dtype, device=ends.device)
    return mask.masked_fill_(hidden, torch.finfo(dtype).min).unsqueeze(1)


def block_mask(ends: Tensor, device: Any) -> BlockMask:
    """Return FlexAttention's mask of one packed row (1, S), made from (S / 128)² blocks.

    A block of keys is seen by a later block of queries if one of its ranges reaches into it, and
    completely if all of them reach its end. A block sees itself in part.
    """
    tiles = ends.view(-1, BLOCK)
    first = torch.arange(len(tiles)) * BLOCK
    earlier = first[:, None] > first
    full = earlier & (tiles.amin(-1) >= first[:, None] + BLOCK)
    part = (earlier & (tiles.amax(-1) > first[:, None]) & ~full) | torch.eye(
        len(tiles), dtype=torch.bool
    )
    seen_until = ends[0].to(device)

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q < seen_until[k])

    return BlockMask.from_kv_blocks(
        *_blocks(part, device), *_blocks(full, device), BLOCK_SIZE=BLOCK, mask_mod=sees,
        seq_lengths=(ends.shape[-1], ends.shape[-1]),
    )  # fmt: skip


def _blocks(seen: Tensor, device: Any) -> tuple[Tensor, Tensor]:
    """Return how many blocks each row sees, and their numbers first, as FlexAttention has them."""
    order = seen.int().argsort(dim=-1, descending=True, stable=True)
    count, order = seen.sum(-1)[None, None], order[None, None]
    return count.to(device, torch.int32), order.to(device, torch.int32)
