"""Wrappers, sub-commands and flags of a simple command."""

import pytest

from composer_pipeline.preferences.actions.shell_programs import split, unwrap


@pytest.mark.parametrize(
    ("line", "inner"),
    [
        ("timeout 60 pytest -x", "pytest -x"),
        ("timeout -k 5 60 pytest", "pytest"),
        ("npx vitest run", "vitest run"),
        ("env -i A=b CI=1 make", "make"),
        ("uv run pytest", "pytest"),
        ("poetry run python -m pytest", "pytest"),
        ("python3.11 -m pytest", "pytest"),
        ("/usr/bin/python3 x.py", "python x.py"),
        ("./node_modules/.bin/tsc --noEmit", "tsc --noEmit"),
        ("nohup", "nohup"),
        ("python -m", "python -m"),
    ],
)
def test_a_wrapper_gives_what_it_runs(line, inner):
    assert " ".join(unwrap(line.split())) == inner


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("git -C x log -n 5 a", ("git", "log", ("a",), ("-C", "x", "-n", "5"))),
        ("git stash drop 1", ("git", "stash drop", ("1",), ())),
        ("gh pr view 12", ("gh", "pr view", ("12",), ())),
        ("head -5 f", ("head", "", ("f",), ("-5",))),
        ("pytest -k name t -- --live", ("pytest", "", ("t",), ("-k", "name", "--live"))),
        ("cat -", ("cat", "", ("-",), ())),
    ],
)
def test_words_fall_into_subcommand_operands_and_flags(line, parts):
    assert split(line.split()) == parts


@pytest.mark.parametrize(
    ("words", "operands"),
    [
        ("head -n 5 f", ("f",)),
        ("head -5 f", ("f",)),
        ("grep -A 3 x f", ("x", "f")),
        ("git log -- -x f", ("f",)),
    ],
)
def test_the_value_of_an_option_is_no_file(words, operands):
    assert split(words.split())[2] == operands
