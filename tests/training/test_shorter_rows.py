"""Rows that other trainers take: under a length, in whole turns, both answers counted."""

import copy

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.testing.training import BASH, READ, call
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.windows import RowCutter

WORDS = "the price list of the shop is read once and kept for an hour after that"


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(resolve_model("smollm2-135m"))


def turn(number):
    asked = call("Read", file_path=f"src/part{number}.py")
    return [asked, {"role": "tool", "name": "Read", "content": f"{number}: {WORDS}\n" * 4}]


@pytest.fixture
def row():
    turns = [message for number in range(40) for message in turn(number)]
    return {
        "state_id": "s", "tools": [READ, BASH],
        "prompt": [{"role": "user", "content": "Find where prices are read."}, *turns],
        "chosen": [call("Read", file_path="src/part39.py")],
        "rejected": [call("Bash", command="python - <<'X'\n" + "print(1)\n" * 40 + "X")],
    }  # fmt: skip


def length(cutter, row, answer):
    """Tokens of a row as a trainer renders it, by the tokenizer alone."""
    tokenizer = copy.deepcopy(cutter._windows.tokenizer)
    tokenizer.chat_template = cutter.chat_template
    messages = [*row["prompt"], *row[answer]]
    text = tokenizer.apply_chat_template(messages, tools=row["tools"] or None, tokenize=False)
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("most", [512, 900, 2000])
def test_both_answers_fit_and_whole_turns_stay(tokenizer, row, most):
    cutter = RowCutter(tokenizer, most)
    before = copy.deepcopy(row)
    short, why = cutter.cut(row)
    assert why == ""
    assert row == before, "the row given is left as it is"
    lengths = [length(cutter, short, side) for side in ("chosen", "rejected")]
    assert 0.7 * most < max(lengths) <= most
    assert short["state_id"] == "s"
    (said,) = short["chosen"][0]["tool_calls"]
    assert said["function"] == row["chosen"][0]["tool_calls"][0]["function"]
    said = [message["role"] for message in short["prompt"]]
    assert said.count("tool") == sum(bool(m.get("tool_calls")) for m in short["prompt"])
    assert "Find where prices are read." in str(short["prompt"])
    assert "part39.py" in str(short["prompt"][-2])
    assert len(short["prompt"]) < len(row["prompt"])


def test_a_row_that_fits_keeps_its_prompt(tokenizer, row):
    row["prompt"] = row["prompt"][:5]
    short, why = RowCutter(tokenizer, 4000).cut(row)
    assert why == ""
    assert [m["content"] for m in short["prompt"][-5:]] == [m["content"] for m in row["prompt"]]
    assert short["tools"]


@pytest.mark.parametrize(
    ("lines", "said"), [(125, ""), (150, "the action leaves no room for a prompt")]
)
def test_a_quarter_of_a_row_is_its_prompt_s(tokenizer, row, lines, said):
    """Answers of 663 and 788 of 1,000 tokens."""
    long = call("Bash", command="python - <<'X'\n" + "print(1)\n" * lines + "X")
    _, why = RowCutter(tokenizer, 1000).cut({**row, "rejected": [long]})
    assert why == said


def test_what_cannot_be_cut_says_why(tokenizer, row):
    cutter = RowCutter(tokenizer, 256)
    _, why = cutter.cut(row)
    assert why == "the action leaves no room for a prompt"
    lost = {**row, "rejected": [call("Read", file_path="src/part1.py")]}
    _, why = cutter.cut(lost)
    assert why == "action names a file that the shortened prompt lost"
    _, why = cutter.cut({**row, "chosen": []})
    assert why == "the action leaves no room for a prompt", "the other answer alone is looked at"
    with pytest.raises(InputError, match="--max-tokens must be at least 256, not 255"):
        RowCutter(tokenizer, 255)
