"""Hints of a trace: the span they are about, and what they give away."""

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.preferences.hints import hint_row, leakage, span_text


def test_hint_rows():
    action = Action(
        "why", (ToolCall("Read", {"file_path": "a"}), ToolCall("Bash", {"command": "x"}))
    )
    error = {
        "state_id": "later",
        "session_id": "x",
        "error_kind": "exit_code",
        "hint": "a log\na.py:1: bad\nmore",
        "hint_source": "exit_code",
        "verdict": "revealed",
        "lesson": " a.py:1: bad ",
        "culprit_state_id": "s",
        "culprit_call": 1,
        "culprit_by": "line",
        "culprit_confidence": 0.95,
    }
    row = hint_row(error, action)
    assert (row["state_id"], row["error_state_id"]) == ("s", "later")
    assert (row["text"], row["whole"]) == ("a.py:1: bad", error["hint"])
    assert (row["span_call"], row["span_text"]) == (1, '{"command":"x"}')
    assert span_text(action, -1) == '{"file_path":"a"}\n{"command":"x"}'
    assert span_text(Action("only text"), -1) == "only text"


@pytest.mark.parametrize(
    ("hint", "span", "share"),
    [
        ("use the file a b c d", "a b c d", 1.0),
        ("a b c", "a b c d", 0.5),
        ("nothing here", "a b c d", 0.0),
        ("Say NO", "no", 1.0),
        ("x", "", 0.0),
    ],
)
def test_leakage(hint, span, share):
    assert leakage(hint, span) == share
