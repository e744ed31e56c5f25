"""One line to one record, typed where its blocks are of common kinds.

Belongs here: what is decoded at once and what stays undecoded. Does not belong here: lines
that are no record (``traces.reading.salvage``).
"""

from typing import Any

import msgspec

from composer_pipeline.traces.reading.envelopes import EMPTY, Message, MessageRecord, Record
from composer_pipeline.traces.reading.raw_json import BROKEN

COMMON = frozenset({"text", "tool_use", "tool_result", "thinking", "redacted_thinking"})
decode_typed = msgspec.json.Decoder(MessageRecord).decode
_decode_message = msgspec.json.Decoder(Message).decode
_decode_record = msgspec.json.Decoder(Record).decode

#: In place of a record: the line has to be decoded object by object.
UNREADABLE = Record()


def _is_common(message: Any) -> bool:
    """Say whether a message is decoded and has only blocks of common kinds."""
    if type(message) is not Message:
        return False
    if type(content := message.content) is list:
        for block in content:
            if block.type not in COMMON:
                return False
    return True


def undecoded(line: bytes) -> Record:
    """Decode the envelope alone; :data:`UNREADABLE` where that fails too."""
    try:
        return _decode_record(line)
    except BROKEN:
        return UNREADABLE


def embedded_record(record: Record) -> Record | None:
    """Return the record of a subagent that a progress record holds; ``None`` for any other.

    It has the place of the record that holds it, and the subagent's id.
    """
    if type(record) is not MessageRecord or (data := record.data) is None:
        return None
    if data.type != "agent_progress" or not data.agent_id or data.message is EMPTY:
        return None
    raw: Any = data.message
    try:
        inner: Record = decode_typed(raw)
    except BROKEN:
        inner = UNREADABLE
    if (message := inner.message) is not None and not _is_common(message):
        inner = undecoded(raw)
    if inner is UNREADABLE:
        return None
    inner.agent_id, inner.is_sidechain = data.agent_id, True
    inner.session_id, inner.version, inner.cwd = record.session_id, record.version, record.cwd
    inner.timestamp = inner.timestamp or record.timestamp
    inner.uuid = inner.uuid or record.uuid
    return inner


def message_of(record: Record) -> Message | None:
    """Return the decoded message of a record; ``None`` where a block is of another kind."""
    message: Any = record.message
    if type(message) is Message:
        return message
    if message is None or message is EMPTY:
        return None
    try:
        message = _decode_message(message)
    except BROKEN:
        return None
    return message if _is_common(message) else None
