"""Labels of sessions of other agents: what failed, what the tests said, whose edit it was."""

import json
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.traces.edits import Author, Edits
from composer_pipeline.traces.fixups import fixup
from composer_pipeline.traces.graph_nodes import Node
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.traces.outcomes import Failure, Outcome, failures_of, outcomes
from composer_pipeline.traces.records import LineStats
from composer_pipeline.traces.source import Conversation, call_block, result_block
from composer_pipeline.traces.trajectory import Trajectory
from composer_pipeline.traces.verdicts import Judge

Step = tuple[str, dict[str, Any], str, bool]  # tool, arguments, result, whether it failed


def session(*steps: Step) -> tuple[Trajectory, list[Node], list[Outcome | None]]:
    """Return a session with one call in each response: its graph, responses and outcomes."""
    talk = Conversation(LineStats())
    talk.session, talk.cwd = "s", "/w"
    records = [talk.user("Make the tests pass.")]
    for number, (name, given, text, failed) in enumerate(steps):
        records.append(talk.assistant(f"r{number}", [call_block(f"c{number}", name, given)]))
        records.append(talk.user([result_block(f"c{number}", text, failed=failed)]))
    graph = Trajectory(records)
    found = outcomes(graph, graph.active_nodes())
    numbers = graph.states()
    return graph, [graph.nodes[n] for n in numbers], [found[n] for n in numbers]


def labels(*step: Any) -> tuple[Failure | None, Outcome]:
    _, (node,), (outcome,) = session(step)
    assert outcome is not None
    failed = failures_of(node, None, tests_failed=outcome.tests_passed is False)
    return (failed[0] if failed else None), outcome


def header(code: int, output: str) -> str:
    return (
        f"Chunk ID: 1a2b\nWall time: 0.1 seconds\nProcess exited with code {code}\n"
        f"Original token count: 5\nOutput:\n{output}"
    )


PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n*** End Patch"
BAD = "E   assert 3 == 4\n1 failed in 0.1s"


@pytest.mark.parametrize(("kind", "step"), [
    ("exit_code", ("exec_command", {"cmd": "ls x"}, header(2, "ls: x: no such file"), True)),
    ("exit_code", ("shell", {"command": ["bash", "-lc", "false"]}, "Exit code: 1\nWall time: 1 s\n"
                   "Output:\n", True)),
    ("exit_code", ("write_stdin", {"session_id": 1, "chars": ""}, header(1, "bad"), True)),
    ("exit_code", ("bash", {"command": "exit 4"}, "(no output)\n\nCommand exited with code 4",
                   True)),
    ("exit_code", ("bash", {"command": "exit 4"}, "(no output)", True)),
    ("failing_tests", ("exec_command", {"cmd": "pytest -q"}, header(1, BAD), True)),
    ("failing_tests", ("run_shell_command", {"command": "pytest"}, f"Output: {BAD}\nExit Code: 1",
                       True)),
    ("failing_tests", ("bash", {"command": "pytest"}, f"{BAD}\n<shellId: 0 completed with exit code"
                       " 1>", True)),
    ("soft_failure", ("bash", {"command": "make | tail"}, "make: *** [all] Error 2", False)),
    ("failed_edit", ("apply_patch", {"input": PATCH}, "apply_patch verification failed: Failed to"
                     " find expected lines in a.py", True)),
    ("failed_edit", ("exec_command", {"cmd": f"apply_patch <<'EOF'\n{PATCH}\nEOF"},
                     "apply_patch verification failed", True)),
    ("failed_edit", ("edit", {"path": "a", "edits": [{"oldText": "x", "newText": "y"}]},
                     "Could not find the exact text in a.", True)),
    ("failed_edit", ("str_replace_editor", {"command": "str_replace", "path": "a", "old_str": "x"},
                     "No match found", True)),
    ("tool_error", ("str_replace_editor", {"command": "view", "path": "a"}, "no such file", True)),
    ("tool_error", ("read", {"filePath": "/w/a"}, "File not found: /w/a", True)),
    ("user_rejection", ("exec_command", {"cmd": "rm a"}, "exec_command failed: CreateProcess {"
                        ' message: "Rejected(\\"rejected by user\\")" }', True)),
    ("user_rejection", ("exec_command", {"cmd": "sleep 9"}, "Wall time: 2.0 seconds\naborted by"
                        " user", True)),
    ("user_rejection", ("bash", {"command": "sleep 9"}, "out\n\nCommand aborted", True)),
    ("user_rejection", ("run_shell_command", {"command": "rm a"}, 'Tool "run_shell_command" was'
                        " canceled by the user.", True)),
    (None, ("exec_command", {"cmd": "ls"}, header(0, "a.py"), False)),
    (None, ("bash", {"command": "cat log"}, "Error: old\n<shellId: 0 completed with exit code 0>",
            False)),
])  # fmt: skip
def test_how_a_call_failed(kind, step):
    failure, outcome = labels(*step)
    assert (failure and failure.kind) == kind
    if failure is not None and kind == "tool_error":
        assert failure.hint == step[2]
    assert outcome.followed_by_error is (kind not in (None, "soft_failure"))


