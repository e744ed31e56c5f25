"""Redacted pieces of messages, outside the graph: in memory while small, then on disk.

A piece is the JSON of one value: a text, a tool's input, a block. Each is redacted when it
arrives, with what is known of the session so far; a user name or a secret that shows up later is
removed when the piece is read. At most :data:`MEMORY` bytes stay in memory, the rest goes to an
unnamed temporary file, so that the graph of a file of any size fits into memory.
"""

import hashlib
import os
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Sequence, Set
from typing import IO, Any, NamedTuple

from composer_pipeline.redaction.redact import Redacted
from composer_pipeline.redaction.secrets import Known, Literal
from composer_pipeline.redaction.vault import HashedValues, needle
from composer_pipeline.traces.records import decode_any, encode, trimmed

MEMORY = 4 << 20
_CACHE_BYTES = 2 << 20

#: Pieces are redacted together up to so many bytes.
_BATCH = 256 << 10

#: Redacts the JSON of values; `None` in its place keeps them as they are.
Redact = Callable[[Sequence[bytes], frozenset[Known]], list[Redacted]]
Replacements = tuple[tuple[str, int], ...]


class Redactor:
    """Redacts each distinct value once, within a bounded memory."""

    def __init__(self, redact: Redact, hashed: HashedValues | None = None) -> None:
        self._redact = redact
        self._hashed = hashed or HashedValues()
        self._clean: dict[bytes, bool] = {}
        self._changed: dict[bytes, Piece] = {}
        self._held = 0
        self._names: frozenset[Known] | None = None
        self._key = b""
        self._interned: dict[Replacements, Replacements] = {}

    def __call__(self, sources: Sequence[bytes], names: frozenset[Known]) -> list["Piece"]:
        """Return the redacted JSON of values."""
        if names is not self._names and names != self._names:
            self._names = names
            tag = "\0".join(sorted(map(str, names))).encode("utf-8", "replace")
            self._key = hashlib.blake2b(tag, digest_size=16).digest()
        keys = [
            hashlib.blake2b(source, digest_size=16, key=self._key).digest()
            if len(source) >= 8
            else b""
            for source in sources
        ]
        if self._held > _CACHE_BYTES:
            self._clean.clear()
            self._changed.clear()
            self._held = 0
        new = dict(zip(keys, sources, strict=True))
        new = {k: new[k] for k in new if k and k not in self._clean and k not in self._changed}
        redacted = self._redact(list(new.values()), names)
        for (key, source), result in zip(new.items(), redacted, strict=True):
            self._remember(key, source, result)
        return [
            self._changed.get(key) or Piece(source, encoded=self._clean.get(key, False))
            for key, source in zip(keys, sources, strict=True)
        ]

    def _remember(self, key: bytes, source: bytes, result: Redacted) -> None:
        data, counter, found, encoded = result
        secrets = frozenset((*found, *self._hashed.find(data)))
        if data == source and not secrets:
            self._clean[key] = encoded
            self._held += 96
            return
        data = trimmed(data)
        counts = tuple(sorted(counter.items()))
        counts = self._interned.setdefault(counts, counts)
        piece = self._changed[key] = Piece(data, counts, secrets, encoded)
        self._held += 200 + len(data) + sum(len(item.value) + 100 for item in piece.found)


class Piece(NamedTuple):
    """A redacted piece, with the replacements by kind and what was replaced."""

    data: bytes
    counts: Replacements = ()
    found: frozenset[Literal] = frozenset()
    encoded: bool = False


class ContentStore:
    """The pieces of one file, by number.

    There is no redactor only where nothing is stored.
    """

    def __init__(self, redactor: Redactor | None = None) -> None:
        self.redactor = redactor
        self.names: frozenset[Known] = frozenset()
        self._replaced: dict[int, Replacements] = {}
        self._found: set[Literal] = set()
        self._encoded: set[int] = set()
        self._again: set[int] = set()
        self._needles: list[bytes] = []
        self._pieces: list[bytes] = []
        self._held = 0
        self._waiting: list[bytes] = []  # the last pieces, not yet redacted
        self._waiting_size = 0
        self._starts, self._ends = array("Q"), array("Q")
        self._file: IO[bytes] | None = None
        self._stale = 0

    @property
    def replaced(self) -> dict[int, Replacements]:
        """Return what redaction replaced, by piece."""
        self._settle()
        return self._replaced

    @property
    def found(self) -> set[Literal]:
        """Return the values that redaction found in the pieces."""
        self._settle()
        return self._found

    def add_names(self, names: Set[Known]) -> None:
        """Remove these names and values too, also from pieces that are stored already."""
        if not names <= self.names:
            self.names |= names
            self._again.clear()
            values = (name if isinstance(name, str) else name.value for name in self.names)
            self._needles = sorted({needle(value) for value in values})
            self._stale = len(self._ends) + len(self._pieces)  # what waits is redacted with them

    def put(self, value: Any) -> int:
        """Store a value; return its number."""
        data = encode(value)
        number = len(self._ends) + len(self._pieces) + len(self._waiting)
        self._waiting.append(data)
        self._waiting_size += len(data)
        if self._waiting_size > _BATCH:
            self._settle()
            if self._held > MEMORY:
                self.spill()
        return number

    def _settle(self) -> None:
        """Redact what waits."""
        waiting, self._waiting, self._waiting_size = self._waiting, [], 0
        if self.redactor is not None and waiting:
            first = len(self._ends) + len(self._pieces)
            for number, piece in enumerate(self.redactor(waiting, self.names), first):
                self._found |= piece.found
                if piece.counts:
                    self._replaced[number] = piece.counts
                if piece.encoded:
                    self._encoded.add(number)
                waiting[number - first] = piece.data
        self._pieces += waiting
        self._held += sum(map(len, waiting))

    def get(self, number: int) -> bytes:
        """Return the JSON of a piece."""
        at = number - len(self._ends)
        if at >= len(self._pieces):
            self._settle()
        if at >= 0:
            data = self._pieces[at]
        else:
            assert self._file is not None
            start = self._starts[number]
            data = os.pread(self._file.fileno(), self._ends[number] - start, start)
        if number < self._stale and self.redactor is not None:
            if number not in self._encoded and not any(n in data for n in self._needles):
                return data
            data, counts, _, _ = self.redactor([data], self.names)[0]
            if counts and number not in self._again:
                self._again.add(number)
                before = Counter(dict(self._replaced.get(number, ())))
                self._replaced[number] = tuple(sorted((before + Counter(dict(counts))).items()))
        return data

    def load(self, number: int) -> Any:
        """Return a piece, decoded."""
        return decode_any(self.get(number))

    def redacted(self, data: bytes) -> bytes:
        """Return the redacted JSON of a value that is not stored."""
        return data if self.redactor is None else self.redactor([data], self.names)[0].data

    def spill(self, shared: IO[bytes] | None = None) -> None:
        """Move the pieces from memory to disk: to a file that other stores share, or to its own."""
        self._settle()
        if self._file is None:
            self._file = shared or tempfile.TemporaryFile(prefix="composer-pipeline-")  # noqa: SIM115
        end = self._file.seek(0, os.SEEK_END)
        self._file.writelines(self._pieces)
        self._file.flush()
        for piece in self._pieces:
            self._starts.append(end)
            end += len(piece)
            self._ends.append(end)
        self._pieces = []
        self._held = 0
