"""The row of a vote: its one reason."""

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.preferences.actions.canonical import Level
from composer_pipeline.preferences.eligibility import Reply
from composer_pipeline.preferences.vote import vote
from composer_pipeline.preferences.vote_rows import REASONS, level_of, reason_of
from tests.fixtures.states import made_state

STATE = made_state(action=Action("", (ToolCall("Read", {"file_path": "agent.py"}),)))


def voted(*files):
    """Families a, b, … that read these files; ``!`` before a name marks a control."""
    return vote(
        STATE,
        [
            Reply(f"t-{i}", f"f{i}", f"m-{i}",
                  Action("", (ToolCall("Read", {"file_path": name.lstrip("!")}),)),
                  control=name.startswith("!"))
            for i, name in enumerate(files)
        ],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("files", "n_replies", "reason"),
    [
        ([], 0, "no_reply"),
        ([], 2, "no_usable_reply"),
        (["!x"], 1, "no_voter"),
        (["x"], 1, "one_family"),
        (["x", "y"], 2, "no_quorum"),
        (["x", "y", "z"], 3, "no_quorum"),
        (["x", "x", "y", "y"], 4, "tie"),
        (["x", "x", "y"], 3, "pair"),
        (["agent.py", "agent.py", "y"], 3, "agrees_with_student"),
    ],
)
def test_every_vote_has_the_one_reason_that_fits(files, n_replies, reason):
    assert reason_of(voted(*files), n_replies) == reason
    assert reason in REASONS


def test_levels_of_a_row_are_found_by_position():
    row = {"raters": ["agent", "a", "b", "c"], "levels": [0, 1, 2, 4, 5, 1]}
    found = {(i, j): level_of(row, i, j) for i in range(4) for j in range(4) if i != j}
    assert found[0, 3] is found[3, 0] is Level.L2
    assert found[1, 2] is Level.L4
    assert found[1, 3] is Level.NONE
    assert found[2, 3] is Level.L1
