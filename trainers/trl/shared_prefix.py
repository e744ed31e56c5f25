"""Rows with equal beginnings as trees of tokens that go through the backbone once.

A channel's backward ends at the states, which are a leaf. The backbone's own backward runs once
for all channels, or once for each where their gradients are measured.
"""

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from composer_pipeline.errors import InputError
from composer_pipeline.training.recipe import TrainingRecipe
from trainers.trl.policy import Policy
from trainers.trl.rows import Row, backbone_and_head

#: A row joins a tree that already holds at least this share of its longest sequence.
SHARED = 0.5


class Tree:
    """Nodes in insertion order; each is one token after its parent.

    ``parents`` is -1 at the beginning of a sequence, and always smaller than the node; ``depths``
    counts the tokens before each: its position.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self._children: dict[tuple[int, int], int] = {}

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
    """Return the mask added to attention scores, (B, 1, S, S): 0, or the lowest number."""
    hidden = ~visible(trees).to(device)
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
    return mask.masked_fill_(hidden, torch.finfo(dtype).min).unsqueeze(1)


def block_mask(trees: Sequence[Tree], device: Any) -> Any:
    """Return FlexAttention's mask, which skips unseen blocks and keeps no S × S tensor."""
    from torch.nn.attention.flex_attention import create_block_mask

    width = max(len(tree) for tree in trees)
    return create_block_mask(mask_of(trees, device), len(trees), None, width, width, device=device)


def mask_of(trees: Sequence[Tree], device: Any) -> Any:
    """Return FlexAttention's ``mask_mod``: a node sees the segments on its path, up to itself."""
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


FLEX = "flex_attention"


