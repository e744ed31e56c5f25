"""Records as they are decoded: the envelope, its message, its blocks, and what one record says.

Only the fields that later stages read are decoded; everything else of a line is skipped.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import orjson

#: Record types of Claude Code 2.0 to 2.1.3xx that are met in practice.
KNOWN_TYPES = frozenset(
    """
    user assistant system progress attachment summary file-history-snapshot queue-operation pr-link
    last-prompt mode permission-mode ai-title custom-title tag worktree-state api-request
    api-request-shape api-request-blob content-replacement
    """.split()  # noqa: SIM905  a line of names instead of a column
)
#: Record types that are nodes of the conversation graph.
GRAPH_TYPES = frozenset({"user", "assistant", "system", "progress", "attachment"})

#: An undecoded part that the line lacks. (msgspec has no optional ``Raw``.)
EMPTY = msgspec.Raw()


class Record(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """The envelope of one record.

    Fields that a line lacks or has with a wrong type are ``None``, undecoded ones :data:`EMPTY`.
    """

    type: str | None = None
    uuid: str | None = None
    parent_uuid: str | None = None
    logical_parent_uuid: str | None = None
    is_sidechain: bool | None = None
    agent_id: str | None = None
    session_id: str | None = None
    timestamp: str | None = None
    version: str | None = None
    cwd: str | None = None
    subtype: str | None = None
    is_meta: bool | None = None
    is_compact_summary: bool | None = None
    is_api_error_message: bool | None = None
    rendered: str | None = None
    rendered_role: str | None = None
    api_block_index: int | None = None
    wire_tool_inputs: msgspec.Raw = EMPTY
    forked_from: msgspec.Raw = EMPTY
    compact_metadata: msgspec.Raw = EMPTY
    microcompact_metadata: msgspec.Raw = EMPTY
    attachment: msgspec.Raw = EMPTY
    message: msgspec.Raw = EMPTY
    request_ref: msgspec.Raw = EMPTY
    parent_tool_use_id: str | None = msgspec.field(default=None, name="parentToolUseID")


class Usage(msgspec.Struct, gc=False):
    """The token counts of a response; each of its lines repeats them."""

    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None


class Block(msgspec.Struct, gc=False):
    """A content block of a common kind, its content undecoded."""

    type: str
    id: str | None = None
    name: str | None = None
    tool_use_id: str | None = None
    is_error: bool | None = None
    text: msgspec.Raw = EMPTY
    input: msgspec.Raw = EMPTY
    content: msgspec.Raw = EMPTY


class Message(msgspec.Struct, gc=False):
    """The message of a user's or an assistant's record, with blocks of common kinds only."""

    content: list[Block] | str | None = None
    id: str | None = None
    model: str | None = None
    usage: Usage | None = None


class Progress(msgspec.Struct, rename="camel", gc=False):
    """The data of a progress record; that of a subagent holds one of its records."""

    type: str | None = None
    agent_id: str | None = None
    message: msgspec.Raw = EMPTY


class MessageRecord(Record, kw_only=True, gc=False):
    """An envelope with its message decoded, if there is one."""

    message: Message | None = None  # type: ignore[assignment]
    data: Progress | None = None


class AgentRecord(MessageRecord, kw_only=True, gc=False):
    """A record that a source made of another agent's log."""

    copied: bool = False  # a response that is context only: no state
    interrupted: bool = False  # the note that the user stopped the agent
    fidelity: str | None = None  # of the state, where it is not ``reconstructed``


class RequestRecord(Record, kw_only=True, gc=False):
    """The envelope of an ``api-request`` or an ``api-request-blob``."""

    id: msgspec.Raw = EMPTY
    base: msgspec.Raw = EMPTY
    keep: msgspec.Raw = EMPTY
    tail: msgspec.Raw = EMPTY
    hash: msgspec.Raw = EMPTY


BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def decode_any(raw: msgspec.Raw | bytes | None) -> Any:
    """Decode an undecoded part of a record; ``None`` if it is absent or broken."""
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
    """Return a copy without spare room: orjson over-allocates up to tenfold."""
    return bytes(memoryview(data))


COMMON = frozenset({"text", "tool_use", "tool_result", "thinking", "redacted_thinking"})
decode_typed = msgspec.json.Decoder(MessageRecord).decode
_decode_message = msgspec.json.Decoder(Message).decode
_decode_record = msgspec.json.Decoder(Record).decode

#: In place of a record: the line has to be decoded object by object.
UNREADABLE = Record()


def _is_common(message: Any) -> bool:
    """Return True if a message is decoded and has only blocks of common kinds."""
    if type(message) is not Message:
        return False
    if type(content := message.content) is list:
        for block in content:
            if block.type not in COMMON:
                return False
    return True


def undecoded(line: bytes) -> Record:
    """Decode the envelope alone; :data:`UNREADABLE` if that fails too."""
    try:
        return _decode_record(line)
    except BROKEN:
        return UNREADABLE


def embedded_record(record: Record) -> Record | None:
    """Return the subagent's record that a progress record holds, with its session and folder."""
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
    """Return the decoded message of a record; ``None`` if a block is of another kind."""
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


def plain_content(message: Message) -> Any:
    """Return the content of a decoded message, its blocks as plain values."""
    content: Any = message.content
    if type(content) is not list:
        return content
    return [
        block
        if type(block) is dict  # of a source
        else {
            "type": block.type,
            "id": block.id,
            "name": block.name,
            "tool_use_id": block.tool_use_id,
            "is_error": block.is_error,
            "text": decode_any(block.text),
            "input": decode_any(block.input),
            "content": decode_any(block.content),
        }
        for block in content
    ]