@pytest.mark.parametrize("text", [
    "The user rejected permission to use this specific tool call with the following feedback: Ask.",
    "The user rejected this tool call. User feedback: Ask.",
])  # fmt: skip
def test_what_the_user_says_with_a_rejection_is_the_hint(text):
    failure, outcome = labels("edit", {"filePath": "a"}, text, True)
    assert failure == Failure("user_rejection", "Ask.", "user_rejection", 0)
    assert outcome.followed_by_correction


@pytest.mark.parametrize(("name", "given"), [
    ("exec_command", {"cmd": "python -m pytest -q", "workdir": "/w"}),
    ("shell", {"command": ["bash", "-lc", "npm test"]}),
    ("run_shell_command", {"command": "go test ./..."}),
    ("bash_command", {"keystrokes": "cargo test\n"}),
])  # fmt: skip
def test_tests_are_told(name, given):
    assert labels(name, given, header(0, "3 passed in 0.1s"), False)[1].tests_passed is True
    assert labels(name, given, header(1, BAD), True)[1].tests_passed is False
    assert labels(name, given, header(0, "nothing"), False)[1].tests_passed is None


def test_the_tests_are_told_by_a_look_at_a_command_that_went_on():
    """Codex shows what a command has printed after ten seconds, and the end when it is asked."""
    on = "Chunk ID: 1a2b\nWall time: 10.0 seconds\nProcess running with session ID 7\nOutput:\n"
    _, nodes, found = session(
        ("exec_command", {"cmd": "pytest -q"}, on, False),
        ("write_stdin", {"session_id": 7, "chars": ""}, header(1, BAD), True),
    )
    assert [outcome.tests_passed for outcome in found if outcome] == [None, False]
    assert failures_of(nodes[1], None, tests_failed=True)[0].kind == "failing_tests"


WRONG, RIGHT = "    return a - b", "    return a + b"
FAILED = f"    def add(a, b):\n>{WRONG}\nE       assert -1 == 3\n\ncalc.py:2: AssertionError\n{BAD}"


