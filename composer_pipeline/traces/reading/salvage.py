"""Lines that are not one record: several objects on one, cut tails, fields of a wrong type.

Belongs here: decoding a line object by object, slowly. Does not belong here: counting
lines (``traces.reading.records``).
"""

import json
from typing import Any

import msgspec

from composer_pipeline.traces.reading.envelopes import Record, RequestRecord

REQUESTS = frozenset({"api-request", "api-request-blob"})

_RAW_FIELDS = (
    "request_ref",
    "wire_tool_inputs",
    "forked_from",
    "compact_metadata",
    "microcompact_metadata",
    "attachment",
    "message",
)

_TEXT_FIELDS = tuple(
    field.name for field in msgspec.structs.fields(Record) if field.type == str | None
)

_FLAG_FIELDS = ("is_sidechain", "is_meta", "is_compact_summary", "is_api_error_message")
_REQUEST_FIELDS = ("id", "base", "keep", "tail", "hash")
_WIRE_NAME = {f.name: f.encode_name for f in msgspec.structs.fields(RequestRecord)}
_raw_decode = json.JSONDecoder().raw_decode
_SKIP = " \t\r\n\0"


def salvage(line: bytes) -> tuple[list[Record], bool]:
    """Decode the objects of a line one after the other; say whether nothing remained."""
    try:
        text = line.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return [], False
    found: list[Record] = []
    clean = True
    at = 0
    while True:
        while at < len(text) and text[at] in _SKIP:
            at += 1
        if at >= len(text):
            return found, clean and bool(found)
        try:
            value, at = _raw_decode(text, at)
        except (ValueError, RecursionError):
            return found, False
        if isinstance(value, dict):
            found.append(_from_object(value))
        else:
            clean = False


def _from_object(value: dict[str, Any]) -> Record:
    """Build an envelope from a decoded object, ignoring fields of a wrong type."""
    fields: dict[str, Any] = {}
    for name in _TEXT_FIELDS:
        if isinstance(item := value.get(_WIRE_NAME[name]), str):
            fields[name] = item
    for name in _FLAG_FIELDS:
        if isinstance(flag := value.get(_WIRE_NAME[name]), bool):
            fields[name] = flag
    if isinstance(index := value.get("apiBlockIndex"), int):
        fields["api_block_index"] = index
    request = fields.get("type") in REQUESTS
    for name in (*_RAW_FIELDS, *_REQUEST_FIELDS) if request else _RAW_FIELDS:
        if (item := value.get(_WIRE_NAME[name])) is not None:
            fields[name] = msgspec.Raw(json.dumps(item).encode())
    return RequestRecord(**fields) if request else Record(**fields)
