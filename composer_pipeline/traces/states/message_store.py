"""The distinct messages of a day, on their way to the table ``messages``.

Belongs here: numbers and hashes of messages, batches of rows. Does not belong here: the
shape of a message (``traces.states.messages``).
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from composer_pipeline.lake import MESSAGES, column, numbers, utf8
from composer_pipeline.redaction import redaction_version
from composer_pipeline.traces.graph import Counts

_HEADS = {
    role: b'{"role":"%s","content":' % role.encode()
    for role in ("user", "assistant", "system", "tools")
}

#: Decoded bytes of messages that wait for one write.
_BATCH_BYTES = 4 << 20
Write = Callable[[pa.Table], None]


class MessageStore:
    """Distinct redacted messages of one partition, numbered in the order they came.

    Args:
        write: receives the rows in batches; only hashes stay in memory.

    ``counts`` adds up redactions by kind, once for each distinct message.
    """

    def __init__(self, write: Write | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.hashes: list[bytes] = []
        self._number: dict[bytes, int] = {}
        self._write = write
        self._rows: list[tuple[bytes, str, bytes, int]] = []
        self._waiting = 0

    def add(self, role: str, content: Sequence[bytes], counts: Iterable[Counts] = ()) -> int:
        """Keep a message; return its number.

        Args:
            role: user, assistant, system or tools.
            content: the JSON of its content, in pieces.
            counts: what redaction replaced in its pieces.
        """
        text = b"".join((_HEADS[role], *content, b"}"))
        digest = hashlib.blake2b(text, digest_size=16).digest()
        number = self._number.get(digest)
        if number is not None:
            return number
        number = self._number[digest] = len(self.hashes)
        self.hashes.append(digest)
        replaced = 0
        for kinds in counts:
            for kind, count in kinds:
                self.counts[kind] += count
                replaced += count
        self._rows.append((digest, role, text, replaced))
        self._waiting += len(text)
        if self._waiting > _BATCH_BYTES:
            self.flush()
        return number

    def flush(self) -> None:
        """Hand the waiting rows to the writer."""
        rows, self._rows, self._waiting = self._rows, [], 0
        if self._write is None or not rows:
            return
        first = len(self.hashes) - len(rows)
        digests, roles, texts, replaced = zip(*rows, strict=True)
        text = utf8(texts)
        self._write(
            pa.Table.from_arrays(
                [
                    column([digest.hex() for digest in digests], pa.string()),
                    column(roles, pa.string()),
                    text,
                    pc.utf8_length(text),
                    numbers(replaced, pa.int32()),
                    numbers([redaction_version()] * len(rows), pa.int32()),
                    numbers(range(first, len(self.hashes)), pa.int32()),
                ],
                schema=MESSAGES.schema,
            )
        )
