"""Calls and results of other agents, said in the terms of Claude Code."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.preferences.actions.canonical import call_mutates, canonical, class_of
from composer_pipeline.preferences.actions.levels import ActionContext, level
from composer_pipeline.preferences.actions.shell_parse import Place
from composer_pipeline.tool_names import (
    TOOLS,
    read_text,
    translate,
    translate_result,
    with_change,
)

PATCH = """*** Begin Patch
*** Add File: new.py
+x = 1
+y = 2
*** Update File: old.py
@@ def f():
 a
-b
+c

 d
@@
-e
+f
*** Delete File: gone.py
*** Update File: from.py
*** Move to: to.py
@@
-1
+2
*** End of File
*** End Patch"""
EDITS: list[tuple[str, dict[str, Any]]] = [
    ("Write", {"file_path": "new.py", "content": "x = 1\ny = 2\n"}),
    ("MultiEdit", {"file_path": "old.py", "edits": [
        {"old_string": "a\nb\n\nd", "new_string": "a\nc\n\nd"},
        {"old_string": "e", "new_string": "f"}]}),
    ("Bash", {"command": "rm gone.py"}),
    ("Bash", {"command": "mv from.py to.py"}),
    ("Edit", {"file_path": "to.py", "old_string": "1", "new_string": "2"}),
]  # fmt: skip
EDIT = ("Edit", {"file_path": "a", "old_string": "1", "new_string": "2"})
LS = [("Bash", {"command": "ls"})]
IN_W = [("Bash", {"command": "cd /w && ls"})]
READ = ("Read", {"file_path": "a", "offset": 3, "limit": 3})
SCRIPT = (
    'const r = await tools.exec_command({cmd: "ls", workdir: "/w", yield_time_ms: 1000});\n'
    'text(r.output);\nawait tools.apply_patch("*** Begin Patch\\n*** Add File: a\\n+{}\\n'
    '*** End Patch")'
)


def steps(name: str, arguments: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(step.name, step.arguments) for step in translate(ToolCall(name, arguments))]


@pytest.mark.parametrize(("name", "arguments", "expected"), [
    # Codex
    ("shell", {"command": ["bash", "-lc", "ls"], "workdir": "/w"}, IN_W),
    ("shell", {"command": ["git", "commit", "-m", "a b"]},
     [("Bash", {"command": "git commit -m 'a b'"})]),
    ("shell_command", {"command": "ls", "timeout_ms": 9, "justification": "look"}, LS),
    ("local_shell", {"command": ["ls"], "working_directory": "/w"}, IN_W),
    ("exec_command", {"cmd": "ls", "workdir": "/w", "yield_time_ms": 9}, IN_W),
    ("exec", {"input": SCRIPT}, [*IN_W, ("Write", {"file_path": "a", "content": "{}\n"})]),
    ("apply_patch", {"input": PATCH}, EDITS),
    ("apply_patch", {"input": PATCH.replace("\n", "\r\n")}, EDITS),
    ("shell", {"command": ["apply_patch", PATCH]}, EDITS),
    ("shell", {"command": ["apply_patch", "*** Begin Patch\n*** Delete File: /a\n*** End Patch"],
               "workdir": "/w"}, [("Bash", {"command": "rm /a"})]),
    ("write_stdin", {"session_id": 1, "chars": "ls"},
     [("Bash", {"session_id": 1, "command": "ls"})]),
    ("exec_command", {"cmd": f"apply_patch <<'EOF'\n{PATCH}\nEOF"}, EDITS),
    ("exec_command", {"cmd": "cd sub && apply_patch <<'EOF'\n*** Begin Patch\n*** Delete File: a\n"
                             "*** End Patch\nEOF\nls", "workdir": "/w"},
     [("Bash", {"command": "cd /w/sub && ls"}), ("Bash", {"command": "rm /w/sub/a"})]),
    ("multi_agent_v1.spawn_agent", {"message": "count"}, [("Task", {"prompt": "count"})]),
    ("update_plan", {"plan": [{"status": "pending"}]},
     [("TodoWrite", {"todos": [{"status": "pending"}]})]),
    # pi
    ("bash", {"command": "ls", "timeout": 3}, LS),
    ("edit", {"path": "a", "edits": [{"oldText": "1", "newText": "2"}]}, [EDIT]),
    ("edit", {"path": "a", "oldText": "1", "newText": "2"}, [EDIT]),
    ("find", {"pattern": "*.py", "path": "src"}, [("Glob", {"pattern": "*.py", "path": "src"})]),
    # OpenCode
    ("bash", {"command": "ls", "workdir": "/w", "description": "List"}, IN_W),
    ("edit", {"filePath": "a", "oldString": "1", "newString": "2", "replaceAll": True},
     [("Edit", {**EDIT[1], "replace_all": True})]),
    ("write", {"filePath": "a", "content": "x"}, [("Write", {"file_path": "a", "content": "x"})]),
    ("apply_patch", {"patchText": PATCH}, EDITS),
    ("grep", {"pattern": "x", "include": "*.py"}, [("Grep", {"pattern": "x", "glob": "*.py"})]),
    # Gemini CLI
    ("run_shell_command", {"command": "ls", "dir_path": "/w", "description": "List"}, IN_W),
    ("replace", {"file_path": "a", "old_string": "1", "new_string": "2", "instruction": "two"},
     [EDIT]),
    ("read_file", {"file_path": "a", "start_line": 3, "end_line": 5}, [READ]),
    ("list_directory", {"dir_path": "src"}, [("LS", {"path": "src"})]),
    ("run_shell_command", {"command": "ls", "is_background": True},
     [("Bash", {"command": "ls", "run_in_background": True})]),
    # Copilot CLI
    ("view", {"path": "a", "view_range": [3, 5]}, [READ]),
    ("view", {"path": "a", "view_range": [3, -1]}, [("Read", {"file_path": "a", "offset": 3})]),
    ("create", {"path": "a", "file_text": "x"}, [("Write", {"file_path": "a", "content": "x"})]),
    ("edit", {"path": "a", "old_str": "1", "new_str": "2"}, [EDIT]),
    # harnesses of benchmarks
    ("str_replace_editor", {"command": "view", "path": "a", "view_range": [3, 5]}, [READ]),
    ("file_editor", {"command": "str_replace", "path": "a", "old_str": "1", "new_str": "2"},
     [EDIT]),
    ("file_editor", {"command": "insert", "path": "a", "insert_line": 3, "new_str": "x"},
     [("Edit", {"file_path": "a", "new_string": "x"})]),
    ("file_editor", {"command": "create", "path": "a", "file_text": "x"},
     [("Write", {"file_path": "a", "content": "x"})]),
    ("execute_bash", {"command": "ls", "is_input": "false"}, LS),
    ("bash_command", {"keystrokes": "ls", "duration": 1.0}, LS),
    # what nobody knows, and what Claude Code itself calls
    ("mcp__x__y", {"path": "a"}, [("mcp__x__y", {"path": "a"})]),
    ("Bash", {"command": "ls", "description": "List"},
     [("Bash", {"command": "ls", "description": "List"})]),
    ("exec", {"input": "text(1)"}, [("exec", {"input": "text(1)"})]),
    ("apply_patch", {"input": 3}, [("apply_patch", {"input": 3})]),
    ("shell", {"command": None}, [("Bash", {"command": None})]),
    ("edit", {"path": 1, "edits": ["x", None]}, [("MultiEdit", {"file_path": 1, "edits": []})]),
])  # fmt: skip
def test_a_call_is_said_in_claude_codes_terms(name, arguments, expected):
    assert steps(name, arguments) == expected


@pytest.mark.parametrize("text", [
    "Chunk ID: 1a\nWall time: 0.1 seconds\nProcess exited with code 2\nOriginal token count: 9\n"
    "Output:\nboom",
    "Exit code: 2\nWall time: 1 seconds\nOutput:\nboom",
    '{"output":"boom","metadata":{"exit_code":2}}',
    "<untrusted_context>\nOutput: boom\nExit Code: 2\nProcess Group PGID: 33\n</untrusted_context>",
    "boom\n\nCommand exited with code 2",
    "boom\n<shellId: 0 completed with exit code 2>",
    "boom\n[Python Interpreter: /bin/python]\n[Command finished with exit code 2]",
    "<returncode>2</returncode>\n<output>\nboom\n</output>",
    '{"returncode": 2, "output": "boom"}',
])  # fmt: skip
def test_an_exit_code_is_found_in_every_form(text):
    assert translate_result(ToolCall("bash", {}), text) == "Exit code 2\nboom"


@pytest.mark.parametrize("text", [
    "Chunk ID: 1a\nWall time: 0.1 seconds\nProcess exited with code 0\nOutput:\nExit code: 1\nx",
    "Exit code: 1\nx\n<shellId: 0 completed with exit code 0>",
])  # fmt: skip
def test_what_a_command_prints_is_no_exit_code(text):
    assert translate_result(ToolCall("bash", {}), text) == "Exit code: 1\nx"


def test_a_printed_exit_code_does_not_overrule_the_one_before_it():
    printed = "x\nCommand exited with code 3"
    text = f"Chunk ID: 1a\nWall time: 0.1 seconds\nProcess exited with code 0\nOutput:\n{printed}"
    assert translate_result(ToolCall("exec_command", {}), text) == printed


@pytest.mark.parametrize(("name", "arguments", "result", "text"), [
    ("read", {"path": "a"}, "1. x\n\ny\n", "1. x\n\ny\n"),
    ("read", {"path": "a"}, "x\n\n[9 more lines in file. Use offset=2 to continue.]", None),
    ("read", {"path": "a", "offset": 2}, "x\n", None),
    ("read", {"path": "a", "limit": 1}, "x\n", None),
    ("read", {"filePath": "a"}, "<path>a</path>\n<type>file</type>\n<content>\n1: x\n2: y\n\n"
     "(End of file - total 2 lines)\n</content>", "x\ny\n"),
    ("read_file", {"file_path": "a"}, "x\ny\n", "x\ny\n"),
    ("view", {"path": "a"}, "1. x\n2. y", "x\ny\n"),
])  # fmt: skip
def test_a_file_that_was_read_is_known(name, arguments, result, text):
    assert read_text(ToolCall(name, arguments), result) == text


@pytest.mark.parametrize(("name", "arguments", "changed"), [
    ("edit", {"path": "a", "edits": [{"oldText": "1", "newText": "2"}]},
     {"path": "a", "edits": [{"oldText": "o\n", "newText": "n\n"}]}),
    ("edit", {"filePath": "a", "oldString": "1", "newString": "2"},
     {"filePath": "a", "oldString": "o\n", "newString": "n\n"}),
    ("create", {"path": "a", "file_text": "1"}, {"path": "a", "file_text": "n\n"}),
    ("apply_patch", {"input": "*** Begin Patch\n*** Add File: a\n+1\n*** End Patch\n"},
     {"input": "*** Begin Patch\n*** Add File: a\n+n\n*** End Patch\n"}),
    ("apply_patch", {"input": "*** Begin Patch\n*** Update File: a\n@@\n-1\n+2\n*** End Patch\n"},
     {"input": "*** Begin Patch\n*** Update File: a\n@@\n-o\n+n\n \n*** End Patch\n"}),
    ("apply_patch", {"input": "*** Begin Patch\n*** Update File: a\n@@\n-1\n+2"}, None),  # cut off
    ("exec", {"input": SCRIPT}, None),
])  # fmt: skip
def test_a_mended_edit_has_the_form_of_its_agent(name, arguments, changed):
    assert with_change(ToolCall(name, arguments), "o\n", "n\n") == changed


def update(path: str, hunk: str) -> dict[str, str]:
    return {"input": f"*** Begin Patch\n*** Update File: {path}\n@@\n{hunk}\n*** End Patch"}


CONTEXT = ActionContext(Place("/w"), {"/w/a.py": "one\ntwo\nthree\n"})


@pytest.mark.parametrize(("name", "a", "b", "expected"), [
    ("edit", {"path": "a.py", "edits": [{"oldText": "two", "newText": "2"}]},
     {"path": "/w/a.py", "edits": [{"oldText": "one\ntwo", "newText": "one\n2"}]}, "L1"),
    ("edit", {"filePath": "/w/a.py", "oldString": "two", "newString": "2"},
     {"filePath": "/w/a.py", "oldString": "two", "newString": "II"}, "L2"),
    ("replace", {"file_path": "a.py", "old_string": "two", "new_string": "2", "instruction": "x"},
     {"file_path": "./a.py", "old_string": "two", "new_string": "2", "instruction": "y"}, "L0"),
    ("exec_command", {"cmd": "cat a.py", "workdir": "/w"}, {"cmd": "cat ./a.py"}, "L0"),
    ("apply_patch", update("a.py", " one\n-two\n+2"), update("a.py", "-two\n+2\n three"), "L1"),
    ("apply_patch", update("a.py", "-two\n+2"), update("b.py", "-two\n+2"), "L4"),
    ("view", {"path": "/w/a.py"}, {"path": "/w/a.py", "view_range": [1, 20]}, "L1"),
])  # fmt: skip
def test_two_calls_of_one_agent_agree_as_claude_codes_would(name, a, b, expected):
    one, other = (Action("", (ToolCall(name, arguments),)) for arguments in (a, b))
    assert level(one, other, CONTEXT).level.label == expected
    assert (canonical(one, CONTEXT.place) == canonical(other, CONTEXT.place)) is (expected == "L0")


@pytest.mark.parametrize(("name", "arguments", "kind", "changes"), [
    ("exec_command", {"cmd": "git status"}, "run", False),
    ("shell", {"command": ["bash", "-lc", "rm -r build"]}, "run", True),
    ("apply_patch", {"input": PATCH}, "edit", True),
    ("read_file", {"file_path": "a"}, "read", False),
    ("str_replace_editor", {"command": "view", "path": "a"}, "edit", False),
    ("grep_search", {"pattern": "a"}, "search", False),
    ("think", {"thought": "so"}, "think", False),
])  # fmt: skip
def test_class_and_effect(name, arguments, kind, changes):
    assert (class_of(name), call_mutates(ToolCall(name, arguments))) == (kind, changes)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(), st.sampled_from([PATCH, SCRIPT, "view"]),
    st.lists(st.one_of(st.integers(), st.text(), st.just({"oldText": 1})), max_size=3),
)  # fmt: skip
KEYS = ["path", "command", "cmd", "input", "edits", "view_range", "offset", "end_line", "workdir"]


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(sorted(TOOLS)), st.dictionaries(st.sampled_from(KEYS), VALUES), st.text())
def test_no_arguments_and_no_result_are_fatal(name, arguments, text):
    call = ToolCall(name, arguments)
    assert all(isinstance(step, ToolCall) for step in translate(call))
    assert isinstance(translate_result(call, text), str)
    canonical(Action("", (call,)), Place("/w"))
