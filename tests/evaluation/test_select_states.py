"""States of a lake: what was right, from teachers and from what happened later."""

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat.convert import prompt_hash
from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.select_states import select_states, training_content
from composer_pipeline.lake.store import Lake
from composer_pipeline.testing.training import READ, call
from tests.fixtures.lake_states import write_session

READ_A, READ_B = call("Read", file_path="/w/a.py"), call("Read", file_path="/w/b.py")
TAIL = call("Read", file_path="/w/a.py", offset=900, limit=10)
TOP = call("Read", file_path="/w/a.py", offset=1, limit=10)
SAME = call("Read", file_path="/w/./a.py")


def common(name, text="go"):
    return {
        "state_id": name, "session_id": f"x{name}", "group_id": "g", "tools": [READ],
        "prompt": [{"role": "user", "content": f"{text} {name}"}],
    }  # fmt: skip


def group(name, own, consensus, **changes):
    row = {
        **common(name), "candidates": [READ_B, own, READ_B], "sources": ["one", "agent", "two"],
        "consensus": [consensus] if consensus else None,
    }  # fmt: skip
    return row | changes


def hint(name, own, recovery=None):
    row = {**common(name), "action": [own], "hint": f"hint {name}", "span_call": 0}
    return {**row, "recovery": [recovery] if recovery else None}


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path / "lake")
    lake.write(
        "dataset_groups",
        [
            group("against", READ_A, READ_B), group("same", READ_A, SAME),
            group("failed", READ_A, READ_B), group("all-failed", READ_A, READ_A),
            group("other-lines", TOP, TAIL), group("nothing", READ_A, None),
            group("no-agent", READ_A, READ_B, sources=["a"] * 3),
        ],
        split="validation",
    )  # fmt: skip
    lake.write(
        "dataset_hints",
        [
            hint("failed", READ_A, SAME), hint("all-failed", READ_A, READ_B),
            hint("recovered", READ_A, READ_B), hint("never", READ_A), hint("again", READ_A, READ_A),
        ],
        split="validation",
    )  # fmt: skip
    return lake


def test_each_state_is_what_teachers_and_later_events_say(lake):
    found = {state.state_id: state for state in select_states(lake)}
    assert {name: state.kind for name, state in found.items()} == {
        "against": "hard_covered", "failed": "hard_covered", "same": "easy",
        "recovered": "hard_uncovered",
    }  # fmt: skip
    path = "file_path"
    against = found["against"]
    assert against.right.tool_calls[0].arguments == {path: "/w/b.py"}
    assert against.wrong
    assert against.wrong.tool_calls[0].arguments == {path: "/w/a.py"}
    assert (against.hint, against.session_id) == (None, "xagainst")
    assert found["failed"].hint == "hint failed"
    assert found["same"].wrong is None
    recovered = found["recovered"]
    assert recovered.right.tool_calls[0].arguments == {path: "/w/b.py"}
    assert recovered.wrong
    assert recovered.wrong.tool_calls[0].arguments == {path: "/w/a.py"}
    assert (recovered.hint, recovered.messages) == ("hint recovered", common("recovered")["prompt"])


def test_a_cap_is_a_kind_s_and_the_same_each_time(lake):
    few = select_states(lake, per_kind=1)
    assert sorted(state.kind for state in few) == ["easy", "hard_covered", "hard_uncovered"]
    assert few == select_states(lake, per_kind=1)
    assert select_states(lake, per_kind=2) == select_states(lake)


def test_what_was_trained_on(lake):
    lake.write("dataset_pairs", [{**common("p", "train"), "pair_id": "p"}], split="train")
    rows = [{**hint("h", READ_A), **common("h", "train"), "session_id": None}]
    lake.write("dataset_hints", rows, split="train")
    sessions, prompts = training_content(lake)
    assert sessions == {"xp", "g"}
    assert prompts == {prompt_hash(common(name, "train")["prompt"]) for name in "ph"}


def test_a_split_without_a_known_state_is_refused(lake):
    with pytest.raises(InputError, match="no state with split=train whose right action is known"):
        select_states(lake, "train")


def bash(command):
    return Action("Next.", (ToolCall("Bash", {"command": command}),))


def test_the_response_behind_an_error_is_a_recovery_unless_it_fails_too(tmp_path):
    lake = Lake(tmp_path / "lake")
    steps = [
        (bash("ls"), "a.py"), (bash("pytest"), "no module"), (bash("python -m pytest"), "ok"),
        (bash("ls b"), "none"), (bash("ls c"), "none"), (bash("ls d"), "ok"), (bash("ls e"), "ok"),
    ]  # fmt: skip
    ids = write_session(lake, "one", steps, day="2026-11-16", error_turns=[1, 3, 4])
    failed = [
        {**hint("x", call("Bash", command="x")), "state_id": ids[i], "session_id": "one"}
        for i in (1, 3, 4)
    ]
    lake.write("dataset_hints", failed, split="validation")
    found = select_states(lake)
    said = {state.state_id: state for state in found if state.kind == "recovery"}
    assert set(said) == {ids[2], ids[5]}
    state = said[ids[2]]
    assert state.right.tool_calls[0].arguments == {"command": "python -m pytest"}
    assert "no module" in state.messages[-1]["content"]
    assert (state.session_id, state.wrong, state.hint) == ("one", None, None)
    ours = {"state_id": ids[2], "session_id": "one"}
    agree = group("x", call("Bash", command="python -m pytest"), call("Bash", command="x"))
    agree["consensus"] = [call("Bash", command="python -m pytest")]
    lake.write("dataset_groups", [{**agree, **ours}], split="validation")
    assert {s.kind for s in select_states(lake) if s.state_id == ids[2]} == {"recovery"}
    against = {**agree, "consensus": [call("Bash", command="git push --force")]}
    lake.write("dataset_groups", [{**against, **ours}], split="validation")
    assert {s.kind for s in select_states(lake) if s.state_id == ids[2]} == {"hard_covered"}
