"""Reading what a provider sent, whatever it sent.

Belongs here: bytes -> JSON values, exactly where they are JSON and leniently where they are
nearly so. Does not belong here: what they mean for money (``replay.provider.outcome``) and
whether a reply is usable (``replay.engine.replies``).

Nothing here raises. Strict JSON is read fast, with numbers as exact decimals. What is not
strict is read as Python's ``json`` reads it: a byte-order mark, NaN (read as ``null``), bytes
that are no UTF-8, strings cut inside an emoji, numbers beyond 64 bits. A stream of events that
nobody asked for is put together again. Whoever stores text gets text that can be stored: lone
surrogates become U+FFFD.
"""

import json
import re
from decimal import Decimal
from typing import Any

import msgspec

#: A document with more values than this is not read: its objects would not fit in memory.
MOST_VALUES = 1_000_000
#: Events of a stream that are put together; a longer stream is not read.
MOST_EVENTS = 200_000
#: Digits of a number that are read; longer ones are no number.
MOST_DIGITS = 400
_DECIMALS = msgspec.json.Decoder(float_hook=Decimal)
_SURROGATES = re.compile("[\ud800-\udfff]")
#: What comes in pieces in a stream: text, arguments, reasoning, a refusal.
_IN_PIECES = {"content", "arguments", "reasoning", "reasoning_content", "refusal"}
_EVENT = re.compile(rb"\A\s*(?:data|event|id|retry)?:")


def read_json(body: bytes) -> Any:
    """Return the value of a JSON document, or ``None`` where it cannot be read."""
    if body.count(b",") > MOST_VALUES:
        return None
    try:
        return _DECIMALS.decode(body)
    except (msgspec.DecodeError, ValueError, ArithmeticError, RecursionError):
        pass
    try:
        return _storable(_loads(_text(body)))
    except (ValueError, ArithmeticError, RecursionError):
        return None


def read_reply(body: bytes) -> dict[str, Any] | None:
    """Return a chat completion, a chunk or a stream of them as one completion, else ``None``."""
    reply = _events(body) if _EVENT.match(body) else read_json(body)
    if not isinstance(reply, dict):
        return None
    for choice in choices_of(reply):
        if "message" not in choice and isinstance(choice.get("delta"), dict):
            choice["message"] = choice["delta"]
    return reply


def is_cut(body: bytes) -> bool:
    """Say whether the bytes are the beginning of a JSON object and stop in the middle."""
    if not body.lstrip().startswith(b"{"):
        return False
    try:
        _loads(text := _text(body))
    except json.JSONDecodeError as error:
        unfinished = error.msg.startswith("Unterminated string")
        return unfinished or error.pos >= len(text.strip())
    except (ValueError, ArithmeticError, RecursionError):
        return False
    return False


def choices_of(reply: Any) -> list[dict[str, Any]]:
    """Return the choices of a reply that are objects."""
    choices = reply.get("choices") if isinstance(reply, dict) else None
    return [c for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []


def storable(text: str) -> str:
    """Return a text that every database, table and JSON writer takes."""
    if _SURROGATES.search(text):
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def label(value: Any, longest: int = 200) -> str:
    """Return a provider's name or id for a column: printable ASCII, or nothing."""
    if not isinstance(value, str) or len(value) > longest:
        return ""
    return value if value.isascii() and value.isprintable() else ""


def _text(body: bytes) -> str:
    for encoding, errors in (("utf-8-sig", "strict"), ("utf-8", "surrogatepass")):
        try:
            return body.decode(encoding, errors)
        except UnicodeDecodeError:
            continue
    return body.decode("utf-8-sig", "replace")


def _loads(text: str) -> Any:
    # What follows the document (another one, padding) is not looked at.
    return _LENIENT.raw_decode(text.lstrip())[0]


def _number(text: str) -> int | Decimal | None:
    if len(text) > MOST_DIGITS:
        return None
    return int(text) if text.lstrip("-").isdecimal() else Decimal(text)


_LENIENT = json.JSONDecoder(
    parse_float=_number, parse_int=_number, parse_constant=lambda _: None, strict=False
)


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, list):
        return [_storable(inner) for inner in value]
    if isinstance(value, dict):
        return {storable(key): _storable(inner) for key, inner in value.items()}
    return value


class _Pieces(list[str]):
    """The pieces of a text that comes in events; joined once, at the end."""


def _events(body: bytes) -> dict[str, Any] | None:
    """Put a stream of ``data:`` events together; ``None`` where there is none to read."""
    whole: dict[str, Any] = {}
    merged: dict[int, dict[str, Any]] = {}
    if body.count(b"\n") > MOST_EVENTS:
        return None
    for line in body.splitlines():
        data = line.strip().removeprefix(b"data:").strip()
        chunk = read_json(data) if data.startswith(b"{") else None
        if not isinstance(chunk, dict):
            continue
        for choice in choices_of(chunk):
            number = choice.get("index")
            at = number if isinstance(number, int) else 0
            _merge_choice(merged.setdefault(at, {"message": {}}), choice)
        whole |= {k: v for k, v in chunk.items() if k != "choices" and v is not None}
    if merged:
        whole["choices"] = [_joined(merged[at]) for at in sorted(merged)]
    return whole or None


def _merge_choice(into: dict[str, Any], choice: dict[str, Any]) -> None:
    delta = choice.get("delta", choice.get("message"))
    if isinstance(delta, dict):
        _merge_delta(into["message"], delta)
    into |= {k: v for k, v in choice.items() if k not in ("delta", "message") and v is not None}


def _merge_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for key, value in delta.items():
        if key == "tool_calls" and isinstance(value, list):
            calls = message.setdefault("tool_calls", [])
            for call in value if isinstance(calls, list) else []:
                _merge_call(calls, call)
        else:
            _add(message, key, value)


def _merge_call(calls: list[Any], call: Any) -> None:
    """Extend the call of the same index, which is one of the latest, or begin another."""
    index = call.get("index") if isinstance(call, dict) else None
    known = None
    if index is not None:
        latest = (c for c in reversed(calls[-64:]) if isinstance(c, dict))
        known = next((c for c in latest if c.get("index") == index), None)
    more = call.get("function") if isinstance(call, dict) else None
    if known is None:
        if isinstance(more, dict):
            begun: dict[str, Any] = {}
            for key, value in more.items():
                _add(begun, key, value)
            call = {**call, "function": begun}
        calls.append(call)
    elif isinstance(more, dict) and isinstance(known.get("function"), dict):
        for key, value in more.items():
            _add(known["function"], key, value)


def _add(into: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(value, str) and key in _IN_PIECES:
        if not isinstance(into.get(key), _Pieces):
            into[key] = _Pieces()
        into[key].append(value)
    elif value is not None:
        into[key] = value


def _joined(value: Any) -> Any:
    if isinstance(value, _Pieces):
        return storable("".join(value))
    if isinstance(value, list):
        return [_joined(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _joined(inner) for key, inner in value.items()}
    return value
