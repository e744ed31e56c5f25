"""The sessions of Gemini CLI: a JSON document, and since 2026 JSON lines.

A line is the session's fields, a message, ``$set`` (new values of fields; ``messages`` is a whole
new history) or ``$rewindTo`` (the message that is removed, with all after it). A message that
grows is written again under its id. Results stand in the call and, since 2026, in the user's
message that the model was sent. A history that is not the beginning of the one before (a
compaction, masked results, a session that was resumed) starts a new context. Where an editor runs
the agent, one message gathers the calls of all responses, and a refused call is only answered.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from composer_pipeline.files import mapping_at, mappings
from composer_pipeline.traces.records import LineStats, PlainBlock, Record, encode
from composer_pipeline.traces.source import (
    LINES,
    Conversation,
    TraceSource,
    call_block,
    home,
    result_block,
    text_block,
    text_or_none,
    total,
    values,
)

_START = re.compile(rb'\s*\{\s*"sessionId"\s*:\s*"[^"]*"\s*,\s*"projectHash"\s*:')
#: Fields of a session; only the first six say something of the conversation.
_FIELDS = frozenset(
    """
    sessionId projectHash startTime kind directories messages lastUpdated summary memoryScratchpad
    """.split()  # noqa: SIM905  a line of names instead of a column
)
#: Messages for the user's eyes.
_SILENT = frozenset({"info", "error", "warning"})
_MEDIA = frozenset({"inlineData", "fileData"})
#: How texts begin that the agent adds in the user's role.
_ADDED = (
    "<session_context>", "<hook_context>", "Here is the user's editor context",
    "Here is a summary of changes in the user's editor context", "- **Workspace Directories:**",
    "System: Potential loop detected.", "[System: You previously ",
)  # fmt: skip
_FOLDER = re.compile(r"Workspace Directories:\*\*\n\s*- (.+)|in the directory: (.+)")
#: How the output of a failed command ends or begins.
_EXITED = re.compile(
    r"(?m:^)Exit Code: -?[1-9]\d*(?:\n(?:Signal|Background PIDs|Process Group PGID): .*)*"
    r"(?:\n</untrusted_context>)?\s*(?:\Z|<hook_context>|\[System\])"
)
_CANCELLED = re.compile(r"(?:<untrusted_context>\n)?Command was (?:automatically )?cancelled ")
#: How the result of a call begins that the user refused or stopped.
_STOPPED = re.compile(
    r"(?:<untrusted_context>\n)?(?:\[Operation Cancelled\]|Command was cancelled by user"
    r'|Tool "\S+" was canceled by the user)'
)


class _Turn(NamedTuple):
    role: str
    blocks: list[PlainBlock]
    message: dict[str, Any]

    def shown(self) -> list[tuple[str, str]]:
        """Return what decides whether two turns are the same to the model."""
        found = []
        for block in self.blocks:
            kind = block["type"]
            text = str(block.get("text") or block.get("content") or "").strip()
            found.append((kind, block.get("id") or f"{block.get('tool_use_id')}: {text}"))
        return found


class _Session:
    """Makes the records of one session."""

    def __init__(self, stats: LineStats) -> None:
        self.conv = Conversation(stats)
        self._pending: dict[str, dict[str, Any]] = {}  # messages of this context, not yet records
        self._told: list[tuple[_Turn, str | None]] = []  # the turns before, each with its record
        self._left = self._told  # the same before the last step back
        self._failed: dict[str, bool] = {}  # of a call's id
        self._called: set[str] = set()  # ids of calls
        self._loose: set[str] = set()  # messages that hold the calls of others
        self._lost: set[str] = set()  # messages with a call of unknown arguments: it was refused
        self._contexts = 0

    def take(self, value: dict[str, Any]) -> Iterator[Record]:
        """Yield the records that a line or the document brings about."""
        if isinstance(target := value.get("$rewindTo"), str):
            yield from self._rewound(target)
        elif isinstance(value.get("id"), str):
            self._message(value)
        elif isinstance(fields := value.get("$set", value), dict):
            yield from self._changed(fields)
        else:
            self.conv.unknown("$set")

    def end(self) -> Iterator[Record]:
        """Yield what is still pending."""
        messages, self._pending = list(self._pending.values()), {}
        for turn in self._turns(messages):
            yield from self._tell(turn)

    def _message(self, message: dict[str, Any]) -> None:
        """Take a message; one that has only calls may be of the response before it."""
        if message.get("type") in _SILENT:
            return
        key, calls = message["id"], mappings(message.get("toolCalls"))
        parts = mappings(message.get("content"))
        last = next(reversed(self._pending.values()), {})
        only_calls = calls and "tokens" not in message and not message.get("content")
        if key in self._loose or (only_calls and _is_response(last) and "toolCalls" not in last):
            self._loose.add(key)
            self._give(last, calls)
        else:
            answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
            lost = [a for a in mappings(answers) if a.get("id") not in self._called]
            if lost and _is_response(last):
                self._lost.add(last["id"])
                self._give(last, [{**answer, "status": "cancelled"} for answer in lost])
            known = self._pending.get(key, {})
            self._pending[key] = known | message
        inside = [part["functionCall"] for part in parts if "functionCall" in part]
        self._called.update(str(call.get("id")) for call in [*calls, *mappings(inside)])

    def _give(self, message: dict[str, Any], calls: list[dict[str, Any]]) -> None:
        """Add the calls that are new to a message."""
        new = [call for call in calls if str(call.get("id")) not in self._called]
        message["toolCalls"] = [*mappings(message.get("toolCalls")), *new]
        self._called.update(str(call.get("id")) for call in new)

    def _changed(self, fields: dict[str, Any]) -> Iterator[Record]:
        conv = self.conv
        session = text_or_none(fields.get("sessionId"))
        if session and fields.get("kind") == "subagent":
            conv.agent_id = session  # whose it is, only the name of its folder says
        elif session and not conv.agent_id:
            conv.session = session
        conv.time = conv.time or text_or_none(fields.get("startTime"))
        folders = fields.get("directories")
        if isinstance(folders, list) and folders:
            conv.cwd = text_or_none(folders[0]) or conv.cwd
        for name in fields.keys() - _FIELDS:
            conv.unknown(f"$set/{name}")
        messages = fields.get("messages")
        if isinstance(messages, list):
            named = [m for m in mappings(messages) if isinstance(m.get("id"), str)]
            shown = [message for message in named if message.get("type") not in _SILENT]
            yield from self._replaced({message["id"]: message for message in shown})

    def _replaced(self, messages: dict[str, dict[str, Any]]) -> Iterator[Record]:
        """Go back to an earlier turn, or begin a new context."""
        if not self._told and not self._pending:
            self._pending = messages
            return
        yield from self._settled()
        turns = list(self._turns(messages.values()))
        wanted = [turn.shown() for turn in turns]
        for told in (self._told, self._left):
            if wanted == [turn.shown() for turn, _ in told[: len(turns)]]:
                self._told = told
                self._back_to(len(turns))
                return
        begun = len(self._told)
        self._contexts += 1
        if wanted[:begun] != [turn.shown() for turn, _ in self._told]:
            self._told, begun = [], 0
            yield self.conv.compaction()
        for turn in turns[begun:]:
            yield from self._tell(turn, copied=True)

    def _rewound(self, target: str) -> Iterator[Record]:
        dropped = target in self._pending
        yield from self._settled()
        found = (n for n, (turn, _) in enumerate(self._told) if turn.message["id"] == target)
        self._back_to(next(found, len(self._told) if dropped else 0))

    def _back_to(self, count: int) -> None:
        self._left, self._told = self._told, self._told[:count]
        self.conv.last = self._told[-1][1] if self._told else None

    def _settled(self) -> Iterator[Record]:
        """Yield what is pending up to the last response: no model saw what comes after it."""
        ends = [n for n, (_, m) in enumerate(self._pending.items(), 1) if _is_response(m)]
        kept = dict(list(self._pending.items())[: ends[-1] if ends else 0])
        if kept or self._told:
            self._pending = kept
        yield from self.end()

    def _turns(self, messages: Iterable[dict[str, Any]]) -> Iterator[_Turn]:
        """Yield messages as turns, the results of a call after it."""
        owed: dict[str, PlainBlock] = {}
        seen: set[str] = set()  # a resumed session may have each result twice
        before: dict[str, Any] = {}
        for message in messages:
            kind = message.get("type")
            blocks = list(self._blocks(message.get("content")))
            answered = {b["tool_use_id"] for b in blocks if b["type"] == "tool_result"}
            if owed and kind in ("user", "gemini") and not answered & owed.keys():
                yield _Turn("user", list(owed.values()), before)
                owed = {}
            if kind == "user":
                missing = [block for name, block in owed.items() if name not in answered]
                owed = {}
                new = [block for block in blocks if block.get("tool_use_id") not in seen]
                seen |= answered
                if new or missing:
                    yield _Turn("user", new + missing, message)
            elif kind == "gemini":
                calls, owed = self._calls(message.get("toolCalls"))
                inside = {block.get("id") for block in blocks}
                blocks += [call for call in calls if call["id"] not in inside]
                before = message
                yield _Turn("assistant", blocks, message)
            else:
                self.conv.unknown(kind)
        if owed:
            yield _Turn("user", list(owed.values()), before)

    def _blocks(self, content: Any) -> Iterator[PlainBlock]:
        for part in content if isinstance(content, list) else [content]:
            if isinstance(part, str) and part:
                yield text_block(part)
            elif isinstance(part, dict) and not part.get("thought"):
                yield from self._block(part)

    def _block(self, part: dict[str, Any]) -> Iterator[PlainBlock]:
        call, result = part.get("functionCall"), part.get("functionResponse")
        if isinstance(call, dict):
            yield call_block(str(call.get("id")), str(call.get("name") or ""), call.get("args"))
        elif isinstance(result, dict):
            yield self._result(result)
        elif isinstance(text := part.get("text"), str):
            yield text_block(text)
        elif part.keys() & _MEDIA:
            yield {"type": "image"}
        elif part:
            self.conv.unknown(f"part/{min(part)}")

    def _calls(self, calls: Any) -> tuple[list[PlainBlock], dict[str, PlainBlock]]:
        """Return the calls of a message, and the results that are recorded with them."""
        made: list[PlainBlock] = []
        results: dict[str, PlainBlock] = {}
        for call in mappings(calls):
            name = str(call.get("id"))
            made.append(call_block(name, str(call.get("name") or ""), call.get("args")))
            self._failed[name] = call.get("status") in ("error", "cancelled")
            result = call.get("result")
            if isinstance(result, str):
                results[name] = self._result({**call, "response": result})
            for block in self._blocks(result if isinstance(result, list) else None):
                if block.get("tool_use_id") == name:
                    results[name] = block
        return made, results

    def _result(self, result: dict[str, Any]) -> PlainBlock:
        name, response, media = str(result.get("id")), result.get("response"), result.get("parts")
        given = response if isinstance(response, dict) else {"output": response}
        only = next(iter(given.values())) if len(given) == 1 else None
        text = only if isinstance(only, str) else encode(given).decode()
        failed = self._failed.get(name, False) or "error" in given
        if result.get("name") == "run_shell_command":
            at = max(0, text.rfind("Exit Code: "))
            ends = _EXITED.match(text, at) or _CANCELLED.match(text)
            failed = failed or ends is not None
        pictures = ["[image]"] * len(media) if isinstance(media, list) else []
        return result_block(name, "\n".join([text, *pictures]), failed=failed)

    def _tell(self, turn: _Turn, *, copied: bool = False) -> Iterator[Record]:
        conv, message = self.conv, turn.message
        if not copied:
            conv.time = text_or_none(message.get("timestamp")) or conv.time
        if turn.role == "assistant" and turn.blocks:
            if message["id"] in self._lost:
                conv.fidelity = "repaired"
            counts = mapping_at(message, "tokens")
            key = f"gemini:{message['id']}" + (f":{self._contexts}" if copied else "")
            yield conv.assistant(
                key,
                turn.blocks,
                model=text_or_none(message.get("model")) or "",
                tokens=(total(counts, "input"), total(counts, "output", "thoughts")),
                copied=copied or not _is_response(message),
            )
        elif turn.blocks:
            yield from self._user(turn, copied)
        self._told.append((turn, conv.last))

    def _user(self, turn: _Turn, copied: bool) -> Iterator[Record]:
        text = str(turn.blocks[0].get("text") or "")
        if text.startswith("<session_context>") and (found := _FOLDER.search(text)):
            self.conv.cwd = self.conv.cwd or found[1] or found[2]
        added = text.startswith(_ADDED) or text == "Please continue."
        before, at = self._told[-1] if self._told else (turn, None)
        stopped = any(_STOPPED.match(str(block.get("content"))) for block in before.blocks)
        if stopped and text and not added and not copied:
            yield from self.conv.stopped(at, turn.blocks)
        summary = copied and "<state_snapshot>" in text
        yield self.conv.user(turn.blocks, is_meta=added or None, is_compact_summary=summary or None)


def _is_response(message: dict[str, Any]) -> bool:
    """Return False for what the agent itself says in the model's role: it names no model."""
    named = message.get("model") or message.get("tokens") or message.get("toolCalls")
    return message.get("type") == "gemini" and bool(named)


class Gemini(TraceSource):
    """The sessions of Gemini CLI."""

    name = "gemini"
    endings = (*LINES, ".json")

    def folders(self) -> list[Path]:
        """Return the folder of all projects' sessions."""
        return [home("GEMINI_CLI_HOME", "") / ".gemini" / "tmp"]

    def recognises(self, head: Sequence[bytes]) -> bool:
        """Return True if a file begins as a session."""
        return _START.match(b"".join(head)) is not None

    def records(self, lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:
        """Yield the conversation as records."""
        session = _Session(stats)
        for value in values(lines, stats):
            yield from session.take(value)
        yield from session.end()
