"""What a classifier that sees only style can tell."""

import random

import pytest

from composer_pipeline.preferences.quality import separability_figure
from composer_pipeline.preferences.rules import Separability
from composer_pipeline.preferences.style import FEATURES, separability


def action(name, **arguments):
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return [{"role": "assistant", "content": "", "tool_calls": [call]}]


def planted(n, chosen, rejected, *, sessions=10, seed=1):
    """Pairs whose sides are drawn by two functions of a random generator."""
    dice = random.Random(seed)
    return [
        {
            "session_id": f"s{i % sessions}",
            "chosen": chosen(dice),
            "rejected": rejected(dice),
        }
        for i in range(n)
    ]


def plain(dice):
    words = " ".join(f"w{dice.randrange(50)}" for _ in range(dice.randrange(3, 30)))
    return action("Bash", command=words, description="Say it")


def quoted(dice):
    words = " ".join(f'"w{dice.randrange(50)}"' for _ in range(dice.randrange(3, 30)))
    return action("Bash", command=words, description="Say it")


def reversed_keys(dice):
    (message,) = plain(dice)
    function = message["tool_calls"][0]["function"]
    function["arguments"] = dict(reversed(function["arguments"].items()))
    return [message]


def with_text(dice):
    return [{**plain(dice)[0], "content": "I will do that."}]


@pytest.mark.parametrize("side", [quoted, reversed_keys, with_text])
def test_planted_style_is_found(side):
    found = separability(planted(80, side, plain), Separability())
    assert found.auc is not None
    assert found.auc > 0.99
    assert found.roc[0] == (0.0, 0.0)
    assert found.roc[-1] == (1.0, 1.0)
    assert set(found.weights) == set(FEATURES)
    assert "AUC 1.0" in separability_figure(found, 0.7) or found.auc < 0.9995


def test_what_does_not_differ_is_not_found():
    found = separability(planted(300, plain, plain), Separability())
    assert found.auc is not None
    assert found.error is not None
    assert abs(found.auc - 0.5) < 4 * found.error
    assert found.auc < 0.7


def test_a_session_is_never_in_two_folds():
    # In each session another habit tells the sides apart. Only who has seen the session's other
    # pairs knows which habit it is, so over whole sessions nothing can be predicted.
    habits = ["'", '"', "\n", "é", " /abs/x", " "]
    rows = [
        {
            "session_id": f"s{number}",
            "chosen": action("Bash", command="x" * 40 + habit * 4),
            "rejected": action("Bash", command="x" * (40 + 4 * len(habit))),
        }
        for number, habit in enumerate(habits)
        for _ in range(10)
    ]
    found = separability(rows, Separability())
    assert found.auc is not None
    assert found.auc < 0.7


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        (planted(49, quoted, plain), "49 pairs, fewer than 50"),
        (planted(60, quoted, plain, sessions=4), "4 sessions, fewer than 5"),
        ([], "0 pairs"),
    ],
)
def test_too_little_data_gives_no_number(rows, note):
    found = separability(rows, Separability())
    assert found.auc is None
    assert note in found.note
    assert note in separability_figure(found, 0.7)


def bash(command):
    return action("Bash", command=command)


def keys(order):
    return action("Tool", **dict.fromkeys(order, "x"))


@pytest.mark.parametrize(
    ("chosen", "rejected", "varies"),
    [
        (bash("a''b"), bash("axxb"), {"single_quotes"}),
        (bash('a""b'), bash("axxxxb"), {"double_quotes"}),
        (bash("a\nb"), bash("axxb"), {"newlines"}),
        (bash("a  b"), bash("axxb"), {"spaces"}),
        (bash("a /bc"), bash("a xbc"), {"absolute_paths"}),
        (bash("ab\n"), bash("a\nb"), {"final_newline"}),
        (bash("é"), bash("e"), {"non_ascii"}),
        ([{"role": "assistant", "content": "hi"}], [{"role": "assistant", "content": " "}],
         {"has_text"}),
        (keys("abc"), keys("cab"), {"keys_sorted"}),
        (keys("cba"), keys("bac"), {"keys_reversed"}),
        (keys("bca"), keys("cab"), {"keys_as_usual"}),
        (keys("abc"), keys("ab"), {"arguments"}),
        ([*keys("a"), *keys("b")], keys("ab"), {"calls"}),
    ],
)  # fmt: skip
def test_each_habit_is_seen_by_its_own_feature(chosen, rejected, varies):
    rows = planted(50, lambda dice: chosen, lambda dice: rejected)
    weights = separability(rows, Separability()).weights
    told = {name for name, weight in weights.items() if abs(weight) > 1e-6}
    # What follows from another text: its length, its blanks, the order of other keys.
    follows = {
        "double_quotes": {"log_length"}, "newlines": {"log_length"}, "non_ascii": {"log_length"},
        "has_text": {"log_length", "spaces"}, "arguments": {"log_length", "newlines"},
        "calls": {"log_length", "keys_sorted", "keys_reversed", "keys_as_usual"},
    }  # fmt: skip
    (name,) = varies
    assert name in told
    assert told <= varies | follows.get(name, set())
