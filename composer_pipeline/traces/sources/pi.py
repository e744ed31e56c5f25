"""The sessions of Pi: a tree of entries, one a line.

A prefix is what Pi makes of the path to a response: ``buildSessionContext``, ``convertToLlm`` and
``transformMessages`` of its source. Later versions of the format are read as far as they are known.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from composer_pipeline.files import mapping_at, mappings
from composer_pipeline.traces.records import LineStats, Record
from composer_pipeline.traces.source import (
    Conversation,
    TraceSource,
    call_block,
    content_blocks,
    first_object,
    home,
    objects,
    result_block,
    text_block,
    text_or_none,
    total,
)

Item = dict[str, Any]

#: The newest version of the format that this reader knows.
VERSION = 3

SUMMARY = (
    "The conversation history before this point was compacted into the following summary:"
    "\n\n<summary>\n{}\n</summary>"
)
BRANCH_SUMMARY = (
    "The following is a summary of a branch that this conversation came back from:"
    "\n\n<summary>\n{}</summary>"
)
#: What the model sees for a call that nothing answered.
NO_RESULT = "No result provided"

#: The ``custom`` entries that hold a recorded system prompt and tools.
SYSTEM_PROMPT, TOOLS = "teich-system-prompt", "teich-available-tools"

# Entries that the model does not see.
_SILENT = frozenset({"model_change", "thinking_level_change", "label", "session_info"})


class _Place(NamedTuple):
    """What the path to an entry ends with."""

    last: str | None = None  # its last record
    before: str | None = None  # the record before its last response
    turn: tuple[Item, ...] = ()  # the entry of its last response, and those of the results
    stopped: str | None = None  # the record that the user interrupted just before


class _Session:
    """The conversation of one file, entry by entry."""

    def __init__(self, stats: LineStats) -> None:
        self.conv = Conversation(stats)
        self.at = _Place()
        self.places: dict[Any, _Place] = {}
        self.path: dict[Any, tuple[Any, Item]] = {}  # an entry's parent, and the entry
        self.forked = ""  # when a fork began: entries before it are copies
        self._answered: set[str] = set()
        self._count = 0

    def take(self, entry: Item) -> Iterator[Record]:
        """Take one line; yield its records."""
        number, self._count = self._count, self._count + 1
        kind = text_or_none(entry.get("type"))
        if kind == "session":
            self._header(entry)
            return
        # Version 1 has no ids: each entry follows the one before it.
        name, parent = entry.setdefault("id", number), entry.get("parentId", number - 1)
        if not isinstance(name, str | int) or name in self.path:
            self.conv.unknown(f"id of {kind}")
            return
        parent = parent if isinstance(parent, str | int) and parent in self.path else None
        self.path[name] = parent, entry
        self.at = self.places.get(parent, _Place())
        self.conv.last = self.at.last
        self.conv.time = text_or_none(entry.get("timestamp")) or self.conv.time
        if kind == "compaction":
            yield from self._compaction(name, entry)
        else:
            yield from self._entry(entry)
        self.places[name] = self.at._replace(last=self.conv.last)

    def _header(self, header: Item) -> None:
        conv, source = self.conv, mapping_at(header, "source")
        conv.session = (
            text_or_none(source.get("session_id")) or text_or_none(header.get("id")) or ""
        )
        conv.agent_id = text_or_none(source.get("agent_id"))
        conv.cwd = text_or_none(header.get("cwd"))
        conv.time = text_or_none(header.get("timestamp"))
        if "parentSession" in header and not source:
            self.forked = conv.time or ""
        if isinstance(version := header.get("version", 1), int) and version > VERSION:
            conv.unknown(f"version {version}")

    def _entry(self, entry: Item, copy: str = "") -> Iterator[Record]:
        """Yield the records of what an entry adds to a path; ``copy`` marks those of another."""
        kind, message = text_or_none(entry.get("type")), mapping_at(entry, "message")
        if kind == "message":
            yield from self._message(entry, message, copy)
        elif kind == "custom_message":
            yield from self._context(content_blocks(entry.get("content")))
        elif kind == "branch_summary":
            if summary := text_or_none(entry.get("summary")):
                yield from self._context([text_block(BRANCH_SUMMARY.format(summary))])
        elif kind == "custom":
            if not copy:
                yield from self._recorded(entry.get("customType"), mapping_at(entry, "data"))
        elif kind not in _SILENT and kind != "compaction" and not copy:
            self.conv.unknown(kind)

    def _message(self, entry: Item, message: Item, copy: str) -> Iterator[Record]:
        role = text_or_none(message.get("role"))
        if role == "user":
            yield from self._prompt(content_blocks(message.get("content")))
        elif role == "assistant":
            yield from self._response(entry, message, copy)
        elif role == "toolResult":
            yield from self._result(entry, message, copy)
        elif role == "bashExecution":
            if message.get("excludeFromContext") is not True:
                yield from self._context([text_block(_bash_text(message))])
        elif role in ("custom", "hookMessage"):
            yield from self._context(content_blocks(message.get("content")))
        elif not copy:
            self.conv.unknown(f"message/{role}")

    def _prompt(self, blocks: list[Item]) -> Iterator[Record]:
        yield from self._settled()
        if stopped := self.at.stopped:
            yield from self.conv.stopped(stopped, blocks)
        self.at = _Place()
        yield self.conv.user(blocks)

    def _context(self, blocks: list[Item]) -> Iterator[Record]:
        yield from self._settled()
        yield self.conv.user(blocks, is_meta=True)

    def _response(self, entry: Item, message: Item, copy: str) -> Iterator[Record]:
        conv, stop = self.conv, message.get("stopReason")
        blocks = self._said(entry, message)
        lost = stop in ("error", "aborted")  # no later request repeats it
        if lost and copy:
            return
        yield from self._settled()
        before = conv.last
        time = message.get("timestamp") or entry.get("timestamp")
        source = mapping_at(entry, "source")
        key = text_or_none(source.get("message_id")) or f"pi:{entry['id']}:{time}"
        copied = bool(copy) or source.get("copied") is True
        forked, error = (conv.time or "") < self.forked, stop == "error" or None
        if blocks or not lost:
            model = text_or_none(message.get("responseModel")) or text_or_none(message.get("model"))
            usage = mapping_at(message, "usage")
            read = total(usage, "input", "cacheRead", "cacheWrite")
            tokens = read, total(usage, "output")
            yield conv.assistant(
                key + copy, blocks, model=model or "", tokens=tokens, copied=copied, forked=forked,
                is_api_error_message=error,
            )  # fmt: skip
        if lost:
            stopped = conv.last if stop == "aborted" else None
            conv.last, self.at = before, self.at._replace(stopped=stopped)
        else:
            self.at = _Place(None, before, (entry,))

    def _said(self, entry: Item, message: Item) -> list[Item]:
        blocks: list[Item] = []
        for block in mappings(message.get("content")):
            if block.get("type") == "text":
                blocks += content_blocks([block])
            elif block.get("type") == "toolCall" and (call := text_or_none(block.get("id"))):
                name = text_or_none(block.get("name")) or ""
                call = self.conv.call_id(call, entry["id"])
                blocks.append(call_block(call, name, block.get("arguments")))
        return blocks

    def _result(self, entry: Item, message: Item, copy: str) -> Iterator[Record]:
        call = text_or_none(message.get("toolCallId"))
        if call is None or not self.at.turn:
            self.conv.unknown("result without a call")
            return
        call = self.conv.call_id(call, self.at.turn[0]["id"])
        self.at = self.at._replace(turn=(*self.at.turn, entry))
        if not copy:
            self._answered.add(call)
        shown, failed = content_blocks(message.get("content")), message.get("isError") is True
        yield self.conv.user([result_block(call, shown, failed=failed)])

    def _settled(self) -> Iterator[Record]:
        """Answer the calls of the last response that have no result on this path, as Pi does."""
        if not self.at.turn:
            return
        first, *results = self.at.turn
        blocks = self._said(first, mapping_at(first, "message"))
        given = [mapping_at(result, "message").get("toolCallId") for result in results]
        shown = {self.conv.call_id(call, first["id"]) for call in given if isinstance(call, str)}
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        missing = [call for call in calls if call not in shown]
        if missing and not self._answered.isdisjoint(missing):  # answered on another branch
            self.conv.last, self.at = self.at.before, _Place()
            for entry in (first, *results):
                yield from self._entry(entry, f":{self._count}")
        self.at = self.at._replace(turn=())
        if missing:
            self._answered.update(missing)
            yield self.conv.user([result_block(call, NO_RESULT, failed=True) for call in missing])

    def _compaction(self, name: Any, entry: Item) -> Iterator[Record]:
        """Begin anew with the summary and the entries that the compaction kept."""
        kept: list[Item] = []
        first = entry.get("firstKeptEntryId", entry.get("firstKeptEntryIndex"))
        at, _ = self.path[name]
        while at is not None:
            parent, item = self.path[at]
            kept.append(item)
            if at == first:
                break
            at = parent
        summary = text_or_none(entry.get("summary")) or ""
        if mapping_at(entry, "source").get("verbatim") is not True:
            summary = SUMMARY.format(summary)
        self.at = _Place()
        yield self.conv.compaction()
        yield self.conv.user(summary, is_compact_summary=True)
        for item in reversed(kept if at is not None else []):
            yield from self._entry(item, f":{name}")

    def _recorded(self, kind: Any, data: Item) -> Iterator[Record]:
        if kind == SYSTEM_PROMPT and (system := text_or_none(data.get("systemPrompt"))):
            yield self.conv.snapshot(system)
        elif kind == TOOLS and (tools := mappings(data.get("tools"))):
            yield self.conv.snapshot(None, tools)


def _bash_text(message: Item) -> str:
    """Return what the model sees of a command that the user ran."""
    output, code = message.get("output"), message.get("exitCode")
    text = f"Ran `{message.get('command')}`\n"
    text += f"```\n{output}\n```" if output else "(no output)"
    if message.get("cancelled") is True:
        text += "\n\n(command cancelled)"
    elif code:
        text += f"\n\nCommand exited with code {code}"
    if message.get("truncated") is True and message.get("fullOutputPath"):
        text += f"\n\n[Output truncated. Full output: {message['fullOutputPath']}]"
    return text


class Pi(TraceSource):
    """The sessions of Pi, and what :mod:`composer_pipeline.exporting.pi` wrote."""

    name = "pi"

    def folders(self) -> list[Path]:
        """Return the folder of all sessions."""
        folder = home("PI_CODING_AGENT_DIR", ".pi/agent") / "sessions"
        return [home("PI_CODING_AGENT_SESSION_DIR", str(folder))]

    def recognises(self, head: Sequence[bytes]) -> bool:
        """Return True if the first line that is an object is the header of a session."""
        first = first_object(head)
        named = all(text_or_none(first.get(name)) for name in ("id", "timestamp", "cwd"))
        return first.get("type") == "session" and named

    def records(self, lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:
        """Yield the conversation as records; an undecodable line is counted."""
        session = _Session(stats)
        for entry in objects(lines, stats):
            yield from session.take(entry)
