"""The tool schemas of an installation are read, kept in the lake, and offered."""

import json
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat.tools import Toolsets, installed_tools
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from contrib.import_tools import (
    TypeScriptError,
    keep,
    main,
    read_declarations,
    read_installation,
)
from tests.fixtures.lake_states import write_session

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
    assert main([str(package), "--lake", lake.url]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == {"version": "2.1.42", "tools": ["Bash", "Pick", "Read"]}
    states = list(load_states(lake))
    offered = Toolsets(lake, states).of(states[0])
    by_name = {tool["function"]["name"]: tool["function"] for tool in offered.tools}
    assert by_name["Bash"]["parameters"]["properties"]["shell"]["enum"] == ["sh", "bash"]
    assert by_name["Bash"]["description"].startswith("Run a shell command")
    assert offered.source == "installed@2.1.42:3+registry@1"


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
    assert [kept.version for kept in installed_tools(lake)] == ["2.1.6", "2.1.7"]
    lake.put_bytes("tool_schemas/index.json", b"[{]")
    with pytest.raises(InputError, match=r"index\.json of lake"):
        installed_tools(lake)
