"""A session in Pi's session format, with a ``harness``: what the Hub's trace viewer draws.

Belongs here: steps as the lines of a Pi session. Does not belong here: files
(``interchange.write``).

A file is one trajectory; a subagent's names the file of its parent. Each message stands there
once and names the one before it, so that an abandoned branch hangs where it left; a path that
was compacted goes on behind the path before it. The system prompt and the tools have no place
among Pi's messages: they are ``custom`` lines of the kinds that ``teich`` reads.
"""

import hashlib
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from composer_pipeline.chat.convert import INTERRUPTED, offered_tools
from composer_pipeline.chat.tools import Toolsets
from composer_pipeline.exporting.steps import Call, Line, Step, lines_of
from composer_pipeline.states.load import WholeSession

VERSION = 3

Entry = dict[str, Any]


def sessions(session: WholeSession, name: str, tools: Toolsets) -> dict[str, list[Entry]]:
    """Return the session's lines by the names of their files, without an ending.

    Args:
        session: the session.
        name: what the file of its main trajectory is called.
        tools: the tools of its states.
    """
    found = {}
    for agent, paths in sorted(session.paths.items()):
        mine = f"{name}.{agent}" if agent else name
        parent = f"{name}.jsonl" if agent and "" in session.paths else ""
        lines = lines_of(paths)
        found[mine] = [*_head(session, lines, mine, parent, tools), *_entries(lines)]
    return found


def _head(
    session: WholeSession, lines: list[Line], name: str, parent: str, tools: Toolsets
) -> Iterator[Entry]:
    states = lines[0].states
    first = states[0]
    codex = any("codex" in row["path"] for row in session.rows)
    yield {
        "type": "session",
        "version": VERSION,
        "id": name,
        "timestamp": _time(first.ts),
        "cwd": first.project or "/",
        "harness": "codex" if codex else "claude-code",
        "source": {"session_id": session.session_id},
        **({"parentSession": parent} if parent else {}),
    }
    system = next(step.text for step in lines[0].steps if step.source == "system")
    offered = offered_tools(tools.of(first).tools)
    yield _custom("teich-system-prompt", {"systemPrompt": system}, _time(first.ts))
    yield _custom("teich-available-tools", {"tools": offered}, _time(first.ts))


def _custom(kind: str, data: Any, time: str) -> Entry:
    entry = {"type": "custom", "id": _id(kind), "parentId": None, "timestamp": time}
    return {**entry, "customType": kind, "data": data}


def _entries(lines: list[Line]) -> Iterator[Entry]:
    """Yield each message once, with the one that it follows."""
    ids: dict[tuple[str | None, Any], str | None] = {}
    named: set[Any] = set()
    end: str | None = None
    for number, line in enumerate(lines):
        parent = end if line.kind == "continuation" else None
        now = line.states[0].ts
        for step, name, copied in zip(line.steps, line.names, line.copied, strict=True):
            if step.source == "system":
                continue
            if (parent, name) in ids:
                parent = ids[parent, name]
                continue
            if line.kind == "continuation" and copied and name in named:
                continue  # kept by the compaction: it stands above
            now = (step.state.ts if step.state else None) or now
            follows = parent
            for part, message in enumerate(_messages(step, f"_{number}" if number else "")):
                mine = _id(f"{parent}/{name}/{part}")
                entry = {"type": "message", "id": mine, "parentId": parent, "timestamp": _time(now)}
                yield {**entry, "message": message}
                parent = mine
            ids[follows, name] = parent
            named.add(name)
        if line.kind != "branch":
            end = parent


def _messages(step: Step, mark: str) -> Iterator[Entry]:
    """Yield a step's messages; ``mark`` keeps ids of calls apart from those of other paths."""
    text = [{"type": "text", "text": step.text}] if step.text else []
    if step.source == "user":
        yield {"role": "user", "content": text}
        return
    calls = [
        {"type": "toolCall", "id": c.id + mark, "name": c.name, "arguments": c.arguments}
        for c in step.calls
    ]
    said: Entry = {"role": "assistant", "content": text + calls}
    if step.state is not None:
        said |= {"model": step.state.model or "unknown", "usage": _usage(step)}
    yield said | {"stopReason": "toolUse" if calls else "stop"}
    for call in step.calls:
        if step.answered:
            yield _result(call, mark)


def _result(call: Call, mark: str) -> Entry:
    text = INTERRUPTED if call.result is None else call.result
    return {
        "role": "toolResult",
        "toolCallId": call.id + mark,
        "toolName": call.name,
        "content": [{"type": "text", "text": text}],
        "isError": call.is_error,
    }


def _usage(step: Step) -> Entry:
    state = step.state
    given, made = (state.input_tokens, state.output_tokens) if state else (None, None)
    counts = {"input": given or 0, "output": made or 0, "cacheRead": 0, "cacheWrite": 0}
    return {**counts, "totalTokens": (given or 0) + (made or 0)}


def _id(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _time(moment: datetime | None) -> str:
    return moment.isoformat().replace("+00:00", "Z") if moment else "1970-01-01T00:00:00Z"
