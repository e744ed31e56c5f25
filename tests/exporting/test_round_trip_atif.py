"""ATIF out and in again: the same states, each with the same prefix and the same action."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.chat.convert import to_chat
from composer_pipeline.exporting.sessions import export_sessions
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import TraceState
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.traces.ingest import ingest

#: What a state keeps besides its prefix, and what is known of its outcome.
KEPT = (
    "session_id", "agent_id", "message_id", "fidelity", "cwd", "project", "model", "ts",
    "input_tokens", "output_tokens", "system", "tools", "on_active_path", "error_kind", "hint",
)  # fmt: skip


def events(state: TraceState) -> Iterator[tuple[Any, ...]]:
    """Yield a prefix in order: each text, call and result, with the number of its call."""
    calls: dict[str, int] = {}
    for message in state.messages:
        blocks = message["content"]
        for block in blocks:
            if block["type"] == "tool_result":
                number = calls.get(block["tool_use_id"])
                yield "result", number, block["content"], block.get("is_error", False)
        texts = [b["text"] if b["type"] == "text" else f"[{b['type']}" for b in blocks
                 if b["type"] not in ("tool_result", "tool_use")]  # fmt: skip
        if text := "\n\n".join(texts):
            yield message["role"], text
        for block in blocks:
            if block["type"] == "tool_use":
                calls[block["id"]] = len(calls)
                yield "call", block["name"], block["input"]


def action(state: TraceState) -> tuple[Any, ...]:
    """Return what an action says and calls; the ids of calls are counted anew."""
    return state.action.text, [(call.name, call.arguments) for call in state.action.tool_calls]


def read_back(lake: Lake, folder: Path) -> Lake:
    export_sessions(lake, "atif", folder / "out")
    again = Lake(folder / "again")
    ingest(again, [folder / "out"])
    return again


def compared(lake: Lake, again: Lake) -> dict[str, list[str]]:
    """Return what differs: a thing to the states where it does."""
    before = {state.state_id: state for state in load_states(lake)}
    after = {state.state_id: state for state in load_states(again)}
    wrong: dict[str, list[str]] = {"states": sorted(before.keys() ^ after.keys())}
    for name in sorted(before.keys() & after.keys()):
        old, new = before[name], after[name]
        pairs = {
            "prefix": (list(events(old)), list(events(new))),
            "prompt": (to_chat(old).messages, to_chat(new).messages),
            "text": (old.action.text, new.action.text),
            "calls": tuple(
                [(c.name, c.arguments) for c in s.action.tool_calls] for s in (old, new)
            ),
            **{key: (getattr(old, key), getattr(new, key)) for key in KEPT},
        }
        for key, (one, other) in pairs.items():
            if one != other:
                wrong.setdefault(key, []).append(name)
    return {key: names for key, names in wrong.items() if names}


def test_sessions_come_back(lake: Lake, tmp_path: Path) -> None:
    assert compared(lake, read_back(lake, tmp_path)) == {}


def test_an_export_adds_nothing_to_its_own_lake(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    ingest(lake, [sample_sessions_dir()])
    before = [state.state_id for state in load_states(lake)]
    export_sessions(lake, "atif", tmp_path / "out")
    ingest(lake, [tmp_path / "out"])
    assert sorted(state.state_id for state in load_states(lake)) == sorted(before)


@pytest.mark.slow
def test_the_corpus_comes_back(unpacked: Path, corpus: Path, tmp_path: Path) -> None:
    """Some sessions, some with subagents, and all oddities."""
    lake = Lake(tmp_path / "lake")
    some = sorted((unpacked / "claude-code-sessions").rglob("*.jsonl"))[::16]
    some += sorted((unpacked / "claude-code-subagents").iterdir())[:4]
    ingest(lake, [*some, corpus / "edge-cases"])
    found = compared(lake, read_back(lake, tmp_path))
    assert {key: len(names) for key, names in found.items()} == {"tools": 1}  # a listed loss
