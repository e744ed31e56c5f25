"""Levels of single calls: what is scope, and what is display."""

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.preferences.actions.canonical import Level
from composer_pipeline.preferences.actions.levels import ActionContext, level


def between(name, a, b):
    one, other = (Action("", (ToolCall(name, arguments),)) for arguments in (a, b))
    found = level(one, other, ActionContext()).level
    assert found is level(other, one, ActionContext()).level
    return found


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"-i": True}, Level.L2),
        ({"glob": "*.py"}, Level.L2),
        ({"type": "py"}, Level.L2),
        ({"multiline": True}, Level.L2),
        ({"output_mode": "content"}, Level.L1),
        ({"-n": True, "output_mode": "content", "-C": 3}, Level.L1),
        ({"head_limit": 5}, Level.L1),
        ({"path": "src"}, Level.L4),
        ({"pattern": "b"}, Level.L4),
    ],
)
def test_a_search_is_its_pattern_its_place_and_its_scope(change, expected):
    assert between("Grep", {"pattern": "a"}, {"pattern": "a", **change}) is expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ({}, {"offset": 2000}, Level.L1),  # line 2000 is in both
        ({}, {"offset": 2001}, Level.L2),
        ({"offset": 10, "limit": 5}, {"offset": 14}, Level.L1),
        ({"offset": 10, "limit": 5}, {"offset": 15}, Level.L2),
        ({"pages": "1-3"}, {"pages": "3"}, Level.L1),
        ({"pages": "1-3"}, {"pages": "4-5"}, Level.L2),
    ],
)
def test_reads_are_the_same_where_they_share_a_line(a, b, expected):
    assert between("Read", {"file_path": "f", **a}, {"file_path": "f", **b}) is expected
