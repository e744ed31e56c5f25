"""An episode shows a recorded result for a call that matches, and nothing for any other."""

from pathlib import Path

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat.convert import action_message, to_chat
from composer_pipeline.environment.recorded import (
    AGREED,
    ALIKE,
    DIVERGED,
    OVER,
    Episode,
    Trace,
    Traces,
)
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_state, load_states
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.traces.ingest import ingest
from tests.fixtures.lake_states import write_session

SHOP = "/home/user/shop"


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(name, dict(arguments))


READ = call("Read", file_path=f"{SHOP}/a.py")
EDIT = call("Edit", file_path=f"{SHOP}/a.py", old_string="x = 1", new_string="x = 2")
GREP, GLOB = call("Grep", pattern="x ="), call("Glob", pattern="*.py")
TEST = call("Bash", command="pytest -q")
TURNS = [
    (Action("Look.", (READ,)), "1  x = 1"),
    (Action("", (GREP, GLOB)), "found"),
    (Action("", (EDIT,)), "edited"),
    (Action("", (TEST,)), "1 passed"),
    (Action("Done."), "Thank you."),
]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path))


def agreed(lake: Lake, state_id: str, *calls: ToolCall, split: str = "train", model="teacher-1"):
    """Let teachers agree on an action at a state."""
    row = {
        "state_id": state_id, "group_id": "g", "session_id": "s", "prompt": [], "tools": [],
        "candidates": [{}, {}], "sources": ["agent", "one"], "models": ["agent-1", model],
        "consensus": [action_message(Action("", calls))], "simulated": True,
    }  # fmt: skip
    lake.write("dataset_groups", [row], split=split)


def repeated(trace: Trace) -> Episode:
    """Take the whole trace as it was recorded, the parallel calls backwards."""
    episode = Episode(trace.turns)
    for turn in trace.turns:
        for wanted, result in reversed(list(zip(turn.wanted, turn.results, strict=True))):
            assert not episode.done
            assert episode.step(wanted.name, wanted.arguments).result == result
    return episode


def test_the_recorded_calls_earn_one_and_see_what_was_recorded(lake):
    first, *_ = write_session(lake, "s", TURNS)
    trace = Traces(lake).at(first)
    assert [len(turn.wanted) for turn in trace.turns] == [1, 2, 1, 1]
    assert trace.messages == to_chat(load_state(lake, first)).messages
    episode = repeated(trace)
    assert episode.total == pytest.approx(1.0)
    assert episode.done
    assert episode.step("Bash", {"command": "pytest -q"}).text == OVER


def test_every_trace_of_the_sample_sessions_can_be_repeated(tmp_path):
    lake = Lake(str(tmp_path))
    ingest(lake, [sample_sessions_dir()])
    found = list(Traces(lake).all())
    assert len(found) > 100
    assert max(len(trace.turns) for trace in found) > 5
    for trace in found:
        assert repeated(trace).total == pytest.approx(1.0)
    # What the model saw on the way is what the prefix of the next state holds.
    states = {state.state_id: state for state in load_states(lake)}
    for trace in found:
        for turn, later in zip(trace.turns, trace.turns[1:], strict=False):
            prefix = to_chat(states[later.state_id]).messages
            shown = [m["content"] for m in prefix[-len(turn.results) :]]
            assert tuple(shown) == turn.results


@pytest.mark.parametrize(
    "wrong",
    [
        call("Bash", command="cat a.py"),
        call("Read", file_path=f"{SHOP}/b.py"),
        call("Open", file_path=f"{SHOP}/a.py"),
        call("Read"),
    ],
)
def test_another_call_ends_the_episode_and_shows_nothing(lake, wrong):
    first, *_ = write_session(lake, "s", TURNS)
    episode = Episode(Traces(lake).at(first).turns)
    seen = episode.step(wrong.name, wrong.arguments)
    assert (seen.done, seen.result, seen.text) == (True, None, DIVERGED)
    assert 0 <= seen.reward < 0.5 / 4
    again = episode.step(READ.name, READ.arguments)
    assert (again.reward, again.result, again.text) == (0.0, None, OVER)
    assert episode.steps == 1


def test_a_call_of_equal_effect_earns_as_much_and_shows_nothing(lake):
    first, *_ = write_session(lake, "s", TURNS)
    episode = Episode(Traces(lake).at(first).turns)
    # The lines of a part of a file are not those that were recorded.
    seen = episode.step("Read", {"file_path": f"{SHOP}/a.py", "limit": 3})
    assert (seen.reward, seen.done, seen.result, seen.text) == (0.25, True, None, ALIKE)


