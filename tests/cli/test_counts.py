"""One number of states: what ingest reports is what the lake holds and what a plan asks about."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.sessions import Script

TEACHERS = """
teachers:
  - name: own
    family: qwen
    model: qwen
    licence: Apache-2.0
    endpoint: {name: local, base_url: "http://127.0.0.1:9"}
    price: {prompt: 1, completion: 1}
"""


def embedded(s: Script, agent: str, message: str) -> None:
    """Add a subagent's answer, wrapped in a progress record of the main file."""
    body = {
        "id": message,
        "role": "assistant",
        "model": "claude-sub",
        "content": [{"type": "text", "text": "found it"}],
    }
    inner = {"type": "assistant", "uuid": f"{agent}-{message}", "message": body}
    inner["timestamp"] = f"{s.day}T10:30:00.000Z"
    data = {"type": "agent_progress", "prompt": "look", "agentId": agent, "message": inner}
    s.add("progress", data=data, toolUseID="x", parentToolUseID="t1")


def sessions(folder: Path) -> Path:
    """Write seven states: four of the agent, three of subagents, and copies of three of them."""
    first = Script("s1")
    first.user("go")
    first.call("m1", "t1", "Task", prompt="look")
    embedded(first, "a7", "sub1")
    embedded(first, "b8", "sub2")
    embedded(first, "acompact-1", "summary")  # what compacting asks is no state
    embedded(first, "c9", "m1")  # the agent's own, told again
    first.result("t1", "found it")
    first.say("m2", "done")
    first.write(folder)
    first.write(folder, "copy/s1.jsonl")
    own = Script("s1")
    own.user("look", isSidechain=True, agentId="a7")
    own.say("sub1", "found it", isSidechain=True, agentId="a7")
    own.say("sub3", "and more", isSidechain=True, agentId="a7")
    own.write(folder, "s1/subagents/agent-a7.jsonl")
    summary = Script("s1")
    summary.say("summary", "short", isSidechain=True, agentId="acompact-2")
    summary.write(folder, "s1/subagents/agent-acompact-2.jsonl")
    # Another day has its own answers, whatever their ids are.
    other = Script("s2", "2026-11-17")
    other.user("go on")
    other.call("m1", "t1", "Task", prompt="look")
    other.result("t1", "found it")
    other.say("m2", "done")
    other.write(folder)
    return folder


def told(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "composer_pipeline.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def at(tmp_path: Path) -> list[str]:
    return ["--lake", str(tmp_path / "lake")]


def test_ingest_counts_what_the_lake_holds_and_the_plan_asks(tmp_path: Path, at: list[str]) -> None:
    folder = str(sessions(tmp_path / "sessions"))
    teachers = tmp_path / "teachers.yaml"
    teachers.write_text(TEACHERS)
    report: dict[str, Any] = json.loads(told("ingest", folder, "--json", *at)[0])
    listed = told("states", "--json", *at)
    plan = json.loads(told("plan", "--teachers", str(teachers), "--json", *at)[0])
    assert (report["states"], report["subagent_states"]) == (7, 3)
    assert len(listed) == plan["states"] == plan["calls"] == report["states"]
    again = json.loads(told("ingest", folder, "--json", *at)[0])
    assert (again["states"], again["subagent_states"]) == (7, 3)
    assert (again["new_files"], again["unchanged_files"]) == (0, report["new_files"])


def test_the_table_begins_with_the_lake_and_has_the_number_that_is_asked_about(
    tmp_path: Path, at: list[str]
) -> None:
    lines = told("ingest", str(sessions(tmp_path / "sessions")), *at)
    rows = [line.strip("│ ").split("│") for line in lines if "│" in line]
    shown = {row[0].strip(): row[1].strip() for row in rows}
    assert (shown["states"], shown["subagent_states"]) == ("7", "3")
    assert next(iter(shown)) == "lake"
