"""Tools are offered for good, replies are checked against them, and schemas are imported."""

import json
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
    keep,
    kept_sets,
    nearest,
    read_installation,
    tool_schemas,
)
from composer_pipeline.chat.typescript import TypeScriptError, read_declarations
from composer_pipeline.cli.app import main
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.replies import judge
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.states import DAY, write_session

#: In the style of json-schema-to-typescript, with tools and texts of our own.
DECLARATIONS = """
/* A note that must not be taken. */
export type ToolInputSchemas = BashInput | FileReadInput | PickInput;

export interface BashInput {
  /**
   * A secret description.
   */
  command: string;
  timeout?: number;
  shell?: "sh" | "bash";
  run_in_background?: boolean;
}
export interface FileReadInput {
  file_path: string;
  pages?: string[];
  "-odd key"?: (number | string)[];
}
export interface PickInput {
  /** @minItems 1 @maxItems 2 */
  questions:
    | [{ label: string; options: Option[] }]
    | [{ label: string; options: Option[] }, { label: string; options: Option[] }];
  extra?: { [k: string]: unknown };
  on: true;
  level: 1 | 2 | null;
}
export interface Option {
  text: string;
  child?: Option;
}
export type ModeInput = "fast" | "slow";
export interface McpInput {
  [k: string]: unknown;
}
"""


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


def test_declarations_become_schemas() -> None:
    declared = read_declarations(DECLARATIONS)
    assert declared["BashInput"] == {
        "type": "object",
        "properties": {
            "command": {"type": "string"},
            "timeout": {"type": "number"},
            "shell": {"type": "string", "enum": ["sh", "bash"]},
            "run_in_background": {"type": "boolean"},
        },
        "required": ["command"],
    }
    assert declared["FileReadInput"]["properties"] == {
        "file_path": {"type": "string"},
        "pages": {"type": "array", "items": {"type": "string"}},
        "-odd key": {
            "type": "array",
            "items": {"anyOf": [{"type": "number"}, {"type": "string"}]},
        },
    }
    pick = declared["PickInput"]
    assert pick["required"] == ["questions", "on", "level"]
    option = {
        "type": "object",
        "properties": {"text": {"type": "string"}, "child": {}},
        "required": ["text"],
    }
    assert pick["properties"]["questions"] == {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "label": {"type": "string"},
                "options": {"type": "array", "items": option},
            },
            "required": ["label", "options"],
        },
    }
    assert pick["properties"]["extra"]["additionalProperties"] == {}
    assert pick["properties"]["on"] == {"type": "boolean", "enum": [True]}
    assert "secret" not in json.dumps(declared)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("export interface AInput {\n  a: keyof B;\n}", 2),
        ("export interface AInput {\n  a: Missing;\n}", 2),
        ("export interface AInput {\n\n  a: string", 3),
        ("export interface AInput { a: string } #", 1),
        ("export interface AInput<T> { a: T }", 1),
        ("export type Pick<T> = T;", 1),
        (
            "export interface BInput { b: string }\ninterface AInput extends BInput { a: 1 }",
            2,
        ),
    ],
)
def test_other_typescript_is_refused_with_its_line(source: str, line: int) -> None:
    with pytest.raises(TypeScriptError, match=f"line {line}"):
        read_declarations(source)


def test_the_rest_of_a_tuple_is_of_its_items() -> None:
    found = read_declarations("export interface AInput { a: [string, ...number[]] }")
    items = found["AInput"]["properties"]["a"]["items"]
    assert items == {"anyOf": [{"type": "string"}, {"type": "number"}]}


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


def test_an_installation_is_imported_and_offered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "claude-agent-sdk"
    package.mkdir()
    (package / "sdk-tools.d.ts").write_text(DECLARATIONS)
    (package / "package.json").write_text(
        json.dumps({"name": "@anthropic-ai/claude-agent-sdk", "version": "0.3.42"})
    )
    lake = Lake(tmp_path / "lake")
    write_session(lake, "s", [_use("Pick", on=True), _use("Read", file_path="/f")])
    with pytest.raises(SystemExit) as ended:
        main(["tools", "import", str(package), "--lake", lake.url, "--json"])
    assert ended.value.code == 0
    report = json.loads(capsys.readouterr().out)
    assert report == {"version": "2.1.42", "tools": ["Bash", "Pick", "Read"]}
    states = list(load_states(lake))
    offered = Toolsets(lake, states).of(states[0])
    by_name = {tool["function"]["name"]: tool["function"] for tool in offered.tools}
    assert by_name["Bash"]["parameters"]["properties"]["shell"]["enum"] == ["sh", "bash"]
    assert by_name["Bash"]["description"].startswith("Run a shell command")
    assert offered.source == "installed@2.1.42:3+registry@1"


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


def test_bad_installations_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is no sdk-tools\.d\.ts"):
        read_installation(tmp_path)
    file = tmp_path / "sdk-tools.d.ts"
    file.write_text("export interface Nothing { a: string }")
    with pytest.raises(InputError, match="declares no tool input"):
        read_installation(file)
    file.write_text(DECLARATIONS)
    with pytest.raises(InputError, match="--version"):
        read_installation(file)
    assert read_installation(file, "2.1.7").version == "2.1.7"
    lake = Lake(tmp_path / "lake")
    keep(lake, read_installation(file, "2.1.7"))
    keep(lake, read_installation(file, "2.1.6"))
    assert [kept.version for kept in kept_sets(lake)] == ["2.1.6", "2.1.7"]
    lake.put_bytes("tool_schemas/index.json", b"[{]")
    with pytest.raises(InputError, match=r"index\.json of lake"):
        kept_sets(lake)
