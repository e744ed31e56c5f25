"""Messages as the JSON text that the tables hold, and what makes two prompts equal.

Belongs here: the text of a message, written once however many prompts it stands in, and digests
of texts. Does not belong here: how a prefix becomes messages (``chat``) and rows.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

#: Texts whose digests are kept; a session's prompts share nearly all of theirs.
KEPT_TEXTS = 4_000


class MessageTexts:
    """Message to JSON text; messages that prompts share are the same objects and written once."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Any, str]] = {}

    def of(self, messages: Iterable[Any]) -> list[str]:
        """Return the texts of some messages."""
        return [self._text(message) for message in messages]

    def _text(self, message: Any) -> str:
        # The message is kept too, so that its id stays its own.
        kept = self._kept.get(id(message))
        if kept is None:
            text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
            kept = self._kept[id(message)] = message, text
        return kept[1]


class Digests:
    """Digests of messages and prompts that are equal where the messages are, in any key order."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def of_message(self, text: str) -> bytes:
        """Return the digest of one message's JSON text."""
        found = self._kept.get(text)
        if found is None:
            if len(self._kept) >= KEPT_TEXTS:
                self._kept.clear()
            plain = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
            found = self._kept[text] = digest([plain.encode()])
        return found

    def of_prompt(self, texts: Sequence[str]) -> bytes:
        """Return the digest of a prompt."""
        return digest(map(self.of_message, texts))


def digest(parts: Iterable[bytes]) -> bytes:
    """Return BLAKE2b-128 over parts of equal length, or over one part."""
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()
