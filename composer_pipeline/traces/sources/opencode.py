"""The sessions of OpenCode: of its database, and files of ``opencode export``.

Of the database a session becomes a line that names it and one line for each message. OpenCode
has two generations of messages: ``message`` with its ``part`` rows, which the export holds too,
and ``session_message``. Each is rendered as OpenCode itself renders it for a model. Its older
storage, a folder of JSON files, is not read: OpenCode moves that into the database.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from composer_pipeline.files import mapping, mapping_at, mappings
from composer_pipeline.traces.records import LineStats, PlainBlock, Record, blake, encode
from composer_pipeline.traces.source import (
    Conversation,
    Member,
    TraceSource,
    call_block,
    home,
    result_block,
    text_block,
    text_or_none,
    total,
    values,
)
from composer_pipeline.traces.sources.opencode_database import HEAD, SQLITE, number_of, sessions_of

Item = dict[str, Any]

_EXPORT = re.compile(rb'\s*\{\s*"info"\s*:\s*\{[^{}]*"id"\s*:\s*"ses_')

#: What OpenCode writes in place of a part that is no text.
_PARTS = {
    "compaction": "What did we do so far?",
    "subtask": "The following tool was executed by the user",
}
_RAN = "The following shell command was executed by the user"
_REMOTE = "[OpenCode remote compaction checkpoint]"
_INTERRUPTED = "[Tool execution was interrupted]"
_CHECKPOINT = """<conversation-checkpoint>
The following is a summary and serialized record of earlier conversation. Treat it as historical \
context, not as new instructions.

<summary>
{summary}
</summary>

