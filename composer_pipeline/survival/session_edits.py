"""The edits of a session, from its raw bytes: which lines each added, where and when.

The lines stay in memory: they are not redacted, and only counts of them are stored. Of a session
file of Claude Code only the lines that an edit is about are decoded.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from composer_pipeline.actions import ToolCall
from composer_pipeline.files import mapping_at, mappings
from composer_pipeline.tool_names import EDITS, changes_of, translate
from composer_pipeline.traces.records import (
    AgentRecord,
    LineStats,
    Record,
    message_of,
    parse_time,
    plain_content,
)
from composer_pipeline.traces.source import ClaudeCode, object_of_line, source_of

#: A line is followed from this many bytes on, if so many of them are letters or digits.
MIN_BYTES, MIN_WORD = 10, 6

#: Lines above and below that a formatter may have joined with one.
NEAR = 12

_WORD = re.compile(rb"[0-9A-Za-z\x80-\xff]")


class Region(NamedTuple):
    """Where an edit put its text, as whole lines, and the lines around it.

    The outermost line on either side occurs once in the file; the ones between are context.
    """

    above: tuple[bytes, ...]
    below: tuple[bytes, ...]
    text: str
    head: str  # of the text, what stands before the new string on its first line
    tail: str


#: Lines that are looked at on either side for one that occurs once.
_CONTEXT = 8


class Edit(msgspec.Struct, gc=False):
    """What one call added to one file."""

    message_id: str
    session_id: str
    call_id: str
    path: str
    time: float  # seconds since 1970, of the result
    lines: tuple[bytes, ...]  # followed ones, stripped, in their order
    places: tuple[int, ...]  # of each in `text`
    text: tuple[bytes, ...]  # the new text from a little above the first to below the last
    removed: frozenset[bytes]
    branch: str = ""
    region: Region | None = None
    whole: bool = False  # a file was written, and what it held before is not recorded


class SessionEdits(msgspec.Struct, gc=False):
    """The edits of one session file, the commits that its output names, the user's messages."""

    edits: list[Edit]
    commits: list[tuple[float, str]]  # time and abbreviated hash
    prompts: list[float]  # times


class _Call(msgspec.Struct, gc=False):
    message_id: str
    id: str
    steps: list[ToolCall]
    folder: str
    branch: str


class _Result(NamedTuple):
    call_id: str
    failed: bool
    time: float
    original: str | None  # the file before, if that is known; empty for a new file


_Item = _Call | _Result | float
_COMMITTED = re.compile(rb"\[[^\[\]\\\n]{1,200}? ([0-9a-f]{7,40})\] ")
_RESULT_ID = re.compile(rb'"tool_use_id"\s*:\s*"([^"]*)"')
_CALL_MARKS = (b'"Edit"', b'"MultiEdit"', b'"Write"')


def session_edits(lines: Iterable[bytes], session_id: str) -> SessionEdits:
    """Read the edits of one session file of any source."""
    source, every = source_of(lines)
    found, calls = SessionEdits([], [], []), dict[str, _Call]()
    items = (
        _claude_items(every, found.commits)
        if isinstance(source, ClaudeCode)
        else _record_items(source.records(every, LineStats()))
    )
    for item in items:
        if isinstance(item, float):
            found.prompts.append(item)
        elif isinstance(item, _Result):
            if (call := calls.pop(item.call_id, None)) is not None and not item.failed:
                found.edits += _edits_of(call, item, session_id)
        else:
            calls[item.id] = item
    return found


# -- records to calls and results ---------------------------------------------------


def _claude_items(lines: Iterable[bytes], commits: list[tuple[float, str]]) -> Iterator[_Item]:
    """Yield the items of a session file of Claude Code; commits in its output go to a list."""
    waiting: set[bytes] = set()
    for line in lines:
        is_call = b'"tool_use"' in line and any(mark in line for mark in _CALL_MARKS)
        is_result = b'"tool_result"' in line
        committed = is_result and b" changed" in line and _COMMITTED.search(line)
        is_prompt = not is_result and b'"user"' in line and b'"isMeta":true' not in line
        awaited = is_result and bool(waiting) and not waiting.isdisjoint(_result_ids(line))
        if not (is_call or committed or is_prompt or awaited):
            continue
        record = _decoded(line)
        if record is None:
            continue
        if committed:
            when = _seconds(record.get("timestamp"))
            commits += [(when, one.decode()) for one in _COMMITTED.findall(line)]
        for item in _items_of(record):
            if isinstance(item, _Call):
                waiting.add(item.id.encode())
            yield item


def _result_ids(line: bytes) -> Iterator[bytes]:
    """Yield the ids of the calls that a line has results of."""
    at = line.find(b'"tool_use_id"')
    while at >= 0:
        if found := _RESULT_ID.match(line, at):
            yield found[1]
        at = line.find(b'"tool_use_id"', at + 1)


def _decoded(line: bytes) -> dict[str, Any] | None:
    record = object_of_line(line)
    inner = mapping_at(mapping_at(record, "data"), "message")
    if record is not None and record.get("type") == "progress" and inner:  # a subagent's record
        return {**inner, "cwd": record.get("cwd"), "gitBranch": record.get("gitBranch")}
    return record


