"""Rows to tensors: micro-batches, and the hidden states of responses.

Belongs here: what a micro-batch contains, padding, and picking the positions that predict
a response. Does not belong here: which rows (``trainers.trl.rows.streams``) and losses
(``trainers.trl.channels``).

Shapes: B rows, S positions, N selected response tokens, H hidden size, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from composer_pipeline.errors import InputError
from composer_pipeline.losses.logits import LogitTransform

T = TypeVar("T")
#: Fields of configurations by which logits are multiplied.
MULTIPLIERS = ("logit_scale", "output_multiplier", "lm_head_multiplier")


@dataclass(frozen=True)
class Row:
    """A response behind a prompt, and the span of it that counts."""

    prompt: Sequence[int]
    response: Sequence[int]
    start: int = 0
    length: int | None = None

    @property
    def size(self) -> int:
        """Selected response tokens."""
        return len(self.response) - self.start if self.length is None else self.length


def micro_batches(rows: Sequence[T], sizes: Sequence[int], limit: int) -> list[list[T]]:
    """Pack rows so that a padded micro-batch has at most ``limit`` tokens.

    Args:
        rows: what is packed.
        sizes: tokens of each row; rows of like size go together.
        limit: tokens, padding included. A single row may exceed it.
    """
    order = sorted(range(len(rows)), key=lambda i: -sizes[i])
    batches: list[list[int]] = []
    for i in order:
        # The first row of a batch is its longest.
        if batches and (len(batches[-1]) + 1) * sizes[batches[-1][0]] <= limit:
            batches[-1].append(i)
        else:
            batches.append([i])
    return [[rows[i] for i in batch] for batch in batches]


def padded(rows: Sequence[Row], pad: int, device: Any) -> tuple[Tensor, Tensor]:
    """Return right-padded ids and attention mask, both (B, S).

    The mask is made from lengths: a pad id may equal the end token.
    """
    sequences = [[*row.prompt, *row.response] for row in rows]
    width = max(len(sequence) for sequence in sequences)
    ids = torch.full((len(rows), width), pad, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, sequence in enumerate(sequences):
        ids[i, : len(sequence)] = torch.tensor(sequence, dtype=torch.long)
        mask[i, : len(sequence)] = 1
    return ids.to(device), mask.to(device)


def backbone_and_head(model: Any) -> tuple[Any, Tensor]:
    """Return the module that yields hidden states, and the head's weight (V, H).

    Raises:
        InputError: the head has a bias, which the losses do not repeat.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = base.get_output_embeddings()
    if getattr(head, "bias", None) is not None:
        kind = base.config.get_text_config().model_type
        raise InputError(f"model {kind}: a head with a bias is not supported")
    return base.base_model, head.weight


def logit_transform(model: Any) -> LogitTransform:
    """Return what a model does to the product with its head (Gemma, Cohere, Granite, Falcon-H1)."""
    config = model.config.get_text_config()
    scale = next(
        (getattr(config, name) for name in MULTIPLIERS if getattr(config, name, None) is not None),
        1.0,
    )
    if (scaling := getattr(config, "logits_scaling", None)) is not None:
        # HyperCLOVA X multiplies by what the others divide by.
        scale = scaling if config.model_type == "hyperclovax" else 1.0 / scaling
    return LogitTransform(float(scale), getattr(config, "final_logit_softcapping", None))


def response_states(
    backbone: Any, rows: Sequence[Row], pad: int, device: Any
) -> tuple[Tensor, Tensor]:
    """Run the rows and return the states that predict their selected tokens.

    Args:
        backbone: as from :func:`backbone_and_head`.
        rows: B rows.
        pad: id of padding positions.
        device: where to compute.

    Returns:
        Hidden states (N, H) and the token ids (N,) that they predict, row after row.
    """
    ids, mask = padded(rows, pad, device)
    hidden = backbone(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    batch: list[int] = []
    position: list[int] = []
    for i, row in enumerate(rows):
        first = len(row.prompt) + row.start
        batch += [i] * row.size
        position += range(first, first + row.size)
    at, where = torch.tensor(batch, device=device), torch.tensor(position, device=device)
    return hidden[at, where - 1], ids[at, where]