class SharedStates(Policy):
    """A policy whose states are computed already; every requested row is in ``batch``."""

    shared = True

    def __init__(self, policy: Policy, batch: Sequence[Shared]) -> None:
        super().__init__(
            policy.model, pad=policy.pad, device=policy.device, autocast=policy._autocast
        )
        self._trees = [of.tree for of in batch]
        # Only states that predict something are kept: their rows in the leaf, by tree and node.
        wanted = sorted(
            {
                (i, node)
                for i, of in enumerate(batch)
                for item in of.items
                for row in item.sequences
                for node in of.tree.places(row)
            }
        )
        self._index = {place: i for i, place in enumerate(wanted)}
        self._graph = self._run(wanted)
        self._leaf = self._graph.detach().requires_grad_(self._graph.requires_grad)
        self._tree_of = {
            _key(row): i for i, of in enumerate(batch) for item in of.items
            for row in item.sequences
        }  # fmt: skip

    def _run(self, wanted: Sequence[tuple[int, int]]) -> Tensor:
        backbone, _ = backbone_and_head(self.model)
        ids, positions = padded_trees(self._trees, self.pad, self.device)
        if backbone.config._attn_implementation == FLEX:
            mask = block_mask(self._trees, self.device)
        else:
            mask = dense_mask(self._trees, _dtype(self, backbone), self.device)
        with self._autocast():
            hidden = backbone(
                input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False
            ).last_hidden_state
        tree, node = torch.tensor(wanted, device=self.device).T
        return hidden[tree, node]

    def states(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """Return the states (N, H) that predict the rows' selected tokens, and these (N,)."""
        places, ids = list[int](), list[int]()
        for row in rows:
            tree = self._tree_of[_key(row)]
            places += [self._index[tree, node] for node in self._trees[tree].places(row)]
            ids += row.response[row.start : row.start + row.size]
        at = torch.tensor(places, dtype=torch.long, device=self.device)
        return self._leaf[at], torch.tensor(ids, dtype=torch.long, device=self.device)

    def finite(self) -> bool:
        """Return whether the gradient that has reached the states is finite."""
        return self._leaf.grad is None or bool(self._leaf.grad.isfinite().all())

    def backward(self, *, again: bool, always: bool = False) -> None:
        """Send the states' gradient, if any or ``always``, through the backbone."""
        grad = self._leaf.grad
        if grad is None and always:
            grad = torch.zeros_like(self._leaf)
        if grad is not None:
            torch.autograd.backward(self._graph, grad, retain_graph=again)
            self._leaf.grad = None


def _key(row: Row) -> tuple[tuple[int, ...], tuple[int, ...], int, int]:
    return tuple(row.prompt), tuple(row.response), row.start, row.size


def _dtype(policy: Policy, backbone: Any) -> torch.dtype:
    """Return the type in which the model's attention computes."""
    with policy._autocast():
        kind = torch.device(policy.device).type
        if torch.is_autocast_enabled(kind):
            return torch.get_autocast_dtype(kind)
    dtype: torch.dtype = next(backbone.parameters()).dtype
    return dtype


@contextmanager
def masked_attention(policy: Policy) -> Iterator[None]:
    """Let the model's attention take a tree's mask: FlexAttention on CUDA, else as it is."""
    # To be open around the backward too, which recomputes checkpointed activations.
    config = backbone_and_head(policy.model)[0].config
    before = config._attn_implementation
    if torch.device(policy.device).type == "cuda" and before != "eager":
        config._attn_implementation = FLEX
    try:
        yield
    finally:
        config._attn_implementation = before


#: Largest relative difference of states: in float32, and in 16 bits.
NEAR, NEAR_HALF = 1e-4, 3e-2
#: Prompt tokens of the probe; more where an attention window is shorter than the run's rows.
PROMPT = 12
#: What models raise that do not support such a mask.
REFUSALS = (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError)


def why_not(policy: Policy, recipe: TrainingRecipe) -> str | None:
    """Return why rows cannot share forwards, or ``None``; raises where the recipe demands it."""
    if recipe.shared_prefix == "off":
        return "the recipe says shared_prefix: off"
    reason = _no_flex(policy) or _no_mask(policy, recipe)
    if reason and recipe.shared_prefix == "on":
        raise InputError(f"recipe field shared_prefix: on, but {reason}; use auto or off")
    return reason


def _no_flex(policy: Policy) -> str | None:
    config = backbone_and_head(policy.model)[0].config
    if torch.device(policy.device).type != "cuda" or config._attn_implementation == "eager":
        return None
    missing = [name for name in ("torch.nn.attention.flex_attention", "triton") if not _has(name)]
    if not missing:
        return None
    return (
        f"FlexAttention is missing (no module {missing[0]}): install a CUDA build of torch with"
        " triton, or set attention: eager"
    )


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@torch.no_grad()
def _no_mask(policy: Policy, recipe: TrainingRecipe) -> str | None:
    model = policy.model
    config = backbone_and_head(model)[0].config
    trained = model.training
    model.eval()
    try:
        rows = probe_rows(config, recipe)
        shared = Shared()
        shared.take(Item("", None, rows), 0)
        apart = torch.cat([policy.states([row])[0] for row in rows]).float()
        with masked_attention(policy):
            together = SharedStates(policy, [shared]).states(rows)[0].float()
    except torch.OutOfMemoryError:
        raise
    except REFUSALS as error:
        return f"model {config.model_type} does not take a block mask ({error})"
    finally:
        model.train(trained)
    off = float((together - apart).norm() / apart.norm())
    half = next(model.parameters()).dtype in (torch.bfloat16, torch.float16)
    if not off < (NEAR_HALF if half or recipe.dtype == "bf16" else NEAR):
        return f"the attention of model {config.model_type} does not respect a block mask"
    return None


def probe_rows(config: Any, recipe: TrainingRecipe) -> list[Row]:
    """Return two answers to one prompt that is longer than any attention window."""
    longest = recipe.data.max_prompt_tokens + recipe.data.max_completion_tokens
    reach = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    bites = [size for size in reach if isinstance(size, int) and 0 < size < longest]
    prompt = max([PROMPT, *(min(2 * size, longest) for size in bites)])
    words = min(config.vocab_size, 32)
    return [
        Row([(7 * i + 3) % words for i in range(prompt)], [(i * i + k) % words for i in range(5)])
        for k in (1, 2)
    ]
