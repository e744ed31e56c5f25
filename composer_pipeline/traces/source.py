"""Trace sources: whose logs a file holds, and how they become records.

A source turns what a file says into the records of Claude Code (:class:`Record`): user and
assistant messages with ``tool_use`` and ``tool_result`` blocks, linked by ``parent_uuid``. All
that follows (turns, states, labels, redaction, chains) is then the same for every agent. A source
is an entry point of the group ``composer_pipeline.trace_sources``.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec
import orjson

from composer_pipeline.files import integer, mapping_at, mappings
from composer_pipeline.plugins import Registry
from composer_pipeline.traces.records import (
    AgentRecord,
    LineStats,
    Message,
    PlainBlock,
    Record,
    Usage,
    decode_any,
    encode,
    read_records,
    result_text,
)

#: Lines that a source sees to recognise a file, and the most bytes of all of them.
HEAD_LINES, HEAD_BYTES = 20, 1 << 16

#: Endings of JSON lines, plain or packed.
LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst")


class Member(NamedTuple):
    """One session of a file that holds many, such as a database."""

    name: str  #: unique in the file, and the same at each reading
    changed_ns: int  #: when it last changed, in nanoseconds since 1970
    lines: Callable[[], Iterator[bytes]]  #: its content, which is archived as JSON lines


@runtime_checkable
class TraceSource(Protocol):
    """The logs of one agent. Subclass it: only a name and the two readers have no default."""

    #: What ``sessions`` and the statistics call the agent.
    name: str
    #: Endings of the names of files that may be this agent's.
    endings: tuple[str, ...] = LINES

    def folders(self) -> list[Path]:
        """Return where the agent keeps its sessions on this machine, whether it exists or not."""
        return []

    def recognises(self, head: Sequence[bytes]) -> bool:
        """Return True if a file that begins with these lines is one of this agent's.

        Args:
            head: up to :data:`HEAD_LINES` lines, newlines kept; the last one may be cut off.
        """
        ...

    def members(self, file: Path) -> Iterator[Member] | None:
        """Yield the sessions of a file that holds many; ``None`` if a file is one session.

        Raises:
            InputError: the file cannot be read, in one sentence.
        """
        return None

    def whole(self, file: Path) -> Iterator[bytes] | None:
        """Return the lines to archive of a file that continues another one; else ``None``."""
        return None

    def records(self, lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:
        """Yield records in file order and count into ``stats``; nothing is fatal.

        Args:
            lines: the file split at newline bytes, newlines kept.
            stats: receives the counts; complete when the iterator is exhausted.
        """
        ...


class ClaudeCode(TraceSource):
    """Claude Code's own session files; also every file that no other source claims."""

    name = "claude-code"

    def folders(self) -> list[Path]:
        """Return the folder of all projects."""
        return [home("CLAUDE_CONFIG_DIR", ".claude") / "projects"]

    def recognises(self, head: Sequence[bytes]) -> bool:
        """Return True: lines that are not records are counted, never fatal."""
        return True

    def records(self, lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:
        """Yield the records, as :func:`composer_pipeline.traces.records.read_records`."""
        return read_records(lines, stats)


SOURCES: Registry[TraceSource] = Registry(
    "composer_pipeline.trace_sources",
    "trace source",
    TraceSource,  # type: ignore[type-abstract]  # a protocol to check against
    {ClaudeCode.name: ClaudeCode},
)


@cache
def sources() -> tuple[TraceSource, ...]:
    """Return the sources in the order they are tried; Claude Code is the last."""
    names = [name for name in SOURCES.names() if name != ClaudeCode.name]
    return tuple(SOURCES.get(name) for name in (*names, ClaudeCode.name))


def source_of(lines: Iterable[bytes]) -> tuple[TraceSource, Iterator[bytes]]:
    """Return whose file these are the lines of, and all of the lines."""
    rest = iter(lines)
    head: list[bytes] = []
    size = 0
    for line in islice(rest, HEAD_LINES):
        head.append(line)
        size += len(line)
        if size > HEAD_BYTES:
            break
    return next(source for source in sources() if source.recognises(head)), chain(head, rest)


def source_of_file(file: Path) -> TraceSource | None:
    """Return whose file that is not packed this is, by name and first bytes, if anybody's."""
    named = [source for source in sources() if file.name.endswith(source.endings)]
    if not named:
        return None
    try:
        with file.open("rb") as raw:
            head = raw.read(HEAD_BYTES).splitlines(keepends=True)[:HEAD_LINES]
    except OSError:
        return None
    return next((source for source in named if source.recognises(head)), None)


def read_any(lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:
    """Yield the records of a file of any source, as :func:`read_records`."""
    source, whole = source_of(lines)
    stats.agent = source.name
    return source.records(whole, stats)


# -- what sources share --------------------------------------------------------------


def home(variable: str, folder: str) -> Path:
    """Return the folder that an environment variable names, or one below the user's home."""
    given = os.environ.get(variable)
    return Path(given).expanduser() if given else Path.home() / folder


def text_or_none(value: Any) -> str | None:
    """Return a text that is not empty; ``None`` for anything else."""
    return value if isinstance(value, str) and value else None


def object_of_line(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line; ``None`` for anything else."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        value = decode_any(line.strip(b"\xef\xbb\xbf \t\r\n\0"))
    return value if isinstance(value, dict) else None


def first_object(head: Sequence[bytes]) -> dict[str, Any]:
    """Return the first object among lines; an empty one if there is none."""
    found = (object_of_line(line) for line in head)
    return next((value for value in found if value is not None), {})


def objects(lines: Iterable[bytes], stats: LineStats) -> Iterator[dict[str, Any]]:
    """Yield the object of each line; one that cannot be decoded is counted."""
    for line in lines:
        stats.bytes += len(line)
        if not line.strip():
            continue
        stats.lines += 1
        value = object_of_line(line)
        stats.last_line_bad = value is None and not line.endswith(b"\n")
        if value is None:
            stats.bad_lines += 1
            continue
        stats.records += 1
        yield value


def document(lines: Iterable[bytes], stats: LineStats) -> dict[str, Any] | None:
    """Return the one object of a file; ``None``, counted as a bad line, if it is none."""
    data = b"".join(lines)
    stats.bytes, stats.lines = len(data), 1
    value = object_of_line(data)
    if value is None:
        stats.bad_lines, stats.last_line_bad = 1, True
    else:
        stats.records = 1
    return value


Blocks = str | Sequence[PlainBlock]


def values(lines: Iterable[bytes], stats: LineStats) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file: one a line, or a single one on many lines."""
    rest = iter(lines)
    first = next(rest, b"")
    if first.strip() != b"{":
        yield from objects(chain([first], rest), stats)
    elif (value := document(chain([first], rest), stats)) is not None:
        yield value


def text_block(text: str) -> PlainBlock:
    """Return a text as a block."""
    return {"type": "text", "text": text}


def content_blocks(content: Any) -> list[PlainBlock]:
    """Return a text, or texts, pictures and sounds, as blocks; of the latter only the place."""
    parts = [{"text": content}] if content and isinstance(content, str) else mappings(content)
    return [
        text_block(part["text"]) if isinstance(part.get("text"), str) else {"type": "image"}
        for part in parts
        if isinstance(part.get("text"), str) or _MEDIA.search(str(part.get("type")))
    ]


_MEDIA = re.compile("image|audio")


def content_text(content: Any) -> str:
    """Return the same as one text."""
    return result_text({"content": content_blocks(content)})


def call_block(call_id: str, name: str, arguments: Any, *, encoded: bool = False) -> PlainBlock:
    """Return a call as a block; its arguments may be the text of a JSON object."""
    if encoded and isinstance(arguments, str):
        decoded = decode_any(arguments.encode("utf-8", "surrogatepass"))
        arguments = decoded if isinstance(decoded, dict) else arguments
    if not isinstance(arguments, dict):
        arguments = {} if arguments is None else {"input": arguments}
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result_block(call_id: str, text: Blocks, *, failed: bool = False) -> PlainBlock:
    """Return what the model was shown of a call's result as a block."""
    return {
        "type": "tool_result",
        "tool_use_id": call_id,
        "content": text,
        "is_error": True if failed else None,
    }


def total(counts: dict[str, Any], *names: str) -> int | None:
    """Return the sum of the counts that are known; ``None`` if none is."""
    known = [n for name in names if (n := integer(counts.get(name))) is not None]
    return sum(known) if known else None


class Conversation:
    """Makes the records of one log, each below the one before unless a parent is named.

    Set ``session``, ``time``, ``cwd`` and ``version`` as the log tells them, ``agent_id`` for a
    subagent and ``call`` if it is known what call started it, ``last`` (the uuid of a record,
    ``None`` for a new start) where it goes back, and ``fidelity`` where the states from here on
    are not ``reconstructed``.
    """

    def __init__(self, stats: LineStats) -> None:
        self.stats = stats
        self.session = ""
        self.agent_id: str | None = None
        self.call: str | None = None
        self.fidelity: str | None = None
        self.version: str | None = None
        self.cwd: str | None = None
        self.time: str | None = None
        self.last: str | None = None
        self._count = 0
        self._owners: dict[str, Any] = {}

    def user(self, content: Blocks, **fields: Any) -> Record:
        """Return a user's message: a prompt, results, or with ``is_meta`` what the agent adds."""
        return self._message("user", content, None, fields)

    def assistant(
        self,
        key: str,
        content: Blocks,
        *,
        model: str = "",
        tokens: tuple[int | None, int | None] = (None, None),
        copied: bool = False,
        forked: bool = False,
        **fields: Any,
    ) -> Record:
        """Return a response, or a further part of one.

        Args:
            key: its id, the same in every copy of the log and unique among all sessions.
            content: its texts and calls; thinking is left out.
            model: who answered.
            tokens: of the whole prompt, cached ones included, and of the answer.
            copied: it is only context here, and no state.
            forked: it is a copy of a response of the session that this one was forked from.
            fields: others of the record, such as its ``uuid``.
        """
        read, written = tokens
        usage = Usage(input_tokens=read, output_tokens=written)
        body = Message(id=key, model=model, usage=usage)
        if forked:
            fields["forked_from"] = msgspec.Raw(b"true")
        fields = {"copied": copied, "fidelity": self.fidelity, **fields}
        return self._message("assistant", content, body, fields)

    def snapshot(self, system: str | None, tools: Iterable[dict[str, Any]] = ()) -> Record:
        """Return the system prompt and the tools (Anthropic's form or OpenAI's) from here on."""
        given = {"type": "prompt_snapshot", "systemPrompt": system, "tools": [*map(_tool, tools)]}
        return self._record("attachment", {"attachment": msgspec.Raw(encode(given))})

    def interrupt(self, text: str = "[Request interrupted by user]") -> Record:
        """Return the note that the user stopped the agent; ``text`` is what the model saw of it."""
        return self.user(text, interrupted=True)

    def stopped(self, after: str | None, content: Blocks) -> Iterator[Record]:
        """Yield, beside the path, that the user stopped the agent after a record and said this.

        For agents whose model does not see that it was stopped; the prompt itself comes next.
        """
        here, self.last = self.last, after
        yield self.interrupt()
        yield self.user(content)
        self.last = here

    def compaction(self, kept: Sequence[str] = (), below: str = "") -> Record:
        """Begin a new context: what comes next has no record before it.

        Args:
            kept: uuids of records that stay in the context, in their order.
            below: uuid of the record of the new context that they come after.
        """
        self.last = None
        fields: dict[str, Any] = {"subtype": "compact_boundary"}
        if kept:
            metadata = {"preservedMessages": {"anchorUuid": below, "uuids": list(kept)}}
            fields["compact_metadata"] = msgspec.Raw(encode(metadata))
        return self._record("system", fields)

    def cleared(self, call_ids: Iterable[str]) -> Record:
        """Return the note that from here on the results of these calls are not shown any more."""
        metadata = msgspec.Raw(encode({"compactedToolIds": list(call_ids)}))
        fields = {"subtype": "microcompact_boundary", "microcompact_metadata": metadata}
        return self._record("system", fields)

    def call_id(self, given: Any, owner: Any) -> str:
        """Return a call's id, made distinct where another response (its owner) has used it."""
        first = self._owners.setdefault(str(given), owner)
        return str(given) if first == owner else f"{given}:{owner}"

    def unknown(self, kind: Any) -> None:
        """Count something that this reader does not know."""
        self.stats.unknown_types[f"{self.stats.agent}/{kind}"] += 1

    def _message(
        self, kind: str, content: Blocks, body: Message | None, fields: dict[str, Any]
    ) -> Record:
        body = body or Message()
        blocks: list[Any] = [text_block(content)] if isinstance(content, str) else [*content]
        body.content = blocks  # plain ones: see plain_content
        return self._record(kind, {"message": body, **fields})

    def _record(self, kind: str, fields: dict[str, Any]) -> Record:
        self._count += 1
        uuid = fields.pop("uuid", None) or f"{self.session}:{self.agent_id or ''}:{self._count}"
        record = AgentRecord(
            type=kind,
            uuid=uuid,
            parent_uuid=fields.pop("parent_uuid", self.last),
            session_id=self.session or None,
            agent_id=self.agent_id,
            timestamp=self.time,
            version=self.version,
            cwd=self.cwd,
            is_sidechain=self.agent_id is not None,
            parent_tool_use_id=self.call,
            **fields,
        )
        self.last = uuid
        return record


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = mapping_at(tool, "function") or tool
    schema = function.get("parameters") or function.get("input_schema")
    about = {name: function.get(name) for name in ("name", "description")}
    return {**about, "input_schema": schema}
