"""Subagents whose records a main file embeds: trajectories of their own, linked to their call."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.traces.ingest import IngestReport, ingest


def wrapped(s: Any, call: str, agent: str, uuid: str, kind: str, message: Any) -> str:
    inner = {"type": kind, "uuid": uuid, "timestamp": "2026-11-16T10:30:00.000Z"}
    data = {"message": inner | {"message": message}, "normalizedMessages": []}
    data |= {"type": "agent_progress", "prompt": "look", "agentId": agent}
    return str(s.add("progress", data=data, toolUseID=f"agent_{uuid}", parentToolUseID=call))


def answer(name: str, *blocks: Any) -> Any:
    return {"id": name, "role": "assistant", "model": "claude-sub", "content": list(blocks)}


def ask(text: str) -> Any:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def result(call: str, text: Any) -> Any:
    block = {"type": "tool_result", "tool_use_id": call, "content": text}
    return {"role": "user", "content": [block]}


USE = {"type": "tool_use", "id": "x1", "name": "Read", "input": {"file_path": "/a"}}
DONE = {"type": "text", "text": "found it"}


def with_progress(script: Any) -> Any:
    s = script()
    s.user("go")
    s.call("m1", "t1", "Task", prompt="look")
    wrapped(s, "t1", "a7", "i1", "user", ask("look"))
    wrapped(s, "t1", "a7", "i2", "assistant", answer("sub1", USE))
    wrapped(s, "t1", "b8", "k1", "user", ask("other"))
    wrapped(s, "t1", "a7", "i3", "user", result("x1", "text of a"))
    wrapped(s, "t1", "b8", "k2", "assistant", answer("sub9", DONE))
    wrapped(s, "t1", "a7", "i1", "user", ask("look"))  # told twice
    wrapped(s, "t1", "a7", "i4", "assistant", answer("sub2", DONE))
    s.result("t1", "found it")
    s.say("m2", "done")
    return s


def ingested(lake: Lake, path: Path) -> tuple[IngestReport, dict[str, Any]]:
    report = ingest(lake, [path])
    return report, {state.message_id: state for state in load_states(lake)}


def said(state: Any) -> list[str]:
    parts = [
        (m["role"][0], [b.get("text") or b.get("content") or b["type"] for b in m["content"]])
        for m in state.messages
    ]
    return [f"{role}:{'+'.join(texts)}" for role, texts in parts]


def test_wrapped_records_are_trajectories_of_their_own(
    lake: Lake, projects: Path, script: Any
) -> None:
    report, states = ingested(lake, with_progress(script).write(projects))
    assert {m: s.agent_id for m, s in states.items()} == {
        "m1": "",
        "m2": "",
        "sub1": "a7",
        "sub2": "a7",
        "sub9": "b8",
    }
    assert said(states["sub2"]) == ["u:look", "a:tool_use", "u:text of a"]
    assert said(states["sub9"]) == ["u:other"]
    assert said(states["m2"]) == ["u:go", "a:tool_use", "u:found it"]
    assert states["sub1"].model == "claude-sub"
    assert states["sub1"].cwd == "/srv/p"
    rows = {row["agent_id"]: row for row in lake.rows("sessions")}
    assert {name: row["parent_call"] for name, row in rows.items()} == {
        "": None,
        "a7": "t1",
        "b8": "t1",
    }
    assert rows["a7"]["states"] == 2
    assert rows["a7"]["group_id"] == rows[""]["group_id"]
    # The main file's own facts do not change.
    assert report.totals["states"] == 2
    assert report.totals["files"] == 1
    assert report.parse.day("2026-11-16")["files"] == 1
    # The day's numbers, which an orchestrator shows, are those of the totals.
    day = report.parse.day("2026-11-16")
    assert day["states"] == report.totals["distinct_states"] == 5
    assert day["subagent_states"] == report.totals["subagent_states"] == 3


def test_records_marked_as_sidechain_are_linked_by_their_prompt(
    lake: Lake, projects: Path, script: Any
) -> None:
    s = script()
    s.user("go")
    call = s.call("m1", "t1", "Task", prompt="look")
    s.user("look", parent=None, isSidechain=True)
    s.block("sub1", USE, isSidechain=True)
    s.add("progress", data={"type": "bash_progress"}, isSidechain=True)
    s.add("user", message=result("x1", "text of a"), isSidechain=True)
    s.block("sub2", DONE, isSidechain=True)
    s.user("unrelated", parent=None, isSidechain=True)
    s.say("sub3", "alone", isSidechain=True)
    s.say("btw", "it saw all of the main trajectory", parent=call, isSidechain=True)
    s.result("t1", "found it", parent=call)
    s.say("m2", "done")
    report, states = ingested(lake, s.write(projects))
    assert "btw" not in states
    assert said(states["sub2"]) == ["u:look", "a:tool_use", "u:text of a"]
    assert said(states["sub3"]) == ["u:unrelated"]
    assert said(states["m2"]) == ["u:go", "a:tool_use", "u:found it"]
    calls = {row["first_prompt"]: row["parent_call"] for row in lake.rows("sessions")}
    assert calls == {"go": None, "look": "t1", "unrelated": None}
    assert report.totals["states"] == 2


def test_a_subagents_own_file_is_preferred(lake: Lake, projects: Path, script: Any) -> None:
    s = with_progress(script)
    s.write(projects)
    own = script()
    fields = {"isSidechain": True, "agentId": "a7"}
    own.user("look", **fields)
    own.block("sub1", USE, **fields)
    own.add("user", message=result("x1", "the whole text of a"), **fields)
    own.block("sub2", DONE, **fields)
    own.write(projects / "s1" / "subagents", "agent-a7.jsonl")
    report, states = ingested(lake, projects)
    assert said(states["sub2"]) == ["u:look", "a:tool_use", "u:the whole text of a"]
    assert sorted(states) == ["m1", "m2", "sub1", "sub2", "sub9"]
    assert report.parse.day("2026-11-16")["duplicate_states"] == 2
    again = ingest(lake, [projects])
    assert again.parse.days == []


def test_odd_progress_is_passed_over(lake: Lake, projects: Path, script: Any) -> None:
    s = script()
    s.user("go")
    odd: list[Any] = [
        None,
        7,
        [],
        {},
        {"type": "agent_progress"},
        {"type": "agent_progress", "agentId": "a", "message": 5},
        {"type": "agent_progress", "agentId": "a", "message": {"type": "novel", "uuid": "n1"}},
        {"type": "agent_progress", "agentId": 5, "message": {"type": "user", "uuid": "n2"}},
    ]
    for data in odd:
        s.add("progress", data=data, parentToolUseID="t1")
    wrapped(s, "t1", "acompact-1", "c1", "assistant", answer("sum", DONE))
    novel = {"type": "novel", "payload": [1]}
    wrapped(s, "t1", "a7", "i1", "assistant", answer("sub1", novel, DONE))
    s.say("m1", "done")
    report, states = ingested(lake, s.write(projects))
    assert sorted(states) == ["m1", "sub1"]
    assert states["sub1"].action.text == "found it"
    assert report.totals["bad_lines"] == 0


def test_wrapped_texts_are_redacted(lake: Lake, projects: Path, script: Any) -> None:
    s = script()
    s.user("go")
    wrapped(s, "t1", "a7", "i1", "user", ask("write to alice@acme.io"))
    wrapped(s, "t1", "a7", "i2", "assistant", answer("sub1", DONE))
    _, states = ingested(lake, s.write(projects))
    assert "alice" not in json.dumps(states["sub1"].messages)


def test_a_subagent_with_a_file_of_its_own_is_linked_by_its_prompt(
    lake: Lake, projects: Path, script: Any
) -> None:
    s = script()
    s.user("go")
    s.call("m1", "t1", "Task", prompt="look")
    s.result("t1", "found it")
    s.call("m2", "t2", "Agent", prompt="look again")
    s.result("t2", "found more")
    s.write(projects)
    for agent, prompt in (("a1", "look again"), ("a2", "look"), ("a3", "not asked for")):
        own = script()
        fields = {"isSidechain": True, "agentId": agent}
        own.user(prompt, **fields)
        own.block(f"sub-{agent}", DONE, **fields)
        own.write(projects / "s1" / "subagents", f"agent-{agent}.jsonl")
    ingested(lake, projects)
    calls = {row["agent_id"]: row["parent_call"] for row in lake.rows("sessions")}
    assert calls == {"": None, "a1": "t2", "a2": "t1", "a3": None}


def test_more_subagents_than_a_process_may_open_files(
    lake: Lake, projects: Path, script: Any
) -> None:
    """Each has its own text in its state."""
    s = script()
    s.user("go")
    s.block("m1", DONE)
    s.write(projects)
    for number in range(150):
        own, fields = script(), {"isSidechain": True, "agentId": f"a{number}"}
        own.user(f"task {number}.", **fields)
        own.block(f"sub-{number}", DONE, **fields)
        own.write(projects / "s1" / "subagents", f"agent-a{number}.jsonl")
    done = subprocess.run(
        [sys.executable, "-m", "composer_pipeline.cli", "ingest", projects, "--lake", lake.url],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    asked = {
        state.agent_id: json.dumps(state.messages) for state in load_states(lake) if state.agent_id
    }
    assert len(asked) == 150
    assert all(f"task {agent[1:]}." in text for agent, text in asked.items())