def test_another_spelling_of_the_recorded_call_goes_on(lake):
    first, *_ = write_session(lake, "s", TURNS)
    episode = Episode(Traces(lake).at(first).turns)
    assert episode.step("Read", {"file_path": f"{SHOP}//lib/../a.py"}).result == "1  x = 1"


def test_one_of_two_parallel_calls_earns_half_its_turn_and_only_once(lake):
    ids = write_session(lake, "s", TURNS)
    episode = Episode(Traces(lake).at(ids[1]).turns)
    assert episode.step(GLOB.name, GLOB.arguments).reward == pytest.approx(1 / 6)
    assert episode.turn == 0
    twice = episode.step(GLOB.name, GLOB.arguments)
    assert (twice.result, twice.done) == (None, True)
    assert episode.total < 0.5


def test_near_and_far_calls_earn_more_and_less_but_never_what_a_match_does(lake):
    ids = write_session(lake, "s", TURNS)
    turns = Traces(lake).at(ids[2]).turns
    near = Episode(turns).step("Edit", {**EDIT.arguments, "new_string": "x = 3"}).reward
    far = Episode(turns).step("Write", {"file_path": "b", "content": "x"}).reward
    assert far == 0 < near <= 0.25


def test_what_failed_and_nobody_confirmed_is_no_target(lake):
    ids = write_session(lake, "s", TURNS, error_turns=[2])
    assert len(Traces(lake).at(ids[0]).turns) == 2
    with pytest.raises(InputError, match="nothing can be replayed from state"):
        Traces(lake).at(ids[2])
    agreed(lake, ids[2], EDIT)
    assert len(Traces(lake).at(ids[0]).turns) == 4


def test_where_teachers_agree_on_something_else_the_trace_ends_with_their_call(lake):
    ids = write_session(lake, "s", TURNS)
    agreed(lake, ids[2], TEST)
    turns = Traces(lake).at(ids[1]).turns
    assert [len(turn.results) for turn in turns] == [2, 0]

    def last(wanted: ToolCall) -> tuple[Episode, str | None, str]:
        episode = Episode(turns)
        for each in (GREP, GLOB):
            episode.step(each.name, each.arguments)
        seen = episode.step(wanted.name, wanted.arguments)
        assert seen.done
        return episode, seen.result, seen.text

    episode, result, text = last(TEST)
    assert episode.total == pytest.approx(1.0)
    assert (result, text) == (None, AGREED)
    episode, result, text = last(EDIT)
    assert episode.total == pytest.approx(0.5)
    assert (result, text) == (None, DIVERGED)


def test_a_student_is_not_its_own_target(lake):
    ids = write_session(lake, "s", TURNS)
    with pytest.raises(InputError, match="nothing can be replayed"):
        Traces(lake, student="agent-1").at(ids[0])
    agreed(lake, ids[0], READ, model="agent-1")
    with pytest.raises(InputError, match="nothing can be replayed"):
        Traces(lake, student="agent-1").at(ids[0])
    agreed(lake, ids[0], READ)
    assert len(Traces(lake, student="agent-1").at(ids[0]).turns) == 1


def test_words_of_the_user_and_a_missing_result_end_a_trace(lake):
    ids = write_session(lake, "s", TURNS)
    assert len(Traces(lake).at(ids[3]).turns) == 1
    with pytest.raises(InputError, match="nothing can be replayed"):
        Traces(lake).at(ids[4])


def test_held_out_sessions_are_served_only_where_they_are_asked_for(lake):
    ids = write_session(lake, "s", TURNS)
    other = write_session(lake, "other", TURNS, prompt="Another task.")
    agreed(lake, ids[0], READ, split="validation")
    assert {trace.session_id for trace in Traces(lake).all()} == {"other"}
    assert {trace.session_id for trace in Traces(lake, split="validation").all()} == {"s"}
    with pytest.raises(InputError, match="no states to replay with split=train"):
        Traces(lake, split="train")
    with pytest.raises(InputError, match="no state"):
        Traces(lake).at(ids[0])
    assert Traces(lake).of_session("other").state_id == other[0]


def test_a_trace_is_drawn_by_its_seed_and_cut_where_it_is_asked_to(lake):
    write_session(lake, "s", TURNS)
    write_session(lake, "other", TURNS, prompt="Another task.")
    traces = Traces(lake, max_turns=2)
    assert traces.drawn(3).state_id == traces.drawn(3).state_id
    assert len({traces.drawn(seed).state_id for seed in range(20)}) > 2
    assert max(len(trace.turns) for trace in traces.all()) == 2
    assert repeated(traces.of_session("s")).total == pytest.approx(1.0)


def test_an_empty_lake_says_so(lake):
    with pytest.raises(InputError, match="has no states to replay: run ingest first"):
        Traces(lake)
