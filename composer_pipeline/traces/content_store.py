"""Redacted pieces of messages, outside the graph: in memory while small, then on disk.

A piece is the JSON of one value: a text, a tool's input, a block. Each is redacted when it
arrives, with the user names known so far; a name that shows up later is removed when the piece
is read. At most :data:`MEMORY` bytes stay in memory, the rest goes to an unnamed temporary file,
so that the graph of a file of any size fits into memory.
"""

import hashlib
import os
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable
from typing import IO, Any

from composer_pipeline.traces.records import decode_any, encode, trimmed

MEMORY = 4 << 20
_CACHE_BYTES = 2 << 20

#: Returns redacted JSON and what it replaced; `None` in its place keeps values as they are.
Redact = Callable[[bytes, frozenset[str]], tuple[bytes, Counter[str]]]
Replacements = tuple[tuple[str, int], ...]


class Redactor:
    """Redacts each distinct value once, within a bounded memory."""

    def __init__(self, redact: Redact) -> None:
        self._redact = redact
        self._clean: set[bytes] = set()
        self._changed: dict[bytes, tuple[bytes, Replacements]] = {}
        self._held = 0
        self._names: frozenset[str] | None = None
        self._key = b""
        self._interned: dict[Replacements, Replacements] = {}

    def __call__(self, source: bytes, names: frozenset[str]) -> tuple[bytes, Replacements]:
        """Return the JSON of the redacted value and the replacements by kind."""
        if len(source) < 8:
            return source, ()
        if names is not self._names and names != self._names:
            self._names = names
            tag = "\0".join(sorted(names)).encode("utf-8", "replace")
            self._key = hashlib.blake2b(tag, digest_size=16).digest()
        key = hashlib.blake2b(source, digest_size=16, key=self._key).digest()
        if key in self._clean:
            return source, ()
        if (known := self._changed.get(key)) is not None:
            return known
        data, counter = self._redact(source, names)
        if self._held > _CACHE_BYTES:
            self._clean.clear()
            self._changed.clear()
            self._held = 0
        if data == source:
            self._clean.add(key)
            self._held += 96
            return source, ()
        data = trimmed(data)
        counts = tuple(sorted(counter.items()))
        counts = self._interned.setdefault(counts, counts)
        self._changed[key] = (data, counts)
        self._held += 200 + len(data)
        return data, counts


class ContentStore:
    """The pieces of one file, by number.

    ``replaced`` maps a piece, once it was read, to what redaction replaced in it. There is no
    redactor only where nothing is stored.
    """

    def __init__(self, redactor: Redactor | None = None) -> None:
        self.redactor = redactor
        self.names: frozenset[str] = frozenset()
        self.replaced: dict[int, Replacements] = {}
        self._pieces: list[bytes] = []
        self._held = 0
        self._ends = array("Q")
        self._file: IO[bytes] | None = None
        self._stale = 0

    def add_names(self, names: set[str]) -> None:
        """Remove these user names too, also from pieces that are stored already."""
        if not names <= self.names:
            self.names |= names
            self._stale = len(self._ends) + len(self._pieces)

    def put(self, value: Any) -> int:
        """Store a value; return its number."""
        data, pieces = encode(value), self._pieces
        number = len(self._ends) + len(pieces)
        if self.redactor is not None:
            data, counts = self.redactor(data, self.names)
            if counts:
                self.replaced[number] = counts
        pieces.append(data)
        self._held += len(data)
        if self._held > MEMORY:
            self._spill()
        return number

    def get(self, number: int) -> bytes:
        """Return the JSON of a piece."""
        at = number - len(self._ends)
        if at >= 0:
            data = self._pieces[at]
        else:
            assert self._file is not None
            start = self._ends[number - 1] if number else 0
            data = os.pread(self._file.fileno(), self._ends[number] - start, start)
        if number < self._stale and self.redactor is not None:
            data, counts = self.redactor(data, self.names)
            if counts:
                before = Counter(dict(self.replaced.get(number, ())))
                self.replaced[number] = tuple(sorted((before + Counter(dict(counts))).items()))
        return data

    def load(self, number: int) -> Any:
        """Return a piece, decoded."""
        return decode_any(self.get(number))

    def redacted(self, data: bytes) -> bytes:
        """Return the redacted JSON of a value that is not stored."""
        return data if self.redactor is None else self.redactor(data, self.names)[0]

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="composer-pipeline-")  # noqa: SIM115
        end = self._ends[-1] if self._ends else 0
        self._file.seek(end)
        self._file.writelines(self._pieces)
        self._file.flush()
        for piece in self._pieces:
            end += len(piece)
            self._ends.append(end)
        self._pieces = []
        self._held = 0