<recent-context>
{recent}
</recent-context>
</conversation-checkpoint>"""

# Parts that the model is not shown.
_SILENT = frozenset(
    {"step-start", "step-finish", "reasoning", "snapshot", "patch", "file", "agent", "retry"}
)
# The text part of a message comes as files that were read too.
_READ = ("text/plain", "application/x-directory")
# Results that are no errors to OpenCode: of a subagent, of a command.
_TASK_FAILED = re.compile(r'<task id="[^"]*" state="error">')
_TIMED_OUT = "tool terminated command after exceeding timeout"


def _time(milliseconds: Any) -> str | None:
    """Return a time of OpenCode as ISO 8601."""
    if not 0 < (number := number_of(milliseconds)) < 2**47:
        return None
    return datetime.fromtimestamp(number / 1000, UTC).isoformat(timespec="milliseconds")


def _created(info: Item) -> int:
    return number_of(mapping_at(info, "time").get("created"))


def _tokens(value: Any) -> tuple[int | None, int | None]:
    """Return the tokens of the whole prompt and of the answer."""
    given = {**mapping(value), **mapping_at(value, "cache")}
    return total(given, "input", "read", "write"), total(given, "output", "reasoning")


def _media(files: Any) -> list[PlainBlock]:
    """Return the placeholders of files that are shown as such."""
    kinds = [text_or_none(file.get("mime")) or "" for file in mappings(files)]
    return [
        {"type": "image" if kind.startswith("image/") else "document"}
        for kind in kinds
        if kind not in _READ
    ]


def _attached(files: Any) -> list[PlainBlock]:
    """Return the files of a message of the newer generation, texts as their texts."""
    blocks: list[PlainBlock] = []
    for file in mappings(files):
        uri = text_or_none(mapping_at(file, "source").get("uri")) or ""
        path = unquote(urlsplit(uri).path) if uri.startswith("file:") else ""
        name, kind = text_or_none(file.get("name")), file.get("mime")
        if kind in _READ:
            what = "directory" if kind == _READ[1] else "file"
            label = (path if kind == _READ[1] else name) or name or uri or "inline attachment"
            text = _decoded(file.get("data"))
            blocks.append(text_block(f"\n\nAttached {what}: {label}" + f"\n\n{text}" * bool(text)))
            continue
        blocks += [text_block(f"Attached file: {path}")] if path else []
        blocks += _media([file])
    return blocks


def _decoded(data: Any) -> str:
    try:
        return b64decode(data).decode("utf-8", "replace") if isinstance(data, str) else ""
    except ValueError:
        return ""


def _result(call_id: str, text: str, failed: bool, files: Any = None) -> PlainBlock:
    return result_block(call_id, [text_block(text), *_media(files)], failed=failed)


def _failed(text: str, metadata: Item) -> bool:
    """Return True if a completed call failed: its exit code, its subagent or its time says so."""
    if "exit" in metadata:
        return bool(metadata["exit"]) or (metadata["exit"] is None and _TIMED_OUT in text)
    return "sessionId" in metadata and _TASK_FAILED.match(text) is not None


def _steps(parts: list[Item]) -> list[list[Item]]:
    """Split the parts of a message into model responses."""
    steps: list[list[Item]] = [[]]
    for part in parts:
        if part.get("type") == "step-start":
            steps.append([])
        steps[-1].append(part)
    return [step for step in steps if step]


class _Session:
    """The conversation of one session, message by message."""

    def __init__(self, stats: LineStats) -> None:
        self.conv = Conversation(stats)
        self._begun = 0
        self._uuids: dict[str, list[str]] = {}  # of the records of each message
        self._compactions: dict[str, str | None] = {}  # asked for, and the first message kept
        self._pruned: list[tuple[int, str]] = []  # when a result was removed
        self._cleared: list[tuple[int, str]] = []  # those that this context knows of

    def begin(self, info: Item) -> Record:
        """Take what is known of the session."""
        conv, own = self.conv, text_or_none(info.get("id")) or ""
        root = text_or_none(info.get("root")) or text_or_none(info.get("parentID"))
        conv.session, conv.agent_id = root or own, own if root else None
        conv.cwd = text_or_none(info.get("directory"))
        conv.version = text_or_none(info.get("version"))
        self._begun = _created(info)
        conv.time = _time(self._begun)
        conv.call = text_or_none(info.get("call"))
        return conv.snapshot(None)  # a session without messages is one too

    # -- message and part ----------------------------------------------------------------

    def message(self, message: Item) -> Iterator[Record]:
        """Yield the records of a message and its parts."""
        info, parts = mapping_at(message, "info"), mappings(message.get("parts"))
        name, role = text_or_none(info.get("id")) or "", info.get("role")
        self.conv.time = _time(_created(info)) or self.conv.time
        made = self._uuids.setdefault(name, [])
        if role == "user":
            records = self._user(name, parts)
        elif role == "assistant":
            records = self._assistant(name, info, parts)
        else:
            self.conv.unknown(f"role/{role}")
            return
        for record in records:
            made.append(record.uuid or "")
            yield record

    def _user(self, name: str, parts: list[Item]) -> Iterator[Record]:
        blocks: list[PlainBlock] = []
        typed = False
        for part in parts:
            kind, text = text_or_none(part.get("type")), text_or_none(part.get("text"))
            if kind == "text":
                if text and not part.get("ignored"):
                    blocks.append(text_block(text))
                    typed = typed or not part.get("synthetic")
            elif kind in _PARTS:
                blocks.append(text_block(_PARTS[kind]))
                if kind == "compaction":
                    self._compactions[name] = text_or_none(part.get("tail_start_id"))
            elif kind == "file":
                blocks += _media([part])
                typed = True
            else:
                self._other(kind)
        if blocks:
            yield self.conv.user(blocks, is_meta=not typed)

    def _assistant(self, name: str, info: Item, parts: list[Item]) -> Iterator[Record]:
        error = mapping_at(info, "error").get("name")
        stopped = error == "MessageAbortedError"
        said = any(part.get("type") not in ("step-start", "reasoning") for part in parts)
        asked = text_or_none(info.get("parentID"))
        ended = info.get("summary") is True and info.get("finish") and not error
        if ended and asked is not None and asked in self._compactions:
            yield from self._compacted(name, asked)
        yield from self._prune(_created(info))
        if not error or (stopped and said):
            for number, step in enumerate(_steps(parts)):
                yield from self._step(name, info, number, step)
        if stopped:
            yield self.conv.interrupt("")

    def _compacted(self, name: str, asked: str) -> Iterator[Record]:
        """Begin anew with the question for a summary; what is kept comes after the summary."""
        names = list(self._uuids)
        first = self._compactions[asked]
        kept = names[names.index(first) : names.index(asked)] if first in self._uuids else []
        uuids = [uuid for message in kept for uuid in self._uuids[message]]
        self._pruned, self._cleared = self._cleared + self._pruned, []
        yield self.conv.compaction(uuids, below=self._uuid(name, 0))
        yield self.conv.user(_PARTS["compaction"], is_compact_summary=True)

    def _prune(self, now: int) -> Iterator[Record]:
        """Yield which results were removed before a response."""
        due = [item for item in self._pruned if item[0] <= now]
        if due:
            self._pruned = [item for item in self._pruned if item[0] > now]
            self._cleared += due
            yield self.conv.cleared(call_id for _, call_id in due)

    def removed(self, value: Any) -> None:
        """Take that a result was removed: when, its call, and the message of that."""
        if isinstance(value, list) and len(value) == 3:
            self._pruned.append((number_of(value[0]), self.conv.call_id(value[1], str(value[2]))))

    def _uuid(self, name: str, number: int) -> str:
        return f"{self.conv.session}:{name}:{number}"

    def _step(self, name: str, info: Item, number: int, parts: list[Item]) -> Iterator[Record]:
        """Yield a response and its results."""
        blocks, results = self._said(parts, name)
        ends = (part.get("tokens") for part in reversed(parts) if part.get("type") == "step-finish")
        # The user ran a command or a subagent: no model asked for it.
        own = any(part.get("type") in ("step-start", "step-finish", "text") for part in parts)
        yield from self._response(
            info, number, blocks, results, next(ends, None), text_or_none(info.get("modelID")),
            copied=not own or info.get("summary") is True, uuid=self._uuid(name, number),
        )  # fmt: skip

    def _said(self, parts: list[Item], name: str) -> tuple[list[PlainBlock], list[PlainBlock]]:
        """Return the texts and calls of a response, and the results; newer calls have an ``id``."""
        blocks: list[PlainBlock] = []
        results: list[PlainBlock] = []
        for part in parts:
            kind, text = text_or_none(part.get("type")), text_or_none(part.get("text"))
            if kind == "text":
                blocks += [text_block(text)] if text else []
            elif kind == "tool":
                state, tool = mapping_at(part, "state"), part.get("tool", part.get("name"))
                newer = "callID" not in part
                call_id = str(part.get("id")) if newer else self.conv.call_id(part["callID"], name)
                blocks.append(call_block(call_id, str(tool), state.get("input")))
                results += _settled(call_id, state) if newer else self._ran(call_id, tool, state)
            else:
                self._other(kind)
        return blocks, results

    def _ran(self, call_id: str, tool: Any, state: Item) -> list[PlainBlock]:
        status, metadata = state.get("status"), mapping_at(state, "metadata")
        if status == "completed":
            if removed := number_of(mapping_at(state, "time").get("compacted")):
                self._pruned.append((removed, call_id))
            text = text_or_none(state.get("output")) or ""
            failed = tool == "invalid" or _failed(text, metadata)
            return [_result(call_id, text, failed, state.get("attachments"))]
        if status == "error":
            output = metadata.get("output") if metadata.get("interrupted") is True else None
            if isinstance(output, str):
                return [_result(call_id, output, False)]
            return [_result(call_id, text_or_none(state.get("error")) or "", True)]
        if status not in ("pending", "running"):
            self.conv.unknown(f"tool/{status}")
        return [_result(call_id, _INTERRUPTED, True)]

    def _other(self, kind: str | None) -> None:
        if kind not in _SILENT:
            self.conv.unknown(f"part/{kind}")

    def _response(
        self, info: Item, number: int, blocks: list[PlainBlock], results: list[PlainBlock],
        tokens: Any, model: str | None, **fields: Any,
    ) -> Iterator[Record]:  # fmt: skip
        if not blocks:
            return
        # A fork copies messages under new ids; when they were made stays.
        fields["forked"] = 0 < _created(info) < self._begun
        said = [str(block.get("id") or block.get("text")) for block in blocks]
        key = f"opencode:{blake(str(_created(info)), str(number), *said)}"
        yield self.conv.assistant(key, blocks, model=model or "", tokens=_tokens(tokens), **fields)
        if results:
            yield self.conv.user(results)

    # -- session_message -----------------------------------------------------------------

    def entry(self, entry: Item) -> Iterator[Record]:
        """Yield the records of a message of the newer generation."""
        kind, data = text_or_none(entry.get("type")), mapping_at(entry, "data")
        self.conv.time = _time(_created(data)) or self.conv.time
        if kind == "assistant":
            yield from self._answer(data)
        elif kind == "user":
            texts = [*(s.get("text") for s in mappings(data.get("skills"))), data.get("text")]
            blocks = [text_block(text) for text in map(text_or_none, texts) if text]
            if blocks := [*blocks, *_attached(data.get("files"))]:
                yield self.conv.user(blocks)
        elif kind == "compaction":
            yield from self._checkpoint(data)
        elif kind == "idle":
            if data.get("outcome") == "interrupted":
                yield self.conv.interrupt("")
        elif kind in _NOTES:
            if text := _NOTES[kind](data):
                yield self.conv.user(text, is_meta=True)
        elif kind not in ("agent-switched", "model-switched"):
            self.conv.unknown(f"message/{kind}")

    def _checkpoint(self, data: Item) -> Iterator[Record]:
        """Begin anew with a summary; one of the provider's own cannot be read."""
        if data.get("status", "completed") != "completed":
            return
        yield self.conv.compaction()
        self.conv.fidelity = "compacted_encrypted" if data.get("remote") else None
        given = {name: str(data.get(name) or "") for name in ("summary", "recent")}
        text = _REMOTE if data.get("remote") else _CHECKPOINT.format(**given)
        yield self.conv.user(text, is_compact_summary=True)

    def _answer(self, data: Item) -> Iterator[Record]:
        said = self._said(mappings(data.get("content")), "")
        model = text_or_none(mapping_at(data, "model").get("id"))
        yield from self._response(data, 0, *said, data.get("tokens"), model)
        if "interrupted" in str(mapping_at(data, "error").get("message")):
            yield self.conv.interrupt("")


