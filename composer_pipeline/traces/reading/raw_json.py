"""Undecoded parts of records to values, and values to compact JSON.

Belongs here: JSON that no strict decoder takes (integers of more than 64 bits, lone
surrogates). Does not belong here: which part means what (``traces.reading.contents``).
"""

import json
from typing import Any

import msgspec
import orjson

from composer_pipeline.traces.reading.envelopes import EMPTY

BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_decode_string = msgspec.json.Decoder(str).decode


def decode_text(raw: msgspec.Raw) -> str | None:
    """Decode an undecoded string; ``None`` for anything else."""
    try:
        return _decode_string(raw)
    except BROKEN:
        text = decode_any(raw)
        return text if isinstance(text, str) else None


def decode_any(raw: msgspec.Raw | bytes | None) -> Any:
    """Decode an undecoded part of a record; ``None`` where it is absent or broken."""
    if raw is EMPTY or raw is None:
        return None
    try:
        return msgspec.json.decode(raw)
    except BROKEN:
        pass
    try:
        return json.loads(bytes(raw).decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None


_encode_text = msgspec.json.Encoder().encode


def encode(value: Any) -> bytes:
    """Return compact JSON with key order kept; lone surrogates become U+FFFD."""
    try:
        if type(value) is str:
            return _encode_text(value)
        return trimmed(orjson.dumps(value))
    except (TypeError, ValueError):  # both libraries' errors are among them
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def trimmed(data: bytes) -> bytes:
    """Return a copy without spare room: orjson leaves up to ten times what it wrote."""
    return bytes(memoryview(data))
