"""Frozen anchors and held-out mistakes: what they are, and that nothing trains on them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat.convert import prompt_hash
from composer_pipeline.nights import model_registry as registry
from composer_pipeline.nights.anchors import GAINS, Anchor, drawn, read_anchors
from composer_pipeline.nights.buffer import dataset_states
from composer_pipeline.nights.night import History, held_out, new_states
from composer_pipeline.nights.rules import Anchors, GateRules, NightRules
from composer_pipeline.testing.training import call
from tests.fixtures.lake_states import write_session
from tests.nights.made import (
    House,
    base,
    days,
    house,
    learned,
    sessions,
    spoiled,
    stored,
    write_dataset,
)

ONE, TWO, THREE = "2026-11-02", "2026-11-03", "2026-11-04"


def frozen(here: House) -> dict[str, dict[str, tuple[str, int, float]]]:
    """Return kind to state to night, version and reference."""
    return {
        kind: {a.state.state_id: (a.night, a.version, a.reference) for a in some}
        for kind, some in read_anchors(here.lake).items()
    }


def of_day(some: dict[str, Any], day: str) -> int:
    return sum(name.startswith(day) for name in some)


def test_anchors_are_of_held_out_sessions_with_the_reference_of_their_night(
    tmp_path: Path,
) -> None:
    here = house(tmp_path, days(ONE))
    here.night(ONE)
    first = frozen(here)
    assert {kind: len(some) for kind, some in first.items()} == {"own": 12, "easy": 12, "gains": 12}
    assert {"validation" in name for some in first.values() for name in some} == {True}
    assert set(first["easy"].values()) == set(first["own"].values()) == {(ONE, 0, 1.0)}
    assert set(first[GAINS].values()) == {(ONE, 1, 1.0)}, "what version 1 could do"
    anchor = read_anchors(here.lake)[GAINS][0].state
    assert anchor.right.tool_calls[0].arguments == {"file_path": "/w/b.py"}
    assert anchor.wrong
    assert (anchor.kind, anchor.messages[0]["content"][:4]) == ("hard_covered", "hard")


def test_they_stay_as_they_are_and_grow_with_promoted_nights(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE))
    here.night(ONE)
    first = frozen(here)
    right = call("Read", file_path="/w/c.py")
    # The first day has other right actions now, and the second is only tonight's.
    write_dataset(here.lake, [*(replace(s, right=right) for s in days(ONE)), *days(TWO)])
    here.night(TWO)
    second = frozen(here)
    assert (second["own"], second["easy"]) == (first["own"], first["easy"])
    assert first[GAINS].items() <= second[GAINS].items()
    assert of_day(second[GAINS], TWO) == 12
    rights = [a.state.right.tool_calls[0].arguments for a in read_anchors(here.lake)[GAINS]]
    assert rights == [{"file_path": "/w/b.py"}] * 24
    write_dataset(here.lake, days(ONE, TWO, THREE))
    here.night(THREE)
    assert of_day(third := frozen(here)["easy"], TWO) == 12
    assert of_day(third, THREE) == 0
    assert {about for name, about in third.items() if name.startswith(TWO)} == {(THREE, 2, 1.0)}


def test_a_kind_has_its_size_and_a_session_its_part(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE, TWO))
    here.rules = NightRules(anchors=Anchors(states=15))
    here.night(ONE)
    assert len(frozen(here)["easy"]) == 12
    here.night(TWO)
    write_dataset(here.lake, days(ONE, TWO, THREE))
    here.night(THREE)
    sizes = {kind: len(some) for kind, some in frozen(here).items()}
    assert sizes == {"own": 15, "easy": 15, "gains": 15}
    gains = frozen(here)[GAINS]
    assert (of_day(gains, ONE), of_day(gains, THREE)) == (0, 12), "the oldest leave"


def test_a_session_gives_few_states_of_which_those_that_are_held_count(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE))
    here.night(ONE)
    one = read_anchors(here.lake)["easy"][0].state
    states = [
        replace(one, state_id=f"{session}-{i}", session_id=session) for session in "ab"
        for i in range(5)
    ]  # fmt: skip
    rules = Anchors(per_session=2, states=5)
    chosen = drawn(states, rules)
    assert sorted(state.session_id for state in chosen) == ["a", "a", "b", "b"]
    held = [Anchor(state, ONE, 0, 1.0) for state in states[:2]]
    assert [state.session_id for state in drawn(states, rules, held)] == ["b", "b"]
    assert drawn(states, rules, [Anchor(s, ONE, 0, 1.0) for s in states]) == []


def test_what_was_gained_stays_as_it_was_frozen(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE, TWO, held=14))
    here.night(ONE)
    # Version 2 does not know one that version 1 knew, within the margin of gains alone.
    lost, good = f"{ONE}-validation-0/hard", learned(TWO)
    here.learner.answers["night-" + TWO] = lambda s: good(s) and s.state_id != lost
    assert here.night(TWO).outcome == "promoted"
    gains = frozen(here)[GAINS]
    assert gains[lost] == (ONE, 1, 1.0)
    assert {about for name, about in gains.items() if name.startswith(TWO)} == {(TWO, 2, 1.0)}


def test_of_too_many_new_states_mistakes_and_the_newest_are_tested(tmp_path: Path) -> None:
    names = [f"2026-11-{d:02d}" for d in range(2, 12)]
    here = house(tmp_path, days(*names, train=1, held=2))
    rows = dataset_states(here.lake, names[8])
    states = held_out(here.lake, rows, History())
    new = {name: row for name, row in rows.items() if row.day > names[1]}
    found = new_states(states, new, NightRules())
    assert {s.session_id[:10] for s in found} == {*names[2:9]}
    assert [s.kind for s in found] == ["hard_covered"] * 14 + ["easy"] * 14
    few = new_states(states, new, NightRules(gate=GateRules(states=3)))
    assert few == found[:3]
    assert [s.session_id[:10] for s in few] == [names[8], names[8], names[7]]


def test_mistakes_of_earlier_nights_are_guarded_and_not_tested_again(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE))
    first = here.night(ONE)
    write_dataset(here.lake, days(ONE, TWO))
    one = f"{TWO}-validation-0"
    here.learner.answers["night-" + TWO] = lambda s: learned(ONE)(s) or s.session_id == one
    second = here.night(TWO)
    # What is new again is tested with what is new.
    write_dataset(here.lake, days(ONE, TWO, THREE))
    third = here.night(THREE)
    assert [night.outcome for night in (first, second, third)] == [
        "promoted", "not better", "promoted",
    ]  # fmt: skip
    assert [night.moved["hard"][2].sessions for night in (first, second, third)] == [12, 12, 24]
    assert {name[:10] for name in frozen(here)[GAINS]} == {ONE, TWO, THREE}


def test_a_kind_is_drawn_anew_when_it_is_old(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE))
    here.rules = NightRules(anchors=Anchors(states=12, refresh_days=2))
    here.night(ONE)
    write_dataset(here.lake, days(ONE, TWO))
    here.night(TWO)
    assert of_day(frozen(here)["easy"], TWO) == 0, "it is full, and a day old"
    write_dataset(here.lake, days(ONE, TWO, THREE))
    here.night(THREE)
    easy = frozen(here)["easy"]
    assert len(easy) == 12
    assert 0 < of_day(easy, TWO) < 12
    # Those that are drawn again keep what they are compared with.
    assert {about for name, about in easy.items() if name.startswith(ONE)} == {(THREE, 0, 1.0)}
    assert {about for name, about in easy.items() if name.startswith(TWO)} == {(THREE, 2, 1.0)}


@pytest.mark.parametrize(("count", "outcome"), [(3, "promoted"), (5, "worse")])
def test_a_few_lost_gains_do_not_end_all_learning(tmp_path: Path, count: int, outcome: str) -> None:
    here = house(tmp_path, days(ONE, TWO, held=40))
    here.night(ONE)
    lost, good = {f"{ONE}-validation-{i}/hard" for i in range(count)}, learned(TWO)
    here.learner.answers["night-" + TWO] = lambda s: good(s) and s.state_id not in lost
    assert here.night(TWO).outcome == outcome


def test_a_loss_against_the_frozen_reference_is_seen_though_each_night_loses_little(
    tmp_path: Path,
) -> None:
    names = [f"2026-11-{d:02d}" for d in range(2, 8)]
    here = house(tmp_path, days(*names, held=20))
    here.rules = NightRules(anchors=Anchors(states=20))

    def answers(number: int) -> Any:
        # Each night's model loses one more of the first day's 20 easy states.
        lost = {f"{names[0]}-validation-{i}/easy" for i in range(number)}
        good = learned(names[number])
        return lambda state: good(state) and state.state_id not in lost

    for number, day in enumerate(names):
        here.learner.answers[f"night-{day}"] = answers(number)
    outcomes = [here.night(day).outcome for day in names]
    assert outcomes[:2] == ["promoted", "promoted"]
    # Two of the anchors were lost since they were frozen, one since yesterday.
    assert set(outcomes[2:]) <= {"not better", "worse"}


def test_sessions_that_a_build_moves_are_neither_trained_nor_measured_on(tmp_path: Path) -> None:
    # The learner of these tests asserts that nothing measured was trained on.
    here = house(tmp_path, days(ONE))
    here.night(ONE)
    trained = set(here.learner.content[0])
    moved = {"train": "validation", "validation": "train"}
    swapped = [replace(s, split=moved[s.split]) for s in days(ONE)]
    write_dataset(here.lake, [*swapped, *days(TWO)])
    here.learner.measured.clear()
    second = here.night(TWO)
    assert second.outcome == "promoted"
    assert {name.rpartition("/")[0] for name in here.learner.measured}.isdisjoint(trained)
    assert {name[:10] for name in here.learner.content[0] - trained} == {TWO}
    assert second.rows["old"] == 0, "anchors are no training rows"
    assert of_day(frozen(here)["easy"], ONE) == 12


def test_mistakes_of_the_first_night_that_were_trained_on_are_no_held_out_ones(
    tmp_path: Path,
) -> None:
    here = house(tmp_path, sessions(ONE, train=14))
    here.night(ONE)
    moved = [replace(s, split="validation") for s in sessions(ONE, train=14, held=0)]
    write_dataset(here.lake, [*moved, *sessions(ONE, train=0), *days(TWO)])
    here.learner.answers["night-" + TWO] = spoiled
    here.learner.measured.clear()
    here.night(TWO)
    assert not [name for name in here.learner.measured if "train" in name]


def test_what_shares_a_prompt_with_training_is_not_measured_then_or_later(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE, held=14))
    own = here.lake.rows("dataset_groups", split="validation")
    same = [
        {**row, "state_id": f"copy-{row['state_id']}", "session_id": f"{ONE}-copy", "split": None}
        for row in own[:6]
    ]
    train = here.lake.rows("dataset_groups", split="train")
    rows = stored([*train, *same])
    here.lake.write("dataset_groups", rows, split="train")
    shared = {prompt_hash(row["prompt"]) for row in same}
    here.night(ONE)
    assert shared <= here.learner.content[1]
    for _, some in read_anchors(here.lake).items():
        assert not shared & {prompt_hash(a.state.messages) for a in some}
    assert not {row["state_id"] for row in own[:6]} & {*here.learner.measured}
    here.lake.write("dataset_groups", [*rows, *_of(TWO, here, tmp_path)], split="train")
    here.night(TWO)
    assert not {row["state_id"] for row in own[:6]} & {*here.learner.measured}


def _of(day: str, here: House, folder: Path) -> list[dict[str, Any]]:
    """Return the training rows of a day."""
    other = house(folder / "other", days(day))
    return stored(other.lake.rows("dataset_groups", split="train"))


def test_sessions_of_a_night_that_made_it_worse_are_no_anchors(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE))
    here.learner.answers["night-" + ONE] = lambda state: not base(state)
    assert here.night(ONE).outcome == "worse"
    write_dataset(here.lake, days(ONE, TWO))
    here.learner.measured.clear()
    second = here.night(TWO)
    assert (second.outcome, second.parent) == ("promoted", 0)
    assert {name[:10] for name in here.learner.measured} == {TWO}
    assert {kind: of_day(some, TWO) for kind, some in frozen(here).items()} == {
        "own": 12, "easy": 12, "gains": 12
    }  # fmt: skip


def test_states_right_after_an_error_are_anchors_of_their_own(tmp_path: Path) -> None:
    every = days(ONE)
    here = house(tmp_path, every)
    hints = []
    for one in every:
        if one.split == "validation":
            steps = [(_bash("pytest"), "no module"), (_bash("python -m pytest"), "ok")]
            failed, fixed = write_session(here.lake, one.name, steps, day=ONE, error_turns=[0])
            assert fixed
            hints.append(
                {"state_id": failed, "session_id": one.name, "group_id": one.name, "day": ONE,
                 "repository": "shop", "tools": [], "hint": "no module", "span_call": 0,
                 "prompt": [{"role": "user", "content": f"fix {one.name}"}],
                 "action": [call("Bash", command="pytest")]}
            )  # fmt: skip
    here.lake.write("dataset_hints", hints, split="validation")
    night = here.night(ONE)
    assert {gate.name for gate in night.gates} == {"new", "hard", "easy", "own", "recovery"}
    recovery = read_anchors(here.lake)["recovery"]
    assert len(recovery) == 12
    assert recovery[0].state.right.tool_calls[0].arguments == {"command": "python -m pytest"}


def _bash(command: str) -> Any:
    return Action("Next.", (ToolCall("Bash", {"command": command}),))


def test_without_enough_anchors_nothing_is_promoted(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE))
    for table in ("dataset_groups", "dataset_successes"):
        kept = [
            row
            for row in stored(here.lake.rows(table, split="validation"))
            if "hard" in row["state_id"] or row["session_id"][-1] in "1234"
        ]
        here.lake.write(table, kept, split="validation")
    night = here.night(ONE)
    assert night.outcome == "not better"
    assert "there are too few anchors: a kind needs 10 held-out sessions" in night.why
    pointer = registry.current(here.lake)
    assert pointer is not None
    assert pointer.version == 0
