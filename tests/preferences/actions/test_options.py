"""Options in one order and spelling."""

import pytest

from composer_pipeline.preferences.actions.shell_options import read


def reading(line):
    return read(tuple(line.split()))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("grep -rn x src", "grep -n -r x src"),
        ("grep --recursive --ignore-case x .", "grep -ri x ."),
        ("head -5 f", "head -n 5 f"),
        ("head -n5 f", "head --lines=5 f"),
        ("git -C d status", "git -C d status"),
        ("grep -A 3 x f", "grep -A3 x f"),
    ],
)
def test_one_command_in_two_spellings(a, b):
    left, right = reading(a), reading(b)
    assert left is not None
    assert (left.options, left.operands) == (right.options, right.operands)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("grep -h -H x f", "grep -H -h x f"),  # the last one wins
        ("grep -i x f", "grep x f"),
        ("head -n 5 f", "head -c 5 f"),
        ("git diff --cached", "git diff"),
    ],
)
def test_what_differs_stays_apart(a, b):
    left, right = reading(a), reading(b)
    assert (left.options, left.operands) != (right.options, right.operands)


def test_a_command_with_an_unknown_option_is_not_rearranged():
    assert reading("grep --frobnicate x f") is None
    assert reading("grep -rZQ9 x f") is None
    assert reading("grep -A") is None
    assert reading("frobnicate x") is None


def test_words_after_two_dashes_stay_apart():
    found = reading("npm run test -- --bail")
    assert found.subcommand == "test"
    assert found.tail == ("--", "--bail")
