"""A session in Pi's session format, with a ``harness``: what the Hub's trace viewer draws.

A file is one trajectory; a subagent's names the file of its parent. Entries form a tree in which
the path to a response is its prompt: an abandoned branch hangs where it left, and a compaction is
Pi's own entry, with what it kept. Pi has no messages for the system prompt and the tools: they are
``custom`` lines of the kinds that ``teich`` reads.

:class:`composer_pipeline.traces.sources.pi.Pi` reads it back: the same session, agent and response
ids (in ``source``), prompts and actions. Lost are

- texts of one message apart from each other, and whether a user's text is a prompt, a note of the
  agent or an interruption;
- images and blocks of unknown kinds, of which a placeholder stays, and the ids of calls;
- characters of tools' names that providers do not accept;
- system prompts and tools after the first, the version of the agent, a change of its folder;
- fidelity. What comes later is derived anew: labels, outcomes, edits.

Pi itself would frame the summary of a compaction in words of its own, also where they are the
agent's whole message here (``source.verbatim``).
"""

import hashlib
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

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
        "source": {"session_id": session.session_id, "agent_id": first.agent_id},
        **({"parentSession": parent} if parent else {}),
    }
    system = next(step.text for step in lines[0].steps if step.source == "system")
    offered = offered_tools(tools.of(first).tools)
    yield _custom("teich-system-prompt", {"systemPrompt": system}, _time(first.ts))
    yield _custom("teich-available-tools", {"tools": offered}, _time(first.ts))


def _custom(kind: str, data: Any, time: str) -> Entry:
    entry = {"type": "custom", "id": _id(kind), "parentId": None, "timestamp": time}
    return {**entry, "customType": kind, "data": data}


class _Written(msgspec.Struct):
    """A step in the file: its first entry, the one it follows, and its last one."""

    entry: Entry
    follows: str | None
    last: str | None


def _entries(lines: list[PathSteps]) -> list[Entry]:
    """Return the messages as a tree in which the path to each response is its prompt."""
    entries: list[Entry] = []
    # By predecessor and step, and the first one of each step.
    tree: dict[tuple[str | None, str], _Written] = {}
    first: dict[str, _Written] = {}
    summaries: set[str] = set()
    end: str | None = None
    for number, line in enumerate(lines):
        parent = None
        mark = f"_{number}" if number else ""
        now = line.states[0].ts
        steps = [
            (step, _id(_content(step, name)))
            for step, name in zip(line.steps, line.names, strict=True)
            if step.source != "system"
        ]
        while steps:
            step, key = steps.pop(0)
            kept: list[_Written] | None = None
            begins = line.kind == "continuation" and (None, key) not in tree
            if parent is None and step.source == "user" and (begins or key in summaries):
                summaries.add(key)
                kept = _kept(steps, first)
                steps = steps[len(kept) :]
                key = _id("/".join([key, *(each.entry["id"] for each in kept)]))
            written = tree.get((parent, key))
            if written is None:
                now = (step.state.ts if step.state else None) or now
                if kept is not None:
                    made = [_compaction(step.text, key, kept, end)]
                else:
                    made = _said(step, f"{parent}/{key}", parent, mark)
                entries += [entry | {"timestamp": _time(now)} for entry in made]
                written = _Written(entries[-len(made)], parent, entries[-1]["id"])
                tree[parent, key] = written
                first.setdefault(key, written)
            if step.state is not None:
                _own(written.entry, step.state)
            parent = written.last
        if line.kind != "branch":
            end = parent
    return entries


def _content(step: SessionStep, name: Any) -> str:
    """Return what makes two steps the same: one message may have been sent with other results."""
    return f"{name}/{step.text}/{[(call.result, call.is_error) for call in step.calls]}"


def _kept(steps: list[tuple[SessionStep, str]], first: dict[str, _Written]) -> list[_Written]:
    """Return the steps after a summary that stand in the file already, one below the other."""
    kept: list[_Written] = []
    for step, key in steps:
        written = first.get(key)
        if written is None or step.state is not None or (kept and written.follows != kept[-1].last):
            break
        kept.append(written)
    return kept


def _compaction(summary: str, key: str, kept: list[_Written], end: str | None) -> Entry:
    mine = _id(f"{end}/{key}")
    return {
        "type": "compaction",
        "id": mine,
        "parentId": kept[-1].last if kept else end,
        "summary": summary,
        "firstKeptEntryId": kept[0].entry["id"] if kept else mine,
        "tokensBefore": 0,
        "source": {"verbatim": True},
    }


def _said(step: SessionStep, name: str, parent: str | None, mark: str) -> list[Entry]:
    made: list[Entry] = []
    for part, message in enumerate(_messages(step, mark)):
        mine = _id(f"{name}/{part}")
        entry = {"type": "message", "id": mine, "parentId": parent, "message": message}
        if message["role"] == "assistant":
            entry["source"] = {"copied": True}
        made.append(entry)
        parent = mine
    return made


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
    stop = "toolUse" if calls else "stop"
    yield {"role": "assistant", "content": text + calls, "stopReason": stop}
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


def _own(entry: Entry, state: TraceState) -> None:
    """Say in the entry of a response that it is a state's action."""
    given, made = state.input_tokens or 0, state.output_tokens or 0
    counts = {"input": given, "output": made, "cacheRead": 0, "cacheWrite": 0}
    usage = {**counts, "totalTokens": given + made}
    entry["message"] |= {"model": state.model or "unknown", "usage": usage}
    entry["source"] = {"message_id": state.message_id}


def _id(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _time(moment: datetime | None) -> str:
    return moment.isoformat().replace("+00:00", "Z") if moment else "1970-01-01T00:00:00Z"