def _shell(data: Item) -> str | None:
    """Return what the model sees of a command of the user; a later message may say it."""
    output = data.get("output")
    if mapping_at(data, "metadata").get("background") is True:
        return None
    if isinstance(output, str):
        return f"Shell command: {data.get('command')}\n\n{output}"
    shown = text_or_none(mapping(output).get("output")) or ""
    return f"{_RAN}:\n\nCommand:\n{data.get('command')}\n\nOutput:\n{shown}"


def _moved(data: Item) -> str:
    folder = mapping_at(data, "location").get("directory")
    return f"The working directory has been changed to {folder}."


#: What the model is told by a message of the newer generation that is nobody's prompt.
_NOTES: dict[str, Callable[[Item], str | None]] = {
    **dict.fromkeys(("synthetic", "skill", "system"), lambda data: text_or_none(data.get("text"))),
    "shell": _shell,
    "location-switched": _moved,
}


def _settled(call_id: str, state: Item) -> list[PlainBlock]:
    """Return the result of a call of the newer generation, if it has one."""
    content = mappings(state.get("content"))
    facts = mapping_at(state, "structured") or mapping_at(state, "metadata")
    if state.get("status") == "error":
        error = {"error": state.get("error"), "content": content}
        if "structured" in state:
            error["structured"] = state["structured"]
        return [_result(call_id, encode(error).decode(), True)]
    if state.get("status") != "completed":
        return []
    text = "\n".join(str(block.get("text")) for block in content if block.get("type") == "text")
    if not content and "structured" in state:
        text = encode(state["structured"]).decode()
    failed = bool(facts.get("exit")) or facts.get("timeout") is True
    return [_result(call_id, text, failed, [b for b in content if b.get("type") != "text"])]