@pytest.mark.parametrize(("wrote", "mended", "fixed"), [
    (("apply_patch", {"input": "*** Begin Patch\n*** Add File: calc.py\n+def add(a, b):\n"
                      f"+{WRONG}\n*** End Patch"}),
     ("apply_patch", {"input": "*** Begin Patch\n*** Update File: calc.py\n@@\n"
                      f"-{WRONG}\n+{RIGHT}\n*** End Patch"}),
     {"input": "*** Begin Patch\n*** Add File: calc.py\n+def add(a, b):\n"
               f"+{RIGHT}\n*** End Patch"}),
    (("write", {"path": "calc.py", "content": f"def add(a, b):\n{WRONG}\n"}),
     ("edit", {"path": "/w/calc.py", "edits": [{"oldText": WRONG, "newText": RIGHT}]}),
     {"path": "calc.py", "content": f"def add(a, b):\n{RIGHT}\n"}),
    (("create", {"path": "/w/calc.py", "file_text": f"def add(a, b):\n{WRONG}\n"}),
     ("edit", {"path": "/w/calc.py", "old_str": WRONG, "new_str": RIGHT}),
     {"path": "/w/calc.py", "file_text": f"def add(a, b):\n{RIGHT}\n"}),
])  # fmt: skip
def test_the_line_at_fault_is_followed_to_its_edit_and_to_the_fix(wrote, mended, fixed):
    graph, nodes, _ = session(
        (*wrote, "Done.", False),
        ("bash", {"command": "pytest -q"}, FAILED, True),
        (*mended, "Done.", False),
        ("bash", {"command": "pytest -q"}, "1 passed in 0.1s", False),
    )
    active = graph.active_nodes()
    judge = Judge(graph, Edits(graph, sorted(active)), active)
    wrong, shown, *_ = graph.states()
    (failure,) = failures_of(nodes[1], None, tests_failed=True)
    judged = judge.judge(shown, failure)
    assert (judged.verdict, judged.by, judged.culprit) == ("revealed", "line", (wrong, 0))
    found = fixup(judge, Author(wrong, 0), shown, nodes[1].calls[0])
    assert found is not None
    assert found.arguments == fixed


def test_a_subagent_is_known_by_its_prompt():
    count = ("task", {"prompt": "Count."}, "2", False)
    graph, _, _ = session(count, ("multi_agent_v1.spawn_agent", {"message": "Sum."}, "3", False))
    assert graph.agent_calls() == {"Count.": "c0", "Sum.": "c1"}


def test_a_rollout_of_codex_has_labels(lake: Lake, tmp_path: Path) -> None:
    """Figures of Codex sessions were empty: no failure and no test result was seen."""
    told = [
        ("exec_command", {"cmd": "ls x"}, header(2, "ls: x: no such file")),
        ("exec_command", {"cmd": "pytest -q"}, header(1, BAD)),
        ("apply_patch", PATCH, "apply_patch verification failed: Failed to find expected lines"),
        ("exec_command", {"cmd": "pytest -q"}, header(0, "3 passed in 0.1s")),
    ]
    items: list[tuple[str, dict[str, Any]]] = [
        ("session_meta", {"id": "0199aaaa-0000-7000-8000-000000000002", "cwd": "/w"}),
        ("response_item", {"type": "message", "role": "user",
                           "content": [{"type": "input_text", "text": "Make the tests pass."}]}),
    ]  # fmt: skip
    for number, (name, given, output) in enumerate(told):
        kind = "custom_tool_call" if name == "apply_patch" else "function_call"
        made = {"input": given} if name == "apply_patch" else {"arguments": json.dumps(given)}
        about = {"type": kind, "call_id": f"c{number}"}
        items.append(("response_item", {**about, "name": name, **made}))
        items.append(("response_item", {**about, "type": f"{kind}_output", "output": output}))
    lines = [
        json.dumps({"timestamp": f"2026-11-16T08:00:{at:02d}.000Z", "type": kind, "payload": item})
        for at, (kind, item) in enumerate(items)
    ]
    (tmp_path / "rollout-x.jsonl").write_text("\n".join(lines) + "\n")
    ingest(lake, [tmp_path])
    states = sorted(load_states(lake), key=lambda state: state.n_messages)
    assert [(state.error_kind, state.tests_passed) for state in states] == [
        ("exit_code", None), ("failing_tests", False), ("failed_edit", None), (None, True),
    ]  # fmt: skip
    assert states[0].hint == "Exit code 2\nls: x: no such file"
