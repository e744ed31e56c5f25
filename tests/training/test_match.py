"""The recorded-action reward: its scale, and policies that try to cheat it."""

import os
import subprocess
import sys

import pytest

from composer_pipeline.testing.training import call
from composer_pipeline.training.rewards import action_match

EDIT = call("Edit", file_path="src/a.py", old_string="x = 1\n", new_string="x = 2\n")


def text(content):
    return {"role": "assistant", "content": content}


def test_the_same_action_is_one():
    for action in (EDIT, text("All tests pass."), call("Bash", command="ls"), call("Wait")):
        assert action_match(action, action) == 1.0


@pytest.mark.parametrize(
    ("candidate", "consensus", "score"),
    [
        (call("Read", file_path="./src//a.py"), call("Read", file_path="src/a.py"), 1.0),
        (call("Read", file_path="src/b.py"), call("Read", file_path="src/a.py"), 0.5),
        (call("Grep", pattern="a"), call("Read", file_path="a"), 0.0),
        (text("I will read it."), call("Read", file_path="a"), 0.0),
        (call("Read", file_path="a"), text("Done."), 0.0),
        (call("Bash", command="pytest -q a"), call("Bash", command="pytest -q b"), 0.5 + 1 / 3),
        (call("Read", file_path="a", limit=3), call("Read", file_path="a"), 0.2 + 0.15 + 0.25),
        (call("Read", limit=3), call("Read", limit=4), 0.5),
    ],
)
def test_scores(candidate, consensus, score):
    assert action_match(candidate, consensus) == pytest.approx(score)


def test_a_score_is_the_same_to_the_last_digit_in_every_process():
    """Or the rows of a run, and with them the run, would differ where nothing else does."""
    code = (
        "from composer_pipeline.testing.training import call\n"
        "from composer_pipeline.training.rewards import action_match\n"
        "one = {f'name{n}': 'a b c d e f g h i j k l m'[: 2 * n + 1] for n in range(12)}\n"
        "more = {name: ' x y z'[: 2 + 2 * (n % 3)] for n, name in enumerate(one)}\n"
        "two = {name: value + more[name] for name, value in one.items()}\n"
        "print(repr(action_match(call('Tool', **one), call('Tool', **two))))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "1234"
    }
    assert len(found) == 1, found


def test_missing_and_surplus_calls_cost():
    one, two = call("Read", file_path="a"), call("Read", file_path="a")
    two["tool_calls"] = [*two["tool_calls"], *call("Read", file_path="b")["tool_calls"]]
    assert action_match(one, two) == 0.5
    assert action_match(two, one) == 0.5


def test_arguments_may_be_json_text():
    wire = call("Read", file_path="a")
    wire["tool_calls"][0]["function"]["arguments"] = '{"file_path": "a"}'
    assert action_match(wire, call("Read", file_path="a")) == 1.0
    wire["tool_calls"][0]["function"]["arguments"] = "not json"
    assert action_match(wire, call("Read", file_path="a")) < 0.5


def test_reward_hacking_scores_below_the_recorded_agent():
    """A constant tool, the last command again, and an empty Edit lose against honest errors."""
    history = [  # (what the agent did, what it did before, the consensus)
        (
            call("Edit", file_path="src/a.py", old_string="x = 1", new_string="x = 3"),
            call("Bash", command="pytest"),
            EDIT,
        ),
        (
            call("Bash", command="pytest tests/test_a.py"),
            call("Bash", command="git status"),
            call("Bash", command="pytest tests/test_a.py -x"),
        ),
        (
            call("Read", file_path="src/b.py"),
            call("Bash", command="ls src"),
            call("Read", file_path="src/c.py"),
        ),
    ]
    agent = sum(action_match(did, want) for did, _, want in history)
    empty = call("Edit", file_path="", old_string="", new_string="")
    constant = call("Bash", command="ls")
    assert sum(action_match(constant, want) for *_, want in history) < agent / 2
    assert sum(action_match(before, want) for _, before, want in history) < agent / 2
    assert action_match(empty, EDIT) < action_match(history[0][0], EDIT) / 2


def test_long_strings_stay_cheap():
    import time

    a = call("Write", file_path="a", content="word " * 200_000)
    b = call("Write", file_path="a", content="other " * 200_000)
    start = time.process_time()
    assert action_match(a, b) == pytest.approx(0.75)
    close = call("Write", file_path="a", content="word " * 199_999 + "end")
    assert action_match(a, close) > 0.9
    assert time.process_time() - start < 10
