"""Whether a call changes anything, beyond the command line."""

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.preferences.actions.canonical import call_mutates, mutates


@pytest.mark.parametrize(
    ("prompt", "changes"),
    [
        ("Fix the totals in cart.py", True),
        ("Find where totals are computed", False),
        ("Find what to fix in cart.py, but do not change any file", False),
        ("Read-only: say which tests to add", False),
        ("Look for what to refactor. Don't edit anything.", False),
        ("Update the README without asking", True),
    ],
)
@pytest.mark.parametrize("tool", ["Task", "Agent"])
def test_an_agent_changes_what_it_is_told_to(tool, prompt, changes):
    assert call_mutates(ToolCall(tool, {"prompt": prompt})) is changes


@pytest.mark.parametrize(
    ("name", "arguments", "changes"),
    [
        ("mcp__db__query", {"sql": "DROP TABLE users"}, True),
        ("mcp__db__execute_sql", {"statements": ["SELECT 1", "delete from x"]}, True),
        ("mcp__db__query", {"sql": "SELECT * FROM users"}, False),
        ("mcp__tracker__createIssue", {}, True),
        ("mcp__tracker__get_issue", {}, False),
        ("mcp__web__browser_click", {}, True),
        ("mcp__web__list_updates", {}, False),
        ("KillShell", {}, True),
        ("TodoWrite", {"todos": []}, False),
        ("Write", {"file_path": "a"}, True),
        ("Bash", {}, True),
    ],
)
def test_other_tools(name, arguments, changes):
    assert call_mutates(ToolCall(name, arguments)) is changes


def test_an_action_changes_something_if_one_of_its_calls_does():
    looks, writes = ToolCall("Read", {"file_path": "a"}), ToolCall("Write", {"file_path": "a"})
    assert mutates(Action("", (looks, writes)))
    assert not mutates(Action("I will change it.", (looks,)))
