"""Which prompts begin alike: all channels' rows in one order, equal beginnings side by side.

Belongs here: the order of prompts and how much neighbours share. Does not belong here: which rows
are drawn (``trainers.trl.rows.streams``) and the trees that share forwards
(``trainers.trl.shared_prefix.tree``).

A prompt is kept as four bytes for each block of tokens, so that the order of a data set costs a
thirty-second part of its ids.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any
from zlib import crc32

from composer_pipeline.training.data import bytes_of

#: Tokens of a block, and bytes of a token and of what is kept of a block.
BLOCK, TOKEN, DIGEST = 32, 4, 4


class Beginnings:
    """The rows of several channels by their prompts.

    Rows with equal prompts have one place; places are numbered in the order of their prompts.

    Args:
        rows: rows of each channel, with ``prompt_ids``.

    Attributes:
        places: the place of each row, by channel.
    """

    def __init__(self, rows: Mapping[str, Sequence[Any]]) -> None:
        kept = {name: [_kept(p) for p in bytes_of(of, "prompt_ids")] for name, of in rows.items()}
        every = sorted({prompt for prompts in kept.values() for prompt in prompts})
        number = {prompt: place for place, prompt in enumerate(every)}
        self.places = {name: [number[p] for p in prompts] for name, prompts in kept.items()}
        self._sizes = [len(prompt) for prompt in every]
        self._common = [_common(a, b) for a, b in pairwise(every)]

    def shared(self, one: int, other: int) -> float:
        """Return the part of the longer prompt of two places that both begin with, 0 to 1."""
        if one == other:
            return 1.0
        low, high = sorted((one, other))
        return min(self._common[low:high]) / max(self._sizes[low], self._sizes[high])


def _kept(prompt: bytes | memoryview) -> bytes:
    step = BLOCK * TOKEN
    blocks = (crc32(prompt[i : i + step]) for i in range(0, len(prompt), step))
    return b"".join(block.to_bytes(DIGEST) for block in blocks)


def _common(one: bytes, other: bytes) -> int:
    """Return the bytes of the blocks that both begin with."""
    size = min(len(one), len(other))
    differ = int.from_bytes(one[:size]) ^ int.from_bytes(other[:size])
    equal = size - (differ.bit_length() + 7) // 8
    return equal - equal % DIGEST