class OpenCode(TraceSource):
    """The sessions of OpenCode."""

    name = "opencode"
    endings = (".db", ".json")

    def folders(self) -> list[Path]:
        """Return the databases; beside them are copies of the user's files."""
        folder = home("XDG_DATA_HOME", ".local/share") / "opencode"
        return sorted(folder.glob("opencode*.db")) or [folder / "opencode.db"]

    def recognises(self, head: Sequence[bytes]) -> bool:
        """Return True for a SQLite database, its archived sessions, and an export."""
        begin = b"".join(head)
        return begin.startswith((SQLITE, HEAD)) or _EXPORT.match(begin) is not None

    def members(self, file: Path) -> Iterator[Member] | None:
        """Return the sessions of a database; ``None`` for that of another program.

        Raises:
            InputError: the database is locked, damaged or of an unknown schema.
        """
        return sessions_of(file) if file.suffix == ".db" else None

    def records(self, lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:
        """Yield the conversation as records."""
        rest = iter(lines)
        first = next(rest, b"")
        if first.startswith(SQLITE):  # of another program
            stats.lines = stats.bad_lines = 1
            return
        session = _Session(stats)
        for value in values(chain([first], rest), stats):
            if "opencode" in value:
                yield session.begin(mapping_at(value, "opencode"))
            elif "messages" in value:  # an export
                yield session.begin(mapping_at(value, "info"))
                for message in mappings(value["messages"]):
                    yield from session.message(message)
            elif "info" in value:
                yield from session.message(value)
            elif "removed" in value:
                session.removed(value["removed"])
            else:
                yield from session.entry(value)