REQUESTS = frozenset({"api-request", "api-request-blob"})

_TEXT_FIELDS, _FLAG_FIELDS, _RAW_FIELDS = (
    tuple(field.name for field in msgspec.structs.fields(Record) if field.type == kind)
    for kind in (str | None, bool | None, msgspec.Raw)
)
_REQUEST_FIELDS = ("id", "base", "keep", "tail", "hash")
_WIRE_NAME = {f.name: f.encode_name for f in msgspec.structs.fields(RequestRecord)}
_raw_decode = json.JSONDecoder().raw_decode
_SKIP = " \t\r\n\0"


def salvage(line: bytes) -> tuple[list[Record], bool]:
    """Decode the objects of a line one by one; also return whether the line held nothing else."""
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


_PLAIN = KNOWN_TYPES - REQUESTS
_decode_request = msgspec.json.Decoder(RequestRecord).decode


class LineStats(msgspec.Struct):
    """Counts from reading the lines of one file."""

    bytes: int = 0
    lines: int = 0
    bad_lines: int = 0
    glued_lines: int = 0
    records: int = 0
    last_line_bad: bool = False
    agent: str = ""  # whose log it is
    unknown_types: Counter[str] = msgspec.field(default_factory=Counter)


def read_records(lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:  # noqa: C901  one loop over records, for speed
    """Yield the records of a file in file order and count into ``stats``; nothing is fatal.

    The undecoded parts of a record are views of its line: read them before the next record, or
    copy them. ``lines`` are split at newline bytes, newlines kept (a binary file is such an
    iterable); ``stats`` is complete when the iterator is exhausted.
    """
    # One function, for speed: it runs for each of up to millions of lines.
    size = count = records = 0
    decode, plain, common = decode_typed, _PLAIN, COMMON
    last_line_bad = stats.last_line_bad
    record: Record
    message: Any
    try:
        for line in lines:
            if not size and line.startswith(b"\xef\xbb\xbf"):
                size, line = 3, line[3:]
            size += len(line)
            try:
                record = decode(line)
                if (message := record.message) is not None and type(message.content) is list:
                    for block in message.content:
                        if block.type not in common:
                            record = undecoded(line)
                            break
            except BROKEN:
                record = undecoded(line)
            if record is UNREADABLE:
                if not line or line.isspace():
                    continue
                count += 1
                found, clean = salvage(line)
                stats.glued_lines += clean and len(found) > 1
                stats.bad_lines += not clean
                last_line_bad = not clean and not line.endswith(b"\n")
                for record in found:
                    records += 1
                    if record.type not in KNOWN_TYPES:
                        stats.unknown_types[record.type or ""] += 1
                    yield record
                continue
            count += 1
            records += 1
            last_line_bad = False
            if record.type not in plain:
                if record.type in REQUESTS:
                    record = _decode_request(line)
                else:
                    stats.unknown_types[record.type or ""] += 1
            yield record
    finally:
        stats.last_line_bad = last_line_bad
        stats.bytes += size
        stats.lines += count
        stats.records += records


def blake(*parts: str) -> str:
    """Return BLAKE2b-128, hexadecimal, of the parts joined by NULs."""
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=16).hexdigest()


# -- what one record says ----------------------------------------------------------

UserKind = Literal[
    "tool_result",
    "compact_summary",
    "interrupt",
    "task_notification",
    "local_command",
    "meta",
    "human",
]
#: A content block, decoded to plain values.
PlainBlock = dict[str, Any]

_LOCAL_COMMAND = (
    "<command-name>",
    "<command-message>",
    "<local-command-stdout>",
    "<local-command-stderr>",
    "<local-command-caveat>",
    "<bash-input>",
    "<bash-stdout>",
    "<bash-stderr>",
    "Caveat: The messages below were generated by the user",
)


def blocks_of(content: Any) -> list[PlainBlock]:
    """Return message content as a list of blocks; a string is one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return []
    blocks: list[PlainBlock] = []
    for item in content:
        if isinstance(item, dict):
            blocks.append(item)
        elif isinstance(item, str):
            blocks.append({"type": "text", "text": item})
    return blocks


def text_of(content: Any) -> str:
    """Return string content, or the text blocks joined with newlines."""
    if isinstance(content, str):
        return content
    texts = [b.get("text") for b in blocks_of(content) if b.get("type") == "text"]
    return "\n".join(text for text in texts if isinstance(text, str))


def result_text(result: PlainBlock) -> str:
    """Return a tool result as one string; blocks that are not text become ``[type]``."""
    content = result.get("content")
    if isinstance(content, str):
        return content
    parts = [
        text_of([block]) if block.get("type") == "text" else f"[{block.get('type')}]"
        for block in blocks_of(content)
    ]
    return "\n".join(parts)


def user_kind(record: Record, content: Any) -> UserKind:
    """Classify a user record; only the start of its text counts."""
    # The markers also occur inside results of sessions that read transcripts: order matters.
    blocks = content if isinstance(content, list) else ()
    if any(isinstance(block, dict) and block.get("type") == "tool_result" for block in blocks):
        return "tool_result"
    if record.is_compact_summary:
        return "compact_summary"
    text = text_of(content).lstrip()
    if text.startswith("[Request interrupted by user") or getattr(record, "interrupted", False):
        return "interrupt"
    if text.startswith("<task-notification>"):
        return "task_notification"
    if text.startswith(_LOCAL_COMMAND):
        return "local_command"
    return "meta" if record.is_meta else "human"


def parse_time(text: str | None) -> datetime | None:
    """Parse an ISO timestamp to UTC; ``None`` if it is absent or invalid."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is UTC:
            return moment
        return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