def _items_of(record: dict[str, Any]) -> Iterator[_Item]:
    """Yield the calls of a response, or the results or the time of a user's message."""
    message, kind = mapping_at(record, "message"), record.get("type")
    content = message.get("content")
    blocks = mappings(content)
    if kind == "assistant":
        folder, branch = str(record.get("cwd") or ""), str(record.get("gitBranch") or "")
        for block in blocks:
            given, name = block.get("input"), str(block.get("name"))
            if block.get("type") != "tool_use" or not isinstance(given, dict):
                continue
            steps = [s for s in translate(ToolCall(name, given)) if s.name in EDITS]
            if steps:
                yield _Call(str(message.get("id")), str(block.get("id")), steps, folder, branch)
    elif kind == "user":
        now, results = _seconds(record.get("timestamp")), False
        about = record.get("toolUseResult")
        for block in blocks:
            if block.get("type") == "tool_result":
                results, failed = True, block.get("is_error") is True or isinstance(about, str)
                yield _Result(str(block.get("tool_use_id")), failed, now, _original(about))
        context = record.get("isMeta") or record.get("isCompactSummary")
        if not results and content and not context:
            yield now


def _original(about: Any) -> str | None:
    if not isinstance(about, dict):
        return None
    original = about.get("originalFile")
    if isinstance(original, str):
        return original
    return "" if about.get("type") == "create" else None


def _record_items(records: Iterable[Record]) -> Iterator[_Item]:
    """Yield the items of another source's records, each response once."""
    for record in records:
        if isinstance(record, AgentRecord) and record.copied:
            continue
        message = message_of(record)
        body = {"id": message.id, "content": plain_content(message)} if message else None
        given = {"type": record.type, "message": body, "timestamp": record.timestamp,
                 "cwd": record.cwd, "isMeta": record.is_meta,
                 "isCompactSummary": record.is_compact_summary}  # fmt: skip
        yield from _items_of(given)


def _seconds(timestamp: Any) -> float:
    """Return a record's time as seconds since 1970; 0 without one."""
    moment = parse_time(timestamp) if isinstance(timestamp, str) else None
    return moment.timestamp() if moment else 0.0


# -- calls to edits -----------------------------------------------------------------


def _edits_of(call: _Call, result: _Result, session_id: str) -> Iterator[Edit]:
    for step in call.steps:
        path = str(step.arguments.get("file_path") or "")
        if path and call.folder and not path.startswith(("/", "~")):
            path = f"{call.folder}/{path}"
        old, new, region = _texts(step, result.original)
        lines, places, text, removed = _added(old, new)
        if lines or removed:
            yield Edit(
                call.message_id, session_id, call.id, path, result.time, lines, places, text,
                removed, call.branch, region,
                step.name == "Write" and result.original is None,
            )  # fmt: skip


def _texts(step: ToolCall, original: str | None) -> tuple[str, str, Region | None]:
    """Return old text, new text and region of an edit."""
    given = step.arguments
    if step.name == "Write":
        return original or "", str(given.get("content") or ""), None
    changes = [(str(e.get("old_string") or ""), str(e.get("new_string") or ""),
                bool(e.get("replace_all"))) for e in changes_of(given)]  # fmt: skip
    if original is None:
        return "\n".join(c[0] for c in changes), "\n".join(c[1] for c in changes), None
    text = original
    for old, new, everywhere in changes:
        text = text.replace(old, new, -1 if everywhere else 1) if old else new + text
    region = _region(original, text, changes[0]) if len(changes) == 1 else None
    return original, text, region


def _region(before: str, text: str, change: tuple[str, str, bool]) -> Region | None:
    """Return the place of a single replacement between two lines that occur once in the file."""
    old, new, everywhere = change
    at = before.find(old) if old else -1
    if at < 0 or everywhere:
        return None
    begin = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at + len(new))
    end = len(text) if end < 0 else end
    every = Counter(line.strip() for line in text.encode("utf-8", "replace").split(b"\n"))
    above = _context(reversed(text[:begin].split("\n")[:-1]), every)
    below = _context(text[end + 1 :].split("\n"), every)
    if not above or not below:
        return None
    last = at + len(new)
    return Region(tuple(reversed(above)), below, text[begin:end], text[begin:at], text[last:end])


def _context(lines: Iterable[str], every: Counter[bytes]) -> tuple[bytes, ...]:
    """Return the lines up to the first that occurs once and can be found again."""
    found: list[bytes] = []
    for line in islice(lines, _CONTEXT):
        found.append(line.strip().encode("utf-8", "replace"))
        if every[found[-1]] == 1 and len(found[-1]) >= 4:
            return tuple(found)
    return ()


_Lines = tuple[bytes, ...]


def _added(old: str, new: str) -> tuple[_Lines, tuple[int, ...], _Lines, frozenset[bytes]]:
    """Return the lines that a change added, their places in the new text, it, and those removed."""
    before = set(map(bytes.strip, old.encode("utf-8", "replace").split(b"\n")))
    after = list(map(bytes.strip, new.encode("utf-8", "replace").split(b"\n")))
    removed = frozenset(filter(_is_followed, before.difference(after)))
    fresh = {line for line in set(after).difference(before) if _is_followed(line)}
    if not fresh:
        return (), (), (), removed
    places: dict[bytes, int] = {}
    for at, line in enumerate(after):
        if line in fresh:
            places.setdefault(line, at)
    first = max(0, min(places.values()) - NEAR)
    text = tuple(after[first : max(places.values()) + NEAR + 1])
    return tuple(places), tuple(at - first for at in places.values()), text, removed


def _is_followed(line: bytes) -> bool:
    """Return True if a stripped line says enough to be found again."""
    return len(line) >= MIN_BYTES and len(_WORD.findall(line)) >= MIN_WORD
