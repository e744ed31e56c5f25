"""States of a large lake: rows at once, messages a session at a time."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.lake.store import Lake
from composer_pipeline.states import load
from composer_pipeline.states.load import DayTables, StatesOnDemand, list_states, load_states
from composer_pipeline.teachers.questions import Questions
from composer_pipeline.teachers.selection import skips
from composer_pipeline.teachers.teachers import TeacherSet
from tests.fixtures.lake_states import write_session

READ = Action("", (ToolCall("Read", {"file_path": "/srv/x"}),))


@pytest.fixture
def two_days(lake: Lake) -> Lake:
    write_session(lake, "early", [(READ, "a"), (READ, "b")], day="2026-11-01")
    write_session(lake, "year-end", [(READ, "c"), (READ, "d")], day="2026-11-20")
    return lake


def test_they_are_the_states_that_are_loaded(
    two_days: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    plain = DayTables.of

    def counted(self: DayTables, rows: Any) -> Any:
        read.append(self.day)
        return plain(self, rows)

    monkeypatch.setattr(DayTables, "of", counted)
    expected = list(load_states(two_days))
    read.clear()
    monkeypatch.setattr(load, "KEPT_MESSAGES", 1)
    found = StatesOnDemand(two_days, two_days.days("states"))
    assert [state.state_id for state in found.states] == [state.state_id for state in expected]
    assert not read  # rows alone say that much
    for state, same in zip(found.states, expected, strict=True):
        assert (state.messages, state.action, state.cwd) == (same.messages, same.action, same.cwd)
    assert len(read) == len({state.session_id for state in expected})  # each session once
    assert len(found._sessions) == 1  # and the last one is still there


def test_a_state_that_stands_in_two_days_is_there_once(tmp_path: Path) -> None:
    """A harvest that was stopped while a session moved to another day leaves it in both."""
    lake = Lake(str(tmp_path / "another"))
    for day in ("2026-11-01", "2026-11-02"):
        write_session(lake, "moved", [(READ, "a"), (READ, "b")], day=day)
    assert len(lake.rows("states")) == 4
    found = StatesOnDemand(lake, lake.days("states")).states
    assert len(found) == len({state.state_id for state in found}) == 2


def test_a_few_states_are_asked_without_the_messages_of_other_days(
    two_days: Lake, teacher_set: TeacherSet
) -> None:
    ids = write_session(two_days, "odd", [(READ, "e")], error_turns=[0], day="2026-11-21")
    expected = Questions(two_days, teacher_set, max_states=1)
    body = expected.build(expected.states[0], expected.teachers[0]).body
    for day in two_days.days("messages"):
        if day != "2026-11-21":
            shutil.rmtree(Path(two_days.root, "messages", f"day={day}"))
    found = Questions(two_days, teacher_set, max_states=1)
    assert [state.state_id for state in found.states] == ids
    assert found.build(found.states[0], found.teachers[0]).body == body


def test_no_rule_for_leaving_states_out_reads_no_message(
    two_days: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = StatesOnDemand(two_days, two_days.days("states")).states
    monkeypatch.setattr(DayTables, "of", None)
    assert skips(states, []) == {}


def test_a_listing_reads_actions_without_prefixes(two_days: Lake) -> None:
    listed = list(list_states(two_days, sessions={"early"}))
    assert [row["tools"] for row in listed] == [["Read"], ["Read"]]
    assert {row["session_id"] for row in listed} == {"early"}
    everything = {row["state_id"] for row in list_states(two_days)}
    assert everything == {state.state_id for state in load_states(two_days)}
