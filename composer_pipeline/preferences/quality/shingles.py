"""A text as the set of its shingles, and the tail of a prompt to make them of.

Does not belong here: comparing them (``preferences.quality.near_duplicates``).
"""

import json
import re
import zlib
from collections.abc import Sequence

_WORD = re.compile(r"\w+|[^\w\s]", re.UNICODE)
_SHINGLE = 5
MIX, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1
"""A multiplier that spreads a hash over 64 bits."""


Shingles = frozenset[int]


def shingles_of(tail: str, action: str) -> Shingles:
    """Return the hashes of the word 5-grams of a prompt's tail and an action.

    A text of fewer words is one shingle.
    """
    words = [*_WORD.findall(tail), "\x00", *_WORD.findall(action)]
    size = min(_SHINGLE, len(words))
    return frozenset(
        zlib.crc32("\x01".join(words[i : i + size]).encode("utf-8", "surrogatepass")) * MIX & _MASK
        for i in range(len(words) - size + 1)
    )


def prompt_tail(messages: Sequence[str], limit: int) -> str:
    """Return the last ``limit`` characters of what a prompt's messages say.

    Args:
        messages: chat messages as JSON, as the column ``prompt`` stores them; only as many
            as are needed are decoded.
        limit: characters.
    """
    parts: list[str] = []
    length = 0
    for text in reversed(messages):
        message = json.loads(text)
        said = str(message.get("content") or "")
        calls = [str(call["function"]) for call in message.get("tool_calls") or ()]
        parts.append("\n".join([said, *calls]))
        length += len(parts[-1])
        if length >= limit:
            break
    return "\n".join(reversed(parts))[-limit:]
