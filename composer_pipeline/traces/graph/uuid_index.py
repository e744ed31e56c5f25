"""Positions of records by uuid, in little memory.

Belongs here: the index that finds the parent of a record. Does not belong here: what a
parent means (``traces.graph.links``).
"""

from array import array
from bisect import bisect_left


class UuidIndex(dict[int, int]):
    """Positions of records by the hash of their uuid.

    Python's hash of a text takes half the memory of the text. Of a long file only the
    last records are in the dictionary; the others are in sorted arrays (``old``), because
    nearly every parent is a recent record. :meth:`find` looks everywhere, ``get`` only
    among the last ones.
    """

    RECENT = 1 << 15

    def __init__(self) -> None:
        self.old: list[tuple[array[int], array[int]]] = []

    def find(self, key: int) -> int | None:
        """Return the position for a hash."""
        found = self.get(key)
        if found is None:
            for keys, positions in reversed(self.old):
                at = bisect_left(keys, key)
                if at < len(keys) and keys[at] == key:
                    return positions[at]
        return found

    def settle(self) -> None:
        """Move all to the arrays."""
        keys = sorted(self)
        self.old.append((array("q", keys), array("i", (self[key] for key in keys))))
        self.clear()
