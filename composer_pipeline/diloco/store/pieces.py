"""An object's bytes that are never in memory as a whole.

Belongs here: their size, their SHA-256, and coming again for each pass. Does not belong here: what
they mean, and writing them (``store.objects``).
"""

import hashlib
from collections.abc import Callable, Iterator
from functools import cached_property


class Pieces:
    """Bytes in pieces, made anew for each pass: to hash, to send, to send again.

    Args:
        size: of all pieces, in bytes.
        make: returns the pieces; the same bytes in each pass.
    """

    def __init__(self, size: int, make: Callable[[], Iterator[bytes | memoryview]]) -> None:
        self._size, self._make = size, make

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes | memoryview]:
        return self._make()

    def __bytes__(self) -> bytes:
        return b"".join(self)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the bytes as hex."""
        digest = hashlib.sha256()
        for piece in self:
            digest.update(piece)
        return digest.hexdigest()
