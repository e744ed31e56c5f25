"""Levels of two command lines: what may be written otherwise, and what acts on something else."""

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.preferences.actions.canonical import Level
from composer_pipeline.preferences.actions.levels import ActionContext, level


def between(a, b):
    one, other = (Action("", (ToolCall("Bash", {"command": line}),)) for line in (a, b))
    return level(one, other, ActionContext()).level


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("ls -t -S", "ls -S -t", False),  # the last one counts
        ("ls -l -a", "ls -a -l", True),
        ("echo x >| f", "echo x > f", True),
        ("(echo x >| f)", "(echo x > f)", True),
        ("echo x >> f", "echo x > f", False),
        ("sed -f a.sed x.txt", "sed -f b.sed x.txt", False),
        ("sed -e p x.txt", "sed p x.txt", True),
        ("printf $'a\\x41'", "printf $'a\\x42'", False),
        ("printf $'a\\n'", "printf $'a\\n'", True),
    ],
)
def test_lines_are_the_same_where_they_do_the_same(a, b, same):
    found = between(a, b)
    assert (found <= Level.L1) is same


def test_installs_from_other_lists_have_other_targets():
    assert between("pip install -r dev.txt", "pip install -r prod.txt") > Level.L2


def test_searches_for_other_names_have_other_targets():
    for flag in ("-name", "-iname", "-path", "-ipath", "-regex"):
        one, other = (f"find . {flag} {name}" for name in ("'*.py'", "'*.md'"))
        assert between(one, other) > Level.L2, flag
