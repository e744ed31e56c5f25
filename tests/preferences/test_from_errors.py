"""Hints of a trace: the span they are about, and what they give away."""

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.preferences.hints import hint_row, leakage, span_text


def test_hint_rows():
    action = Action(
        "why", (ToolCall("Read", {"file_path": "a"}), ToolCall("Bash", {"command": "x"}))
    )
    state = {
        "state_id": "s",
        "session_id": "x",
        "action": action.to_json(),
        "error_kind": "exit_code",
        "hint": " Exit code 1 ",
        "hint_source": "exit_code",
        "hint_call": 1,
    }
    row = hint_row(state)
    assert row is not None
    assert (row["text"], row["span_call"], row["span_text"]) == (
        "Exit code 1",
        1,
        '{"command":"x"}',
    )
    assert hint_row({**state, "hint": None}) is None
    assert hint_row({**state, "hint": "  "}) is None
    assert hint_row({**state, "error_kind": "cancelled"}) is None
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
