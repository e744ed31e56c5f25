"""How much of validation a model has seen in train: measured on the pairs as they are written.

Belongs here: two shares. Does not belong here: what is never in both splits, which is proven
(``dataset.decide``).
"""

import hashlib
import json
from collections.abc import Iterator

import pyarrow as pa

#: Characters from which on a message says something of its own.
LONG_MESSAGE = 120


class Overlap:
    """Sees the pairs of train, then those of validation.

    ``repository`` counts rows of validation whose repository is in train, ``verbatim`` those with
    a message of :data:`LONG_MESSAGE` characters, no system prompt, that stands in train.
    """

    def __init__(self) -> None:
        self.rows = self.repository = self.verbatim = 0
        self._repositories: set[str] = set()
        self._messages: set[bytes] = set()
        self._known: dict[bytes, bytes | None] = {}

    def train(self, rows: pa.Table) -> None:
        """Take in rows of train."""
        for name, prompt in _each(rows):
            self._repositories.add(name)
            self._messages.update(filter(None, map(self._digest, prompt)))

    def validation(self, rows: pa.Table) -> None:
        """Compare rows of validation."""
        for name, prompt in _each(rows):
            self.rows += 1
            self.repository += name in self._repositories
            self.verbatim += any(self._digest(text) in self._messages for text in prompt)

    def figures(self) -> dict[str, float | int]:
        """Return the rows of validation and the two shares of them."""
        rows = max(1, self.rows)
        return {
            "validation_rows": self.rows,
            "repository_in_train": self.repository / rows,
            "verbatim_in_train": self.verbatim / rows,
        }

    def _digest(self, text: str) -> bytes | None:
        """Return the digest of what a long message says, nothing for others."""
        key = hashlib.blake2b(text.encode(), digest_size=12).digest()
        if key not in self._known:
            message = json.loads(text)
            said = str(message.get("content") or "")
            own = message.get("role") != "system" and len(said) >= LONG_MESSAGE
            data = said.encode("utf-8", "surrogatepass")
            self._known[key] = hashlib.blake2b(data, digest_size=12).digest() if own else None
        return self._known[key]


def _each(rows: pa.Table) -> Iterator[tuple[str, list[str]]]:
    """Yield repository and prompt of each row, a few rows decoded at a time."""
    for batch in rows.select(["repository", "prompt"]).to_batches(max_chunksize=8):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
