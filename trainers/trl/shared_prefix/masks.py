"""Trees as tensors: ids, positions that begin again at each branch, and who sees whom.

Belongs here: the dense mask, which every attention with 4-D masks takes, and the block mask of
FlexAttention. Does not belong here: which is taken (``trainers.trl.shared_prefix.forward``).

Shapes: B trees, S nodes, padded on the right. A node sees its ancestors and itself.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trainers.trl.shared_prefix.tree import Tree


def padded_trees(trees: Sequence[Tree], pad: int, device: Any) -> tuple[Tensor, Tensor]:
    """Return ids and positions, both (B, S)."""
    width = max(len(tree) for tree in trees)
    ids = torch.full((len(trees), width), pad, dtype=torch.long)
    positions = torch.zeros((len(trees), width), dtype=torch.long)
    for i, tree in enumerate(trees):
        ids[i, : len(tree)] = torch.tensor(tree.tokens)
        positions[i, : len(tree)] = torch.tensor(tree.depths)
    return ids.to(device), positions.to(device)


def visible(trees: Sequence[Tree]) -> Tensor:
    """Return (B, S, S) bool: whether node q (row) sees node k (column); padding sees itself."""
    width = max(len(tree) for tree in trees)
    seen = torch.eye(width, dtype=torch.bool).repeat(len(trees), 1, 1)
    for mask, tree in zip(seen.numpy(), trees, strict=True):
        for node, parent in enumerate(tree.parents):
            if parent >= 0:
                # The parent's row is complete: it came earlier, and nothing in it is later.
                mask[node, : parent + 1] = mask[parent, : parent + 1]
    return seen


def dense_mask(trees: Sequence[Tree], dtype: torch.dtype, device: Any) -> Tensor:
    """Return what is added to attention scores, (B, 1, S, S): 0, or the lowest number."""
    hidden = ~visible(trees).to(device)
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
    return mask.masked_fill_(hidden, torch.finfo(dtype).min).unsqueeze(1)


def block_mask(trees: Sequence[Tree], device: Any) -> Any:
    """Return FlexAttention's mask: it skips blocks that nobody sees and keeps no S × S tensor."""
    from torch.nn.attention.flex_attention import create_block_mask

    width = max(len(tree) for tree in trees)
    return create_block_mask(mask_of(trees, device), len(trees), None, width, width, device=device)


def mask_of(trees: Sequence[Tree], device: Any) -> Any:
    """Return FlexAttention's ``mask_mod``.

    Runs of nodes without a branch are segments; a node sees the segments on its own path as far
    as they are not behind it.
    """
    width = max(len(tree) for tree in trees)
    segment = torch.zeros((len(trees), width), dtype=torch.long)
    above: list[list[list[int]]] = []
    for i, tree in enumerate(trees):
        of_node, ancestors = _segments(tree)
        segment[i, : len(tree)] = torch.tensor(of_node)
        segment[i, len(tree) :] = len(ancestors)  # padding: a segment of its own
        above.append([*ancestors, [len(ancestors)]])
    many = max(len(of_tree) for of_tree in above)
    path = torch.zeros((len(trees), many, many), dtype=torch.bool)
    for i, of_tree in enumerate(above):
        for own, on_path in enumerate(of_tree):
            path[i, own, on_path] = True
    segment, path = segment.to(device), path.to(device)

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return path[b, segment[b, q], segment[b, k]] & (k <= q)

    return sees


def _segments(tree: Tree) -> tuple[list[int], list[list[int]]]:
    """Return each node's segment, and each segment's path: its ancestors and itself."""
    children = [0] * len(tree)
    for parent in tree.parents:
        if parent >= 0:
            children[parent] += 1
    of_node: list[int] = []
    paths: list[list[int]] = []
    for node, parent in enumerate(tree.parents):
        if parent >= 0 and parent == node - 1 and children[parent] == 1:
            of_node.append(of_node[parent])
        else:
            above = paths[of_node[parent]] if parent >= 0 else []
            paths.append([*above, len(paths)])
            of_node.append(len(paths) - 1)
    return of_node, paths
