"""A session in Pi's session format, with a ``harness``: what the Hub's trace viewer draws.

A file is one trajectory; a subagent's names the file of its parent. Each message stands there once
and names its predecessor, so that an abandoned branch hangs where it left, and a compacted path
continues after the path before it. Pi has no messages for the system prompt and the tools: they are
``custom`` lines of the kinds that ``teich`` reads.
"""

import hashlib
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from composer_pipeline.chat.convert import INTERRUPTED, offered_tools
from composer_pipeline.chat.tools import Toolsets
from composer_pipeline.exporting.steps import (
    PathSteps,
    SessionStep,
    StepCall,
    harness_of,
    path_steps,
)
from composer_pipeline.states.load import WholeSession
from composer_pipeline.states.state import TraceState

VERSION = 3

Entry = dict[str, Any]


def sessions(session: WholeSession, name: str, tools: Toolsets) -> dict[str, list[Entry]]:
    """Return the session's lines by file name without suffix; the main file is called ``name``."""
    found = {}
    for agent, paths in sorted(session.paths.items()):
        own = f"{name}.{agent}" if agent else name
        parent = f"{name}.jsonl" if agent and "" in session.paths else ""
        lines = path_steps(paths)
        found[own] = [*_head(session, lines, own, parent, tools), *_entries(lines)]
    return found


def _head(
    session: WholeSession, lines: list[PathSteps], name: str, parent: str, tools: Toolsets
) -> Iterator[Entry]:
    states = lines[0].states
    first = states[0]
    yield {
        "type": "session",
        "version": VERSION,
        "id": name,
        "timestamp": _time(first.ts),
        "cwd": first.project or "/",
        "harness": harness_of(session),
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


def _entries(lines: list[PathSteps]) -> Iterator[Entry]:
    """Yield each message once, with its predecessor."""
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
                continue  # kept by the compaction, and written above
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


def _messages(step: SessionStep, mark: str) -> Iterator[Entry]:
    """Yield a step's messages; ``mark`` distinguishes ids of calls from those of other paths."""
    text = [{"type": "text", "text": step.text}] if step.text else []
    if step.source == "user":
        yield {"role": "user", "content": text}
        return
    calls = [
        {"type": "toolCall", "id": c.id + mark, "name": c.name, "arguments": c.arguments}
        for c in step.calls
    ]
    message: Entry = {"role": "assistant", "content": text + calls}
    if step.state is not None:
        message |= {"model": step.state.model or "unknown", "usage": _usage(step.state)}
    yield message | {"stopReason": "toolUse" if calls else "stop"}
    for call in step.calls:
        if step.answered:
            yield _result(call, mark)


def _result(call: StepCall, mark: str) -> Entry:
    text = INTERRUPTED if call.result is None else call.result
    return {
        "role": "toolResult",
        "toolCallId": call.id + mark,
        "toolName": call.name,
        "content": [{"type": "text", "text": text}],
        "isError": call.is_error,
    }


def _usage(state: TraceState) -> Entry:
    given, made = state.input_tokens or 0, state.output_tokens or 0
    counts = {"input": given, "output": made, "cacheRead": 0, "cacheWrite": 0}
    return {**counts, "totalTokens": given + made}


def _id(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _time(moment: datetime | None) -> str:
    return moment.isoformat().replace("+00:00", "Z") if moment else "1970-01-01T00:00:00Z"
