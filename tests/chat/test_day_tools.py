"""Tools stay as they were offered, and replies are checked against them."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat.convert import ArgumentCheck
from composer_pipeline.chat.tools import (
    InstalledTools,
    Toolsets,
    nearest,
    tool_schemas,
)
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.replies import judge
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from tests.fixtures.lake_states import DAY, write_session


def _use(name: str, **arguments: Any) -> tuple[Action, str]:
    return Action(tool_calls=(ToolCall(name, arguments),)), "ok"


def _asked(lake: Lake) -> dict[str, set[str]]:
    return {
        state.state_id: {tool["function"]["name"] for tool in toolsets.of(state).tools}
        for states in [list(load_states(lake))]
        for toolsets in [Toolsets(lake, states)]
        for state in states
    }


def test_a_session_that_grows_is_not_bought_again(
    tmp_path: Path, teacher_set: TeacherSet, serve: Callable[..., LoopbackOpenRouter]
) -> None:
    lake = Lake(tmp_path / "grows")
    turns = [_use("Bash", command=f"ls {n}") for n in range(3)]
    first = write_session(lake, "s", turns)
    serve()
    names = [teacher.name for teacher in teacher_set.teachers]
    before = replay(lake, teacher_set, max_usd=Decimal(5))
    assert before.calls >= before.replies == 3 * len(names)

    # The night after: the same session went on, with a tool that it had not used before.
    grown = write_session(lake, "s", [*turns, _use("mcp__db__query", sql="select 1")])
    assert grown[:3] == first
    after = replay(lake, teacher_set, max_usd=Decimal(5))
    assert (after.calls, after.cached) == (len(names), 3 * len(names))
    tools = _asked(lake)
    assert "mcp__db__query" in tools[grown[3]]
    assert not any("mcp__db__query" in tools[state] for state in first)
    rows = lake.rows("replies")
    assert {row["status"] for row in rows} == {"ok"}
    assert replay(lake, teacher_set, max_usd=Decimal(5)).calls == 0


def test_states_that_were_asked_keep_their_tools(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    turns = [_use("Bash", command="ls")]
    (first,) = write_session(lake, "s", turns)
    states = list(load_states(lake))
    Toolsets(lake, states).pin(states)
    _, second = write_session(lake, "s", [*turns, _use("mcp__db__query", sql="select 1")])
    tools = _asked(lake)
    assert "mcp__db__query" in tools[second] - tools[first]


def test_pinning_is_idempotent_and_writes_only_what_is_new(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    write_session(lake, "s", [_use("Bash", command="ls"), _use("Read", file_path="/f")])
    states = list(load_states(lake))
    Toolsets(lake, states).pin(states[:1])
    path = tmp_path / "toolsets" / f"day={DAY}" / "part.parquet"
    once = path.read_bytes(), path.stat().st_mtime_ns
    Toolsets(lake, states).pin(states[:1])
    assert (path.read_bytes(), path.stat().st_mtime_ns) == once
    Toolsets(lake, states).pin(states)
    (row,) = lake.rows("toolsets")
    assert row["state_ids"] == [state.state_id for state in states]


def test_two_runs_that_pin_at_once_lose_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    write_session(lake, "a", [_use("Bash", command="ls")])
    states = list(load_states(lake))
    one, two = Toolsets(lake, states), Toolsets(lake, states)
    two.of(states[0])  # as when it plans, before the others write
    write_session(lake, "b", [_use("Bash", command="ls")])
    more = list(load_states(lake))
    other = Toolsets(lake, more)
    one.pin(states)
    other.pin([state for state in more if state.session_id == "b"])
    two.pin(states)
    assert {row["session_id"] for row in lake.rows("toolsets")} == {"a", "b"}


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (ToolCall("Read", {"file_path": "/f", "offset": 3}), ""),
        (ToolCall("Read", {}), "Read without file_path"),
        (ToolCall("Read", {"file_path": "/f", "offset": "private"}),
         "Read: offset is not of type integer"),
        (ToolCall("TodoWrite", {"todos": [{"content": "x", "status": 1, "activeForm": "y"}]}),
         "TodoWrite: todos.0.status is not of type string"),
        (ToolCall("Pick", {"shell": "private"}), "Pick: shell breaks the rule enum"),
    ],
)  # fmt: skip
def test_arguments_are_checked_by_schema_without_telling_values(call: ToolCall, why: str) -> None:
    pick = {"name": "Pick", "parameters": {"properties": {"shell": {"enum": ["sh"]}}}}
    check = ArgumentCheck([*tool_schemas(["TodoWrite"]).tools, {"function": pick}])
    assert check.problem(call) == why
    assert "private" not in check.problem(call)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "no such type"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"properties": {"a": {"$ref": "#/nowhere"}}},
        "junk",
    ],
)
def test_a_recorded_schema_that_is_none_checks_nothing(schema: Any) -> None:
    check = ArgumentCheck([{"function": {"name": "Odd", "parameters": schema}}])
    assert check.problem(ToolCall("Odd", {"a": 1})) == ""


def test_a_reply_whose_tools_are_not_here_is_kept_apart() -> None:
    call = {"function": {"name": "Bash", "arguments": "{}"}}
    reply = {"choices": [{"finish_reason": "tool_calls", "message": {"tool_calls": [call]}}]}
    assert judge(reply, None)[:2] == (
        "unusable",
        "the lake does not have the tools that were offered",
    )


def test_no_schema_is_fetched_to_check_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *asked, **_: fetched.append(asked))
    schema = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    tool = {"type": "function", "function": {"name": "Probe", "parameters": schema}}
    assert ArgumentCheck([tool]).problem(ToolCall("Probe", {"a": 1})) == ""
    assert fetched == []


def test_an_edit_needs_its_new_text() -> None:
    check = ArgumentCheck(tool_schemas(["MultiEdit"]).tools)
    edit = {"file_path": "/f", "old_string": "a"}
    assert check.problem(ToolCall("Edit", edit)) == "Edit without new_string"
    several = {"file_path": "/f", "edits": [{"old_string": "a"}]}
    assert check.problem(ToolCall("MultiEdit", several)) == "MultiEdit: edits.0 without new_string"


def test_the_nearest_version_is_taken() -> None:
    sets = [InstalledTools(version, {}) for version in ("2.1.9", "2.1.30", "2.1.100")]

    def chosen(version: str | None) -> str:
        found = nearest(sets, version)
        assert found
        return found.version

    assert chosen("2.1.31") == "2.1.30"
    assert chosen("2.1.100") == "2.1.100"
    assert chosen("2.0.76") == "2.1.9"
    assert chosen(None) == "2.1.100"
    assert nearest([], "2.1.1") is None
