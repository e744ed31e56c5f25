"""Which rank runs what: a function of sizes alone, so that all ranks know it without asking.

Belongs here: dealing. Does not belong here: packing what a rank was dealt into micro-batches
(``trainers.trl.rows.batches``).
"""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def dealt(items: Sequence[T], sizes: Sequence[int], ranks: int) -> list[list[T]]:
    """Return each rank's items, in their order: the largest first, each to who has least.

    Args:
        items: what is dealt.
        sizes: tokens of each.
        ranks: how many there are.
    """
    loads, owner = [0] * ranks, [0] * len(items)
    for i in sorted(range(len(items)), key=lambda i: -sizes[i]):
        rank = loads.index(min(loads))
        owner[i] = rank
        loads[rank] += sizes[i]
    return [[item for item, of in zip(items, owner, strict=True) if of == r] for r in range(ranks)]


def idle_share(loads: Sequence[int]) -> float:
    """Return the part of the ranks' time in which one waits for the busiest, by tokens."""
    return 1.0 - sum(loads) / len(loads) / max(loads) if any(loads) else 0.0
