"""One request to a chat-completions endpoint: its exact body, its two names and its worst case.

A body is serialised once; its bytes are hashed and those bytes are sent. A call has two names:

======  ==================================================================================
key     what is asked: endpoint name, wire and the body without its price cap. A reply is
        found again by it, whatever the cap was when it was bought
digest  what is sent: endpoint name, wire and the exact body. The provider's response cache
        goes by these bytes, so only a call with the same digest can have paid for its hit
======  ==================================================================================

A body without a cap (api ``openai``) has one name for both.
"""

import hashlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec
import orjson

from composer_pipeline.chat.convert import Conversion, wire_messages
from composer_pipeline.money import Pico, to_pico
from composer_pipeline.teachers.teachers import Teacher

#: Part of a digest, and of a key that covers the exact body.
WIRE = "chat/completions@1"
#: Part of a key that leaves the price cap out.
WIRE_WITHOUT_CAP = "chat/completions@2"
_MESSAGES = b'"messages":['


class Request(msgspec.Struct, frozen=True):
    """One body. ``start`` and ``end`` bound the object ``max_price`` in it; 0 if it has none."""

    body: bytes
    start: int = 0
    end: int = 0

    def digest(self, endpoint: str) -> str:
        """Return the name of what is sent; see the module."""
        # Not the endpoint's address: a demo server gets another port every time.
        return _sha256(endpoint, WIRE, self.body)

    def key(self, endpoint: str) -> str:
        """Return the name of what is asked; see the module."""
        if not self.end:
            return self.digest(endpoint)
        body = memoryview(self.body)
        return _sha256(endpoint, WIRE_WITHOUT_CAP, body[: self.start], b"{}", body[self.end :])

    def around_messages(self, endpoint: str) -> tuple[bytes, bytes]:
        """Return what :meth:`key` hashes before and behind the messages of a body without any."""
        hole = self.body.index(_MESSAGES) + len(_MESSAGES)
        if not self.end:
            return _name(endpoint, WIRE) + self.body[:hole], self.body[hole:]
        tail = self.body[hole : self.start] + b"{}" + self.body[self.end :]
        return _name(endpoint, WIRE_WITHOUT_CAP) + self.body[:hole], tail

    @classmethod
    def around(
        cls, before: Mapping[str, Any], teacher: Teacher, after: Mapping[str, Any]
    ) -> "Request":
        """Return the request with the teacher's ``provider`` between fields; none may be empty."""
        preferences = orjson.dumps(teacher.provider.model_dump(exclude_none=True))
        price = teacher.max_price
        cap = orjson.dumps(
            {
                "prompt": _number(price.prompt),
                "completion": _number(price.completion),
                "request": 0,
                "image": 0,
            }
        )
        head = orjson.dumps(before)[:-1] + b',"provider":' + preferences[:-1] + b',"max_price":'
        body = head + cap + b"}," + orjson.dumps(after)[1:]
        return cls(body, len(head), len(head) + len(cap))


def serialise(
    teacher: Teacher, conversion: Conversion, session_id: str, *, api: str = "openrouter"
) -> Request:
    """Return the request to send; with api ``openai`` it has OpenAI's fields only."""
    # Key order is frozen, because the response cache depends on it.
    body: dict[str, Any] = {
        "model": teacher.model,
        "messages": wire_messages(conversion.messages),
        "tools": conversion.tools,
        "tool_choice": "auto",
        "max_completion_tokens": teacher.max_tokens,
        "temperature": teacher.temperature,
    }
    if api == "openai":
        if not conversion.tools:  # an empty list is refused there
            del body["tools"], body["tool_choice"]
        return Request(orjson.dumps(body))
    # For sticky routing: the provider's prompt cache holds the session's prefix.
    session = hashlib.sha256(session_id.encode()).hexdigest()[:32]
    rest: dict[str, Any] = {
        "plugins": [{"id": "context-compression", "enabled": False}],
        "session_id": f"{session}-{teacher.name}",
    }
    if teacher.cache_control != "off":
        rest["cache_control"] = {"type": "ephemeral", "ttl": teacher.cache_control}
    return Request.around(body, teacher, rest)


def settings_sent(teacher: Teacher, endpoint: str, *, api: str = "openrouter") -> dict[str, Any]:
    """Return what a key takes from the teacher file, except for the model: name -> value."""
    settings: dict[str, Any] = {
        "endpoint": endpoint,
        "max_tokens": teacher.max_tokens,
        "temperature": teacher.temperature,
        **({"window_tokens": teacher.window} if teacher.window else {}),
    }
    if api == "openai":
        return settings
    preferences = teacher.provider.model_dump(exclude_none=True)
    settings |= {f"provider.{name}": value for name, value in preferences.items()}
    return settings | {"cache_control": teacher.cache_control}


def _name(endpoint: str, wire: str) -> bytes:
    return f"{endpoint}\n{wire}\n".encode()


def _sha256(endpoint: str, wire: str, *parts: bytes | memoryview) -> str:
    digest = hashlib.sha256(_name(endpoint, wire))
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _number(price: Decimal) -> float | int:
    """Return a price as the JSON number that the router compares."""
    return int(price) if price == price.to_integral_value() else float(price)


#: What a cached prompt token may cost to write, as a share of the prompt price.
CACHE_WRITE = {"off": Decimal(1), "5m": Decimal("1.25"), "1h": Decimal(2)}
#: Tokens that a chat template may add to a message, for the prefix-anchored bound.
TEMPLATE_TOKENS = 64
#: A measured prompt of fewer tokens than a sixteenth of its bytes is not believed.
MOST_BYTES_PER_TOKEN = 16
_AFTER_MESSAGES = b'],"tools":'


def worst_case(teacher: Teacher, body: bytes | int, *, prompt_tokens: int | None = None) -> Pico:
    """Return the most that sending ``body``, or so many bytes, can cost, rounded up.

    A byte-level tokenizer makes at most one token of a byte, so the prompt has at most
    ``min(len(body), context_length)`` tokens; ``prompt_tokens`` is a tighter bound
    (:func:`anchored_tokens`). Both prices are the caps that the router enforces; reasoning is
    inside ``max_tokens``.
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
    """A prompt whose tokens its teacher has counted, to bound those of a longer one."""

    #: Where the body's messages end.
    end: int
    #: Digests of the bytes before and after.
    head: bytes
    tail: bytes
    prompt_tokens: int


def anchor(body: bytes, prompt_tokens: int) -> Anchor | None:
    """Return the anchor of an answered body; ``None`` if its count is not believed."""
    end = body.find(_AFTER_MESSAGES)
    if end < 0 or prompt_tokens * MOST_BYTES_PER_TOKEN < len(body):
        return None
    return Anchor(end, _digest(body[:end]), _digest(body[end:]), prompt_tokens)


def anchored_tokens(body: bytes, before: Anchor | None) -> int | None:
    """Bound the prompt tokens of a body that extends an answered one; ``None`` if it does not.

    If the bodies differ only by messages added at the end, the longer prompt has at most the
    tokens of the shorter one, one for each byte that was added, and what a chat template may
    add to each message: P(k) <= P(k-1) + bytes + 64 messages.
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
