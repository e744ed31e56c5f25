"""The packed forward: trees through the backbone once, losses on its states, one way back.

Belongs here: running trees, handing their states to channels, and the attention that takes a
mask. Does not belong here: which rows share a tree (``trainers.trl.shared_prefix.tree``) and
whether a model can do this (``trainers.trl.shared_prefix.probe``).

A channel's backward ends at the states: they are a leaf. The backbone's own backward runs once
for all channels, or once for each where their gradients are kept apart.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trainers.trl.policy.student import Student
from trainers.trl.rows.batches import Row, backbone_and_head
from trainers.trl.shared_prefix.masks import block_mask, dense_mask, padded_trees
from trainers.trl.shared_prefix.tree import Shared

FLEX = "flex_attention"


class SharedStates(Student):
    """A student whose states are computed already.

    Args:
        student: the model.
        batch: trees of one forward; every row that is asked for is in one of them.
    """

    shared = True

    def __init__(self, student: Student, batch: Sequence[Shared]) -> None:
        super().__init__(
            student.model, pad=student.pad, device=student.device, autocast=student._autocast
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
        """Send the gradient of the states through the backbone, and begin a new one.

        Args:
            again: another call follows.
            always: also where no loss has reached the states: other ranks wait for this one.
        """
        grad = self._leaf.grad
        if grad is None and always:
            grad = torch.zeros_like(self._leaf)
        if grad is not None:
            torch.autograd.backward(self._graph, grad, retain_graph=again)
            self._leaf.grad = None


def _key(row: Row) -> tuple[tuple[int, ...], tuple[int, ...], int, int]:
    return tuple(row.prompt), tuple(row.response), row.start, row.size


def _dtype(student: Student, backbone: Any) -> torch.dtype:
    """Return the type in which the model's attention computes."""
    with student._autocast():
        kind = torch.device(student.device).type
        if torch.is_autocast_enabled(kind):
            return torch.get_autocast_dtype(kind)
    dtype: torch.dtype = next(backbone.parameters()).dtype
    return dtype


@contextmanager
def masked_attention(student: Student) -> Iterator[None]:
    """Let the model's attention take a tree's mask: FlexAttention on CUDA, else as it is.

    Open around forward and backward: checkpointed activations are computed again in the latter.
    """
    config = backbone_and_head(student.model)[0].config
    before = config._attn_implementation
    if torch.device(student.device).type == "cuda" and before != "eager":
        config._attn_implementation = FLEX
    try:
        yield
    finally:
        config._attn_implementation = before
