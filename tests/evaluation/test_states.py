"""Evaluation sets: frozen files, and their distance from training."""

import dataclasses

import pyarrow.parquet as pq
import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat.convert import prompt_hash
from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.states import (
    EvaluationState,
    check_disjoint,
    content_hash,
    read_states,
    write_states,
)
from composer_pipeline.testing.training import READ


def state(number, **changes):
    made = EvaluationState(
        f"s{number}", f"session{number % 2}", "hard_covered",
        [{"role": "user", "content": f"do {number}"}], [READ],
        Action("", (ToolCall("Read", {"z": 1, "file_path": "a"}, "id"),)), Action("no"),
        "a hint", "/home/x",
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def test_a_set_comes_back_as_it_was_in_the_order_of_ids(tmp_path):
    easy = state(2, kind="easy", wrong=None, hint=None, tools=[], cwd="")
    odd = state(3, messages=[{"role": "user", "content": "lone \ud800 surrogate"}])
    digest = write_states(tmp_path / "set.parquet", [odd, easy, state(1)])
    assert read_states(tmp_path / "set.parquet") == [state(1), easy, odd]
    assert digest == content_hash([easy, state(1), odd])
    first = read_states(tmp_path / "set.parquet")[0].right.tool_calls[0]
    assert list(first.arguments) == ["z", "file_path"]
    before = (tmp_path / "set.parquet").read_bytes()
    write_states(tmp_path / "set.parquet", [easy, state(1), odd])
    assert (tmp_path / "set.parquet").read_bytes() == before


@pytest.mark.parametrize(
    "changes",
    [
        {"session_id": "other"}, {"kind": "easy"}, {"messages": [{"role": "user", "content": "x"}]},
        {"tools": []}, {"right": Action("other")}, {"wrong": None}, {"hint": None}, {"cwd": ""},
    ],
)  # fmt: skip
def test_the_hash_sees_every_field(changes):
    assert content_hash([state(1)]) != content_hash([state(1, **changes)])


def test_a_changed_file_is_refused(tmp_path):
    path = tmp_path / "set.parquet"
    write_states(path, [state(1), state(2)])
    table = pq.read_table(path)
    pq.write_table(table.slice(0, 1), path)
    with pytest.raises(InputError, match="was changed"):
        read_states(path)
    pq.write_table(table.replace_schema_metadata({}), path)
    with pytest.raises(InputError, match="not an evaluation set"):
        read_states(path)
    path.write_text("no")
    with pytest.raises(InputError, match="cannot be read"):
        read_states(path)


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ([], "at least one"), ([state(1), state(1)], "duplicate states: s1"),
        ([state(1, kind="odd")], "odd"),
        ([state(1, session_id="")], "session_id is empty"), ([state(1, messages=[])], "messages"),
        ([state(1, wrong=state(1).right)], "wrong equals right"),
    ],
)  # fmt: skip
def test_a_wrong_set_is_refused_by_name(states, said, tmp_path):
    with pytest.raises(InputError, match=said):
        write_states(tmp_path / "set.parquet", states)
    assert not list(tmp_path.iterdir())


def test_overlap_with_training_is_refused_by_name():
    states = [state(1), state(2)]
    check_disjoint(states, {"another"}, {prompt_hash([{"role": "user", "content": "else"}])})
    with pytest.raises(InputError, match=r"1 of its sessions were trained on \(session0\)"):
        check_disjoint(states, {"session0"}, ())
    with pytest.raises(InputError, match=r"1 of its states were trained on \(states s2\)"):
        check_disjoint(states, (), {prompt_hash(states[1].messages)})
