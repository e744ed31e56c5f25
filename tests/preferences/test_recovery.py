"""Recoveries: the agent's own later call that worked, and what is none."""

import msgspec
import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.hints import LATER_STATES, recoveries
from composer_pipeline.states.load import load_states
from tests.fixtures.lake_states import write_session


def read(path):
    return ToolCall("Read", {"file_path": path})


def edit(path, old):
    return ToolCall("Edit", {"file_path": path, "old_string": old, "new_string": "x"})


def bash(command):
    return ToolCall("Bash", {"command": command})


def say(text):
    """An action without a call; the message behind it is the user's."""
    return Action(text)


WRONG, RIGHT = read("/home/user/shop/lib/cart.py"), read("/home/user/shop/src/cart.py")
LOOK, DONE = ToolCall("Glob", {"pattern": "**/cart.py"}), bash("git status")


def found(tmp_path, *turns, kind="tool_error", call=0, later=None):
    """Return what answers to the first turn; ``later`` changes the second state."""
    lake = Lake(tmp_path)
    actions = [turn if isinstance(turn, Action) else Action("Well.", (turn,)) for turn in turns]
    ids = write_session(lake, "s", [(action, "result") for action in actions])
    states = list(load_states(lake))
    states[0] = msgspec.structs.replace(states[0], error_kind=kind)
    if later:
        states[1] = msgspec.structs.replace(states[1], **later)
    states.reverse()
    got = recoveries(states, {ids[0]: call})
    assert set(got) <= {ids[0]}
    recovery = got.get(ids[0])
    return recovery and recovery.action


def args(action):
    (call,) = action.tool_calls
    return call.arguments


def test_the_same_file_in_another_folder_is_a_recovery_and_its_text_stays_behind(tmp_path):
    better = found(tmp_path, WRONG, LOOK, RIGHT, DONE)
    assert args(better) == RIGHT.arguments
    assert better.text == ""


@pytest.mark.parametrize(
    ("failed", "later"),
    [
        (edit("a.py", "one"), edit("/home/user/shop/a.py", "two")),
        (bash("git push 2>&1"), bash("git push --set-upstream origin main")),
        (bash("lint ./cmd/..."), bash("mise exec -- lint ./cmd/...")),
        (bash("mise run fmt"), bash("mise trust && mise run fmt")),
        (ToolCall("Open", {"file_path": "a.py"}), read("a.py")),
        (ToolCall("Skill", {"skill": "x:plan"}), ToolCall("Skill", {"skill": "plan"})),
    ],
    ids=lambda call: str(call.arguments)[:30],
)
def test_another_attempt_at_the_same_thing_is_found(tmp_path, failed, later):
    assert args(found(tmp_path, failed, later, DONE)) == later.arguments


@pytest.mark.parametrize(
    ("failed", "later"),
    [
        (edit("a.py", "one"), read("a.py")),
        (WRONG, read("/home/user/shop/src/other.py")),
        (WRONG, WRONG),
        (bash("git rebase origin/main"), bash("git diff --name-only")),
        (bash("git add a.py && ./harness.sh run"), bash("git add a.py")),
        (bash("mise run test"), bash("mise run fmt")),
        (read("a.py"), bash("cat a.py")),
        (ToolCall("Grep", {"pattern": "x", "path": "src"}), ToolCall("Skill", {"skill": "x"})),
    ],
    ids=lambda call: str(call.arguments)[:30],
)
def test_another_thing_or_the_same_call_is_no_recovery(tmp_path, failed, later):
    assert found(tmp_path, failed, later, DONE) is None


def test_the_search_ends_where_the_world_or_the_user_changed_something(tmp_path):
    assert found(tmp_path / "a", WRONG, bash("mv lib src"), RIGHT, DONE) is None
    assert found(tmp_path / "b", WRONG, say("Which one?"), RIGHT, DONE) is None
    assert found(tmp_path / "c", WRONG, *[LOOK] * LATER_STATES, RIGHT, DONE) is None
    assert found(tmp_path / "d", WRONG, *[LOOK] * (LATER_STATES - 1), RIGHT, DONE)
    assert found(tmp_path / "e", WRONG, RIGHT) is None, "its result was never seen"


@pytest.mark.parametrize("kind", ["user_rejection", "user_correction", "failing_tests", None])
def test_errors_that_no_other_call_avoids_have_none(tmp_path, kind):
    assert found(tmp_path, WRONG, RIGHT, DONE, kind=kind) is None


@pytest.mark.parametrize(
    "later",
    [
        {"followed_by_error": True}, {"error_kind": "soft_failure"}, {"interrupted": True},
        {"followed_by_correction": True}, {"reverted": True}, {"tests_passed": False},
        {"caused_error": "another state"},
    ],
    ids=str,
)  # fmt: skip
def test_a_later_call_that_failed_is_none(tmp_path, later):
    assert found(tmp_path, WRONG, RIGHT, DONE, later=later) is None


def test_the_failed_call_of_several_is_the_one_that_counts(tmp_path):
    both = Action("", (read("/home/user/shop/x/other.py"), WRONG))
    assert found(tmp_path / "a", both, RIGHT, DONE, call=0) is None
    assert args(found(tmp_path / "b", both, RIGHT, DONE, call=1)) == RIGHT.arguments
    assert found(tmp_path / "c", both, RIGHT, DONE, call=-1) is None, "which one is not known"
    assert found(tmp_path / "d", WRONG, RIGHT, DONE, call=-1)
