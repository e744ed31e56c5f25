"""Answers against the right action: exact, in effect, valid, cut off."""

import json

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.evaluation.judge import Judge, same_action
from composer_pipeline.evaluation.states import row_of
from composer_pipeline.testing.training import call
from composer_pipeline.training.chat_template import AnswerReader


@pytest.fixture(scope="module")
def judge(tokenizer):
    return Judge(AnswerReader(tokenizer))


def written(tokenizer, *calls, text="", end=True):
    """Return the ids of an answer as the template writes it."""
    said = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    parts = [f"<tool_call>\n{each}\n</tool_call>" for each in said]
    body = "\n".join([text, *parts] if text else parts)
    ids = tokenizer(body, add_special_tokens=False)["input_ids"]
    return [*ids, tokenizer.eos_token_id] if end else ids


READ = {"file_path": "src/alder.py"}


@pytest.mark.parametrize(
    ("calls", "exact", "canonical", "problem"),
    [
        ([("Read", READ)], True, True, ""),
        ([("Read", {"file_path": "./src/alder.py"})], False, True, ""),
        ([("Read", {"file_path": "/w/src/alder.py"})], False, True, ""),
        ([("Read", {"file_path": "lib/alder.py"})], False, False, ""),
        ([("Open", READ)], False, False, "a tool that was not offered"),
        ([("Read", {})], False, False, "Read without file_path"),
        ([("Read", {"file_path": 3})], False, False, "Read: file_path is not of type string"),
        ([("Read", READ), ("Read", READ)], False, False, ""),
        ([], False, False, "no tool call"),
    ],
)
def test_an_answer_is_judged_against_the_right_action_and_the_schemas(
    judge, tokenizer, windows, make_state, calls, exact, canonical, problem
):
    row = row_of(windows, make_state(0, cwd="/w"))
    found = judge.judge(row, written(tokenizer, *calls, text="" if calls else "I read."))
    assert (found.exact, found.canonical, found.problem) == (exact, canonical, problem)
    assert found.valid_call is (not problem)


def test_an_answer_that_was_cut_off_is_none(judge, tokenizer, windows, make_state):
    row = row_of(windows, make_state(0))
    cut: list[int] = written(tokenizer, ("Read", READ), end=False)
    for answer in (cut, cut[:0]):
        found = judge.judge(row, answer)
        assert (found.action, found.exact, found.canonical) == (None, False, False)
        assert (found.valid_call, found.problem) == (False, "the answer was cut off")


def test_validity_is_asked_only_where_a_tool_is_right_and_tools_are_known(
    judge, tokenizer, windows, make_state
):
    answer = written(tokenizer, ("Open", READ))
    assert judge.judge(row_of(windows, make_state(0, tools=[])), answer).valid_call is None
    text = row_of(windows, make_state(0, right=Action("Done.")))
    assert judge.judge(text, answer).valid_call is None
    done = judge.judge(text, written(tokenizer, text="Done."))
    assert (done.exact, done.canonical) == (True, True)


def test_the_files_of_the_prompt_decide_whether_two_edits_are_the_same(
    judge, tokenizer, windows, make_state
):
    """Two edits with one result are one action, for who knows the file."""
    content = "     1→one\n     2→two\n"
    messages = [
        {"role": "user", "content": "Go."},
        call("Read", file_path="/w/a"),
        {"role": "tool", "tool_call_id": "call_1", "name": "Read", "content": content},
    ]
    right = {"file_path": "/w/a", "old_string": "two", "new_string": "three"}
    other = {"file_path": "/w/a", "old_string": "one\ntwo", "new_string": "one\nthree"}
    state = make_state(
        0, cwd="/w", tools=[], messages=messages, right=Action("", (ToolCall("Edit", right),)),
        wrong=None, hint=None,
    )  # fmt: skip
    found = judge.judge(row_of(windows, state), written(tokenizer, ("Edit", other)))
    assert (found.exact, found.level) == (False, "L1")
    messages[2]["content"] = f"[tool error] {content}"
    found = judge.judge(row_of(windows, state), written(tokenizer, ("Edit", other)))
    assert not found.canonical


def test_calls_are_compared_as_json_and_texts_as_texts():
    def made(**arguments):
        return Action("", (ToolCall("Read", arguments, "x"),))

    assert same_action(
        made(a=1, b=2), Action("I read.", (ToolCall("Read", {"b": 2, "a": 1}, "y"),))
    )
    assert not same_action(made(a=1), made(a=1.0))
    assert not same_action(made(a=1), made(a=True))
    assert not same_action(made(a=1), Action("", made(a=1).tool_calls * 2))
    assert not same_action(made(), Action("Read"))
    assert same_action(Action(" yes\n"), Action("yes"))
