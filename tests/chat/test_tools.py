"""Which tools are offered, and where their schemas come from."""

import json
from typing import Any

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat.tool_registry import CORE, REGISTRY
from composer_pipeline.chat.tools import InstalledTools, infer, session_tools, tool_schemas
from composer_pipeline.states.state import TraceState
from tests.fixtures.states import made_state


def state_of(
    session_id: str, action: Action, messages: list[dict[str, Any]] | None = None
) -> TraceState:
    return made_state(session_id=session_id, action=action, messages=messages or [])


def names(tools: list[dict[str, Any]]) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


def test_registry_is_made_of_closed_schemas() -> None:
    for name, entry in (item for tools in REGISTRY.values() for item in tools.items()):
        parameters = entry["parameters"]
        assert parameters["type"] == "object", name
        assert set(parameters.get("required", [])) <= set(parameters["properties"]), name
        assert entry["description"], name
    for name in ("Bash", "MultiEdit", "TodoWrite", "NotebookEdit", "ExitPlanMode", "KillShell"):
        assert name in REGISTRY["claude-code"]


def test_core_and_seen_tools_are_offered() -> None:
    offered = tool_schemas(["TodoWrite", "Read"])
    assert names(offered.tools) == sorted({*CORE["claude-code"], "TodoWrite"})
    assert offered.source == "registry@1"


def test_recorded_tools_win() -> None:
    recorded = [
        {"name": "Probe", "description": "d", "input_schema": {"type": "object"}},
        {"type": "function", "function": {"name": "Other", "parameters": {}}},
        "junk",
    ]
    offered = tool_schemas(["Bash"], recorded=recorded)
    assert names(offered.tools) == ["Probe", "Other"]
    assert offered.source == "recorded"


def test_inference_takes_keys_and_types_but_no_value() -> None:
    uses = [{"q": "secret words", "n": i, "deep": {"k": 1}} for i in range(5)]
    uses[0]["flag"] = True
    schema = infer(uses)["parameters"]
    assert schema["properties"] == {
        "deep": {"type": "object"},
        "flag": {"type": "boolean"},
        "n": {"type": "integer"},
        "q": {"type": "string"},
    }
    assert schema["required"] == ["deep", "n", "q"]
    assert "required" not in infer(uses[:4])["parameters"]
    mixed = infer([{"a": "x", "b": None}, {"a": ["x"], "b": None}])["parameters"]["properties"]
    assert mixed == {"a": {}, "b": {"type": "null"}}
    assert "secret" not in json.dumps(schema)


def test_session_has_one_toolset() -> None:
    use = {"type": "tool_use", "id": "x", "name": "WebFetch", "input": {}}
    states = [
        state_of("s", Action(tool_calls=(ToolCall("mcp__db__query", {"sql": "select 1"}),))),
        state_of("s", Action("done"), [{"role": "assistant", "content": [use]}]),
        state_of("other", Action("done")),
    ]
    chosen = session_tools(states)
    assert {"mcp__db__query", "WebFetch"} <= set(names(chosen["s"].tools))
    assert chosen["s"].source == "registry@1+inferred:1"
    assert names(chosen["other"].tools) == sorted(CORE["claude-code"])


def test_an_upgrade_on_the_way_changes_no_tools() -> None:
    def parameters(key: str) -> dict[str, Any]:
        return {"Read": {"type": "object", "properties": {key: {"type": "string"}}}}

    sets = [InstalledTools("2.1.1", parameters("old")), InstalledTools("2.1.9", parameters("new"))]
    states = [
        made_state(session_id="s", turn=n, version=v) for n, v in enumerate(("2.1.1", "2.1.9"))
    ]
    chosen = session_tools(states, sets)["s"]
    assert chosen.source == "installed@2.1.1:1+registry@1"


def test_the_first_recorded_tools_of_a_session_are_offered_to_all_of_it() -> None:
    """A session that goes on with other tools keeps the bodies that its replies are known by."""

    def recorded(name: str) -> list[dict[str, Any]]:
        return [{"name": name, "description": name, "input_schema": {"type": "object"}}]

    states = [
        made_state(session_id="s", turn=0),
        made_state(session_id="s", turn=1, tools=recorded("First")),
        made_state(session_id="s", turn=2, tools=recorded("Second")),
    ]
    chosen = session_tools(states)["s"]
    assert (names(chosen.tools), chosen.source) == (["First"], "recorded")


def test_a_teacher_has_the_tools_of_the_agent_it_is_asked_about() -> None:
    """With Claude Code's tools a teacher could not agree with Codex."""
    ran = Action("", (ToolCall("exec_command", {"cmd": "ls"}), ToolCall("mcp_x", {"q": 1})))
    state = made_state(session_id="s", action=ran, agent="codex")
    claude_codes = InstalledTools("2.1.1", {"apply_patch": {"type": "object"}})
    offered = session_tools([state], [claude_codes])["s"]
    assert names(offered.tools) == ["apply_patch", "exec_command", "mcp_x", "write_stdin"]
    assert offered.source == "registry@1+inferred:1"
