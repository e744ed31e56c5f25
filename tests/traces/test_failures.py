"""How an action failed and what the trace says about it."""

from typing import Any

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.hints import build_hints
from composer_pipeline.states.load import load_states
from composer_pipeline.traces.ingest import ingest

REJECTED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it"
    " was a file edit, the new_string was NOT written to the file)."
)


def first_state(lake: Lake, projects: Any, script: Any) -> tuple[Any, ...]:
    ingest(lake, [script.write(projects)])
    state = next(load_states(lake))
    return state.error_kind, state.hint_source, state.hint_call, state.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Exit code 2\nboom", ("exit_code", "exit_code", 0, "Exit code 2\nboom")),
        (
            "<tool_use_error>File does not exist.</tool_use_error>",
            ("tool_error", "tool_error", 0, "File does not exist."),
        ),
        (
            f"{REJECTED} To tell you how to proceed, the user said:\nuse uv\n\n"
            "Note: The user's next message may contain a correction or preference.",
            ("user_rejection", "user_rejection", 0, "use uv"),
        ),
        (f"{REJECTED} STOP what you are doing.", ("user_rejection", None, None, None)),
        (
            "<tool_use_error>Sibling tool call errored</tool_use_error>",
            (None, None, None, None),
        ),
        (
            "Exit code 1\n/home/carla/x: token sk-ant-api03-" + "a1B2" * 8,
            (
                "exit_code",
                "exit_code",
                0,
                "Exit code 1\n/home/user/x: token [SECRET_ANTHROPIC_KEY_279f]",
            ),
        ),
    ],
)
def test_failed_results(
    lake: Lake, projects: Any, script: Any, text: str, expected: tuple[Any, ...]
) -> None:
    s = script()
    s.user("go")
    s.call("m1", "t1")
    s.result("t1", text, error=True)
    s.say("m2", "ok")
    assert first_state(lake, projects, s) == expected


def test_the_failing_call_is_named_and_its_cancelled_sibling_is_not(
    lake: Lake, projects: Any, script: Any
) -> None:
    s = script()
    s.user("go")
    for call in ("t1", "t2", "t3"):
        s.call("m1", call)
    s.result("t1", "Cancelled: parallel tool call Bash errored", error=True)
    s.result("t2", "fine")
    s.result("t3", "Exit code 1", error=True)
    assert first_state(lake, projects, s) == ("exit_code", "exit_code", 2, "Exit code 1")


def test_only_is_error_true_is_an_error(lake: Lake, projects: Any, script: Any) -> None:
    s = script()
    s.user("go")
    s.call("m1", "t1")
    s.result("t1", "Exit code 1")
    assert first_state(lake, projects, s) == (None, None, None, None)


def test_interruption_then_prompt_is_a_correction(lake: Lake, projects: Any, script: Any) -> None:
    s = script()
    s.user("go")
    s.say("m1", "I will rewrite it in Rust")
    s.user([{"type": "text", "text": "[Request interrupted by user]"}])
    s.user("no, keep Python")
    s.say("m2", "ok")
    assert first_state(lake, projects, s) == (
        "user_correction",
        "user_correction",
        -1,
        "no, keep Python",
    )


def test_rejection_without_words_takes_the_next_prompt(
    lake: Lake, projects: Any, script: Any
) -> None:
    s = script()
    s.user("go")
    s.call("m1", "t1")
    s.result("t1", f"{REJECTED} STOP.", error=True)
    s.user([{"type": "text", "text": "[Request interrupted by user for tool use]"}])
    s.user("only look, do not write")
    s.say("m2", "ok")
    assert first_state(lake, projects, s) == (
        "user_rejection",
        "user_correction",
        0,
        "only look, do not write",
    )


def test_a_prompt_without_interruption_is_no_correction(
    lake: Lake, projects: Any, script: Any
) -> None:
    s = script()
    s.user("go")
    s.say("m1", "done")
    s.user("now the next thing")
    assert first_state(lake, projects, s) == (None, None, None, None)


