"""Records as they are decoded: the envelope, its message, its blocks.

Belongs here: the fields that later modules read, and nothing else of a line. Does not
belong here: decoding (``traces.reading.decoding``).
"""

import msgspec

#: Record types of Claude Code 2.0 to 2.1.3xx that are met in practice.
KNOWN_TYPES = frozenset(
    (
        "user",
        "assistant",
        "system",
        "progress",
        "attachment",
        "summary",
        "file-history-snapshot",
        "queue-operation",
        "pr-link",
        "last-prompt",
        "mode",
        "permission-mode",
        "ai-title",
        "custom-title",
        "tag",
        "worktree-state",
        "api-request",
        "api-request-shape",
        "api-request-blob",
        "content-replacement",
    )
)

#: An undecoded part that the line lacks. (msgspec has no optional ``Raw``.)
EMPTY = msgspec.Raw()


class Record(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """The envelope of one record.

    Fields that a line lacks or spoils are ``None``, undecoded ones :data:`EMPTY`.
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
    """What a progress record tells; that of a subagent holds one of its records."""

    type: str | None = None
    agent_id: str | None = None
    message: msgspec.Raw = EMPTY


class MessageRecord(Record, kw_only=True, gc=False):
    """An envelope whose message, if there is one, is decoded."""

    message: Message | None = None  # type: ignore[assignment]
    data: Progress | None = None


class RequestRecord(Record, kw_only=True, gc=False):
    """The envelope of an ``api-request`` or an ``api-request-blob``."""

    id: msgspec.Raw = EMPTY
    base: msgspec.Raw = EMPTY
    keep: msgspec.Raw = EMPTY
    tail: msgspec.Raw = EMPTY
    hash: msgspec.Raw = EMPTY
