"""What one call can cost at most, from its exact bytes.

Belongs here: upper bounds. Does not belong here: reserving them (``replay.ledger``), and
expected costs (``replay.plan``).
"""

import hashlib
from decimal import Decimal

import msgspec

from composer_pipeline.money import Pico, to_pico
from composer_pipeline.replay.teachers import Teacher

#: What a cached prompt token may cost to write, as a share of the prompt price.
CACHE_WRITE = {"off": Decimal(1), "5m": Decimal("1.25"), "1h": Decimal(2)}


#: Tokens that a chat template may add to a message, for the prefix-anchored bound.
TEMPLATE_TOKENS = 64


#: A measured prompt of fewer tokens than a sixteenth of its bytes is not believed.
MOST_BYTES_PER_TOKEN = 16


_AFTER_MESSAGES = b'],"tools":'


def worst_case(teacher: Teacher, body: bytes | int, *, prompt_tokens: int | None = None) -> Pico:
    """Return the most that sending ``body`` can cost, rounded up.

    A byte-level tokenizer makes at most one token of a byte, so the prompt has at most
    ``min(len(body), context_length)`` tokens. Both prices are the caps that the router
    enforces; reasoning is inside ``max_tokens``.

    Args:
        teacher: who is asked.
        body: the exact body, or how many bytes it has.
        prompt_tokens: a tighter bound on the prompt's tokens (:func:`anchored_tokens`).
    """
    size = body if isinstance(body, int) else len(body)
    tokens = min(size, teacher.context_length)
    if prompt_tokens is not None:
        tokens = min(tokens, prompt_tokens)
    per_million = (
        teacher.max_price.prompt * CACHE_WRITE[teacher.cache_control] * tokens
        + teacher.max_price.completion * teacher.max_tokens
    )
    return to_pico(per_million / 1_000_000)


class Anchor(msgspec.Struct, frozen=True):
    """A prompt whose tokens its teacher has counted: what a longer one may be bounded by.

    ``end`` is where the body's messages end; the digests are of the bytes before and after.
    """

    end: int
    head: bytes
    tail: bytes
    prompt_tokens: int


def anchor(body: bytes, prompt_tokens: int) -> Anchor | None:
    """Return the anchor of an answered body; ``None`` where its count is not believed."""
    end = body.find(_AFTER_MESSAGES)
    if end < 0 or prompt_tokens * MOST_BYTES_PER_TOKEN < len(body):
        return None
    return Anchor(end, _digest(body[:end]), _digest(body[end:]), prompt_tokens)


def anchored_tokens(body: bytes, before: Anchor | None) -> int | None:
    """Bound the prompt tokens of a body that extends an answered one; ``None`` if it does not.

    Where the bodies differ only by messages added at the end, the longer prompt has at most
    the tokens of the shorter one, one for each byte that was added, and what a chat template
    may add to each message: P(k) <= P(k-1) + bytes + 64 messages (facts, option 2).
    """
    if before is None or len(body) < before.end:
        return None
    end = body.find(_AFTER_MESSAGES, before.end)
    if end < 0 or _digest(body[end:]) != before.tail or _digest(body[: before.end]) != before.head:
        return None
    added = body[before.end : end]
    messages = added.count(b'{"role":') + 1  # and the prompt of the answer itself
    return before.prompt_tokens + len(added) + TEMPLATE_TOKENS * messages


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