@pytest.mark.parametrize(
    ("tool", "text", "error", "expected"),
    [
        ("Edit", "<tool_use_error>String to replace not found in file.</tool_use_error>", True,
         ("failed_edit", "tool_error", 0, "String to replace not found in file.")),
        ("Read", "File does not exist.", True,
         ("tool_error", "tool_error", 0, "File does not exist.")),
    ],
)  # fmt: skip
def test_failed_edits(
    lake: Lake, projects: Any, script: Any, tool: str, text: str, error: bool, expected: Any
) -> None:
    s = script()
    s.user("go")
    s.call("m1", "t1", tool, file_path="/x")
    s.result("t1", text, error=error)
    assert first_state(lake, projects, s) == expected


@pytest.mark.parametrize(
    ("command", "text", "error", "kind", "source"),
    [
        ("pytest -q", "Exit code 1\n1 failed, 3 passed", True, "failing_tests", "exit_code"),
        ("npm run build", "Exit code 1\nTS2304", True, "exit_code", "exit_code"),
        ("bundle exec rspec", "Exit code 1\n3 failures", True, "failing_tests", "exit_code"),
        ("npm run build | tail -5", "npm ERR! code 2", False, "soft_failure", "soft_failure"),
        ("pytest -q | tail -3", "1 failed, 3 passed", False, "soft_failure", "soft_failure"),
        ("go test ./... || true", "--- FAIL: TestX\nFAIL", False, "soft_failure", "soft_failure"),
        ("python x.py; true", "Traceback (most recent call last):\n x", False, "soft_failure",
         "soft_failure"),
        ("cd a && cargo build 2>&1 | head", "error[E0308]: mismatched types", False,
         "soft_failure", "soft_failure"),
        ("pytest -q | tail -3", "4 passed, 0 failed", False, None, None),
        ("cat error.log", "Traceback (most recent call last):", False, None, None),
        ("grep -rn FAIL . | head", "FAIL: x", False, None, None),
        ("cd /x && git log -3", "error: fix it", False, None, None),
        ("echo 'a; pytest' | cat", "error: x", False, None, None),
        ("npm test", "all good, errors: 0", False, None, None),
    ],
)  # fmt: skip
def test_soft_failures_are_labelled_apart(
    lake: Lake,
    projects: Any,
    script: Any,
    command: str,
    text: str,
    error: bool,
    kind: str | None,
    source: str | None,
) -> None:
    s = script()
    s.user("go")
    s.call("m1", "t1", "Bash", command=command)
    s.result("t1", text, error=error)
    expected = (kind, source, 0, text) if kind else (None, None, None, None)
    assert first_state(lake, projects, s) == expected


def test_a_reported_failure_and_a_correction_go_before_a_soft_one(
    lake: Lake, projects: Any, script: Any
) -> None:
    s = script()
    s.user("go")
    s.call("m1", "t1", "Bash", command="make | tail")
    s.call("m1", "t2", "Bash", command="ls /none")
    s.result("t1", "make: *** [all] Error 2")
    s.result("t2", "Exit code 2", error=True)
    assert first_state(lake, projects, s) == ("exit_code", "exit_code", 1, "Exit code 2")


def test_a_soft_failure_becomes_a_hint_with_its_own_source(
    lake: Lake, projects: Any, script: Any
) -> None:
    s = script()
    s.user("go")
    s.call("m1", "t1", "Bash", command="make tset | tail -1")
    s.result("t1", "make: *** No rule to make target 'tset'.  Stop.")
    ingest(lake, [s.write(projects)])
    report = build_hints(lake, days=["2026-11-16"])
    assert (report.hints, report.by_source) == (1, {"soft_failure": 1})
    (row,) = lake.rows("hints")
    assert (row["error_kind"], row["span_call"]) == ("soft_failure", 0)
