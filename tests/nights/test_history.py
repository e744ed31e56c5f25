"""What becomes of a night's states, over several nights."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.nights import model_registry as registry
from composer_pipeline.nights.anchors import OWN, read_anchors
from composer_pipeline.nights.night import accept, history, nights
from composer_pipeline.testing.training import call
from composer_pipeline.training.recipe import Data
from tests.nights.made import (
    RECIPE,
    House,
    Learner,
    base,
    days,
    house,
    learned,
    sessions,
    spoiled,
    stored,
    write_dataset,
)

ONE, TWO, THREE, FOUR = "2026-11-02", "2026-11-03", "2026-11-04", "2026-11-05"


def rows_of(here: House, day: str) -> set[str]:
    return {row["session_id"] for row in here.lake.rows("night_rows", days=[day])}


def last_trained(here: House) -> set[str]:
    """Return the days whose sessions the last training was given."""
    found = {name[:10] for name in here.learner.content[0]}
    for known in here.learner.content:
        known.clear()
    return found


def test_promoted_nights_are_the_buffer_of_later_ones(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE))
    first = here.night(ONE)
    assert (first.outcome, first.parent, first.version) == ("promoted", 0, 1)
    assert first.rows == {"new": 18, "old": 0, "held_out": 36, "sessions": 18}
    assert first.usd == pytest.approx(0.036)
    write_dataset(here.lake, days(ONE, TWO))
    second = here.night(TWO)
    assert (second.outcome, second.parent, second.version) == ("promoted", 1, 2)
    assert second.rows == {"new": 18, "old": 18, "held_out": 36, "sessions": 18}
    assert second.usd == first.usd
    adapter = tmp_path / "runs" / "night-2026-11-03" / "checkpoint" / "adapter"
    assert adapter.read_text().endswith(f"from {tmp_path / 'runs/night-2026-11-02/checkpoint'}")
    pointer = registry.current(here.lake)
    assert pointer is not None
    assert (pointer.version, pointer.weights) == (2, str(adapter.parent))
    assert nights(here.lake) == [first, second]
    assert not (tmp_path / "runs" / "work").exists()
    assert here.night(TWO) == second, "there is one a day"
    assert here.learner.trained == ["night-2026-11-02", "night-2026-11-03"]


def test_what_was_not_better_is_new_again_once_there_is_something_new(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE))
    one = f"{ONE}-validation-0"
    here.learner.answers["night-" + ONE] = lambda s: base(s) or s.session_id == one
    assert here.night(ONE).outcome == "not better"
    began = time.process_time()
    nothing = here.night(TWO)
    assert time.process_time() - began < 2
    assert (nothing.outcome, nothing.version, nothing.usd) == ("nothing new", None, 0)
    assert here.learner.trained == ["night-" + ONE]
    write_dataset(here.lake, days(ONE, THREE))
    third = here.night(THREE)
    assert (third.outcome, third.parent) == ("promoted", 0)
    assert third.rows["new"] == 36
    assert third.usd == pytest.approx(0.036), "the others were paid for at their own night"
    assert here.night(FOUR).why == ("no state is new",)


def test_what_made_it_worse_never_comes_back_unless_accepted(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE))
    here.night(ONE)
    write_dataset(here.lake, days(ONE, TWO))
    here.learner.answers["night-" + TWO] = spoiled
    assert here.night(TWO).outcome == "worse"
    last_trained(here)
    every = days(ONE, TWO, THREE)
    write_dataset(here.lake, every)
    here.learner.measured.clear()
    third = here.night(THREE)
    assert (third.outcome, third.rows["new"], third.parent) == ("promoted", 18, 1)
    assert last_trained(here) == {ONE, THREE}
    assert not [name for name in here.learner.measured if name.startswith(TWO)]
    with pytest.raises(InputError, match="promoted; only a night that was held"):
        accept(here.lake, THREE)
    with pytest.raises(InputError, match="night 2026-11-09: there is none"):
        accept(here.lake, "2026-11-09")
    assert accept(here.lake, TWO).accepted
    here.learner.answers["night-" + THREE] = base
    fourth = here.night(FOUR)
    assert (fourth.rows["new"], last_trained(here)) == (18, {ONE, TWO, THREE})


def test_no_model_is_trained_that_no_gate_could_promote(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE, held=9))
    assert here.night(ONE, dry_run=True).why == here.night(ONE).why
    first = nights(here.lake)[-1]
    assert (first.outcome, first.version, registry.versions(here.lake)) == ("too few", None, [])
    assert first.why[0].startswith(
        "9 sessions have new held-out states whose right action is known"
    )
    assert first.why[1] == "tonight's states are new again at the next night"
    assert here.night(TWO).outcome == "nothing new"
    # A tenth session with a mistake comes, and the rows of both days are trained on.
    write_dataset(here.lake, [*days(ONE, held=9), *sessions(TWO, held=1)])
    second = here.night(TWO)
    assert (second.outcome, last_trained(here)) == ("promoted", {ONE, TWO})
    assert second.usd == pytest.approx(0.014), "the first night's were told of then"
    # The model answers the mistakes of eight sessions of ten.
    held = [*days(ONE, held=9), *sessions(TWO, held=1), *sessions(THREE, held=10)]
    two = (f"{THREE}-validation-0", f"{THREE}-validation-1")
    here.learner.answers["night-" + TWO] = lambda s: (
        base(s) or (learned(THREE)(s) and s.session_id not in two)
    )
    write_dataset(here.lake, held)
    here.learner.measured.clear()
    last_trained(here)
    third = here.night(THREE)
    assert (third.outcome, third.version, third.idle) == ("nothing to learn", None, True)
    assert third.why[0].startswith("2 ")
    assert len(third.why) == 1
    assert "at which version 1 is wrong; with fewer than 10 no model can" in third.why[0]
    assert {name[:10] for name in here.learner.measured} == {THREE}, "no anchor was measured"
    # They are old from then on, and no anchors.
    write_dataset(here.lake, [*held, *days(FOUR)])
    fourth = here.night(FOUR)
    assert (fourth.outcome, last_trained(here)) == ("promoted", {ONE, TWO, THREE, FOUR})
    assert fourth.rows == {"new": 18, "old": 18, "held_out": 36, "sessions": 18}


def test_what_a_model_gets_wrong_in_few_sessions_adds_up_over_nights(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE))
    here.night(ONE)
    # Version 1 is wrong at all states of three sessions of ten on two days, and of four on a third.
    wrong = {f"{day}-validation-{i}" for day in (TWO, THREE, FOUR) for i in range(3)}
    wrong.add(f"{FOUR}-validation-3")
    here.learner.answers["night-" + ONE] = lambda s: s.session_id not in wrong
    told, usd = [], []
    for names in ((TWO,), (TWO, THREE), (TWO, THREE, FOUR)):
        write_dataset(here.lake, [*days(ONE), *days(*names, held=10)])
        last_trained(here)
        night = here.night(names[-1])
        told.append((night.outcome, night.rows["new"], night.rows["held_out"]))
        usd.append(night.usd)
    assert told == [("too few", 18, 30), ("too few", 36, 60), ("promoted", 54, 90)]
    assert usd == pytest.approx([usd[0]] * 3), "each night's replies were paid for once"
    few = nights(here.lake)[1].why
    assert few[0].startswith("3 sessions have new held-out states at which version 1 is wrong")
    assert few[1] == "tonight's states are new again at the next night"
    assert {TWO, THREE, FOUR} <= last_trained(here)


def test_sessions_count_towards_enough_and_not_their_states(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE, held=9))
    rows = stored(here.lake.rows("dataset_groups", split="validation"))
    second = [
        {**row, "state_id": f"{row['state_id']}2", "prompt": [{"role": "user", "content": str(i)}]}
        for i, row in enumerate(rows)
    ]
    here.lake.write("dataset_groups", [*rows, *second], split="validation")
    assert here.night(ONE).outcome == "too few"


def test_a_mistake_that_does_not_fit_the_window_is_none_to_learn_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, measure = house(tmp_path, days(ONE, held=12)), Learner.measure
    long = {f"{ONE}-validation-{i}/hard" for i in range(3)}
    monkeypatch.setattr(
        Learner,
        "measure",
        lambda self, recipe, weights, states: measure(
            self, recipe, weights, [state for state in states if state.state_id not in long]
        ),
    )
    night = here.night(ONE)
    assert (night.outcome, night.why[0][:2]) == ("too few", "9 ")


def test_a_night_that_learnt_nothing_leaves_old_rows_and_no_anchors(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE))
    here.night(ONE)
    here.learner.answers |= {f"night-{day}": learned(ONE) for day in (TWO, THREE)}
    write_dataset(here.lake, days(ONE, TWO))
    second = here.night(TWO)
    assert (second.outcome, second.idle) == ("not better", True)
    write_dataset(here.lake, days(ONE, TWO, THREE))
    third = here.night(THREE)
    assert (third.rows["new"], third.rows["old"]) == (18, 18)
    frozen = {a.state.session_id[:10] for some in read_anchors(here.lake).values() for a in some}
    assert frozen == {ONE}


def test_rows_that_cannot_be_trained_on_are_new_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = house(tmp_path, days(ONE))

    tried: list[str] = []

    def none(_: Any, recipe: Any) -> Any:
        first = next(iter(recipe.channels.weights()))
        tried.append(f"channel {first}: none of 2 rows can be trained on")
        raise InputError(tried[-1])

    with monkeypatch.context() as patch:
        patch.setattr(here.learner, "train", none)
        told = here.night(ONE)
    assert (told.outcome, told.version) == ("not better", None)
    assert told.why == (f"nothing was trained: {tried[-1]}",)
    assert (
        told.notes[-2:]
        == (
            *(f"channel {name} has no row tonight and is off" for name in ("sdpo", "dpo")),
            f"{tried[0]}; the channel is off tonight",
        )[-2:]
    )
    assert len(tried) == 2, "grpo, then sft alone"
    write_dataset(here.lake, days(ONE, TWO))
    assert (here.night(TWO).outcome, last_trained(here)) == ("promoted", {ONE, TWO})
    unknown = RECIPE.model_copy(update={"trainer": "none"})
    write_dataset(here.lake, days(ONE, TWO, THREE))
    with pytest.raises(InputError, match="recipe field trainer"):
        here.night(THREE, unknown)


def test_a_second_worse_night_sets_aside_the_earlier_states_that_both_trained_on(
    tmp_path: Path,
) -> None:
    here = house(tmp_path, days(ONE))
    here.night(ONE)
    knows, one = learned(ONE), f"{TWO}-validation-0"
    here.learner.answers |= {f"night-{TWO}": lambda s: knows(s) or s.session_id == one}
    here.learner.answers |= {f"night-{day}": spoiled for day in (THREE, FOUR)}
    for day, outcome, aside in (
        (TWO, "not better", {TWO}), (THREE, "worse", {THREE}), (FOUR, "worse", {TWO, FOUR}),
    ):  # fmt: skip
        write_dataset(here.lake, days(*[d for d in (ONE, TWO, THREE, FOUR) if d <= day]))
        assert here.night(day).outcome == outcome
        assert {name[:10] for name in rows_of(here, day)} == aside


def test_a_held_night_sets_aside_tonight_s_states_alone(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE, TWO))
    here.learner.answers["night-" + TWO] = learned(ONE)
    here.night(ONE)
    assert here.night(TWO).outcome == "not better"
    poison = sessions(THREE, raters=("agent", "two"))
    write_dataset(here.lake, [*days(ONE, TWO), *poison])
    held = here.night(THREE)
    assert (held.outcome, held.version, held.gates) == ("held", None, ())
    assert "teacher one answers 0%" in held.why[0]
    assert {name[:10] for name in rows_of(here, THREE)} == {THREE}
    write_dataset(here.lake, [*days(ONE, TWO, FOUR), *poison])
    last_trained(here)
    assert here.night(FOUR).outcome == "promoted"
    assert last_trained(here) == {ONE, TWO, FOUR}


def test_a_held_night_that_is_accepted_runs_again_the_same_day(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE))
    here.night(ONE)
    write_dataset(here.lake, [*days(ONE), *sessions(TWO, raters=("agent", "two"))])
    assert here.night(TWO).outcome == "held"
    assert here.night(TWO).outcome == "held"
    accept(here.lake, TWO)
    again = here.night(TWO)
    assert (again.outcome, again.version) == ("promoted", 2)
    assert history(here.lake, THREE).aside == set()


def test_what_was_rolled_back_is_set_aside_until_it_is_promoted_again(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE, TWO))
    here.night(ONE)
    here.night(TWO)
    registry.rollback(here.lake)
    known = history(here.lake, THREE)
    assert {name[:10] for name in known.aside} == {TWO}
    assert {name[:10] for name in known.accepted} == {ONE}
    write_dataset(here.lake, days(ONE, TWO, THREE))
    last_trained(here)
    third = here.night(THREE)
    # What only the version that was left could do is no reference any more.
    assert (third.outcome, third.parent) == ("promoted", 1), third.why
    assert last_trained(here) == {ONE, THREE}
    registry.promote(here.lake, 2)
    known = history(here.lake, FOUR)
    assert {name[:10] for name in known.accepted} == {ONE, TWO, THREE}
    assert known.aside == set()


def test_to_roll_back_from_an_older_version_leaves_nothing_that_is_current(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE, TWO))
    here.night(ONE)
    here.night(TWO)
    registry.promote(here.lake, 1)
    assert registry.rollback(here.lake).version == 2
    assert history(here.lake, THREE).aside == set()


def test_an_older_version_by_hand_is_not_compared_with_what_it_left(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE, TWO))
    here.night(ONE)
    here.night(TWO)
    registry.promote(here.lake, 0)
    write_dataset(here.lake, days(ONE, TWO, THREE))
    # Only the mistakes of the new day are learned: the references of 1 and 2 are at all of them.
    here.learner.answers["night-" + THREE] = lambda s: base(s) or s.session_id.startswith(THREE)
    assert here.night(THREE).outcome == "promoted"


def test_a_version_that_is_replaced_by_hand_while_its_child_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = house(tmp_path, days(ONE))
    here.night(ONE)
    write_dataset(here.lake, days(ONE, TWO))
    train = here.learner.train

    def and_roll_back(*args: Any) -> tuple[Path, dict[str, float]]:
        registry.rollback(here.lake)
        return train(*args)

    monkeypatch.setattr(here.learner, "train", and_roll_back)
    second = here.night(TWO)
    assert (second.outcome, second.version) == ("not better", 2)
    assert second.why == ("version 1 was current when the night began; another is",)
    pointer = registry.current(here.lake)
    assert pointer is not None
    assert pointer.version == 0


def test_states_of_later_days_are_not_used_and_nights_go_forward(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE, TWO, THREE))
    here.night(ONE)
    assert last_trained(here) == {ONE}
    assert {name[:10] for name in here.learner.measured} == {ONE}
    here.night(THREE)
    with pytest.raises(InputError, match=r"night 2026-11-03: nights go forward, and lake .* has"):
        here.night(TWO)
    assert here.night(ONE).version == 1, "a night that was is told again"
    with pytest.raises(InputError, match="night '3 November' is not a date"):
        here.night("3 November")


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE))
    before = sorted(Path(here.lake.root).rglob("*.parquet")), sorted(Path(here.lake.root).iterdir())
    dry = here.night(ONE, dry_run=True)
    assert (dry.outcome, dry.why, dry.rows["new"]) == ("dry run", ("it would train",), 18)
    after = sorted(Path(here.lake.root).rglob("*.parquet")), sorted(Path(here.lake.root).iterdir())
    assert [p for p in after[1] if not p.name.startswith(".")] == [
        p for p in before[1] if not p.name.startswith(".")
    ]
    assert (before[0], here.learner.trained) == (after[0], [])


def test_a_night_needs_a_dataset_and_the_base_of_its_lake(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE))
    here.night(ONE)
    weights = tmp_path / "runs" / ("night-" + ONE) / "checkpoint"
    (weights / "adapter").unlink()
    weights.rmdir()
    write_dataset(here.lake, days(ONE, TWO))
    with pytest.raises(InputError, match="the weights of model version 1 are gone"):
        here.night(TWO)
    here.lake.remove(here.lake.BUILD)
    here.lake.put_bytes("nights/2026-11-01.json", b"{}")
    with pytest.raises(InputError, match=r"nights/2026-11-01.json: Object missing required field"):
        here.night(TWO)
    here.lake.remove("nights/2026-11-01.json")
    with pytest.raises(InputError, match=r"has no dataset: there is no pair.*replay also to older"):
        here.night(TWO)


def test_an_anchor_is_measured_as_it_was_frozen_even_if_it_is_a_mistake_now(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE))
    one = f"{ONE}-validation-0"
    here.learner.answers["night-" + ONE] = lambda s: base(s) or s.session_id == one
    assert here.night(ONE).outcome == "not better"
    write_dataset(here.lake, days(ONE, TWO))
    rows = stored(here.lake.rows("dataset_groups", split="validation"))
    for row in rows:
        if row["state_id"].startswith(ONE):
            row["consensus"] = [call("Read", file_path="/w/c.py")]
    here.lake.write("dataset_groups", rows, split="validation")
    second = here.night(TWO)
    # The model was right at twelve of 36 as they were frozen, and is at none as they are.
    assert second.moved["hard"][0] == pytest.approx(12 / 36)


def test_a_state_whose_right_action_changed_is_measured_again(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE))
    assert here.night(ONE).outcome == "promoted"
    here.lake.delete("anchors", anchors=OWN)  # they are drawn anew
    write_dataset(here.lake, days(ONE, TWO))
    rows = stored(here.lake.rows("dataset_successes", split="validation"))
    for row in rows:
        if row["state_id"].startswith(ONE):
            row["action"] = [call("Read", file_path="/w/c.py")]
    here.lake.write("dataset_successes", rows, split="validation")
    here.learner.answers["night-" + ONE] = lambda s: base(s) and not s.state_id.endswith("/own")
    here.night(TWO)
    own = {a.state.state_id: a.reference for a in read_anchors(here.lake)[OWN]}
    # Version 1 was right at what these states asked for when its own night measured them.
    assert [value for name, value in own.items() if name.startswith(ONE)] == [0.0] * 12


def test_what_the_night_before_measured_is_known_unless_the_window_is_another(
    tmp_path: Path,
) -> None:
    mistake = f"{ONE}-validation-0/hard"
    wider = RECIPE.model_copy(update={"data": Data(max_prompt_tokens=512)})
    for name, recipe, times in (("same", RECIPE, 1), ("wider", wider, 2)):
        here = house(tmp_path / name, days(ONE, TWO))
        here.night(ONE)
        here.learner.measured.clear()
        here.night(TWO, recipe=recipe)
        assert here.learner.measured.count(mistake) == times, name


def test_a_model_that_makes_no_mistake_learns_what_else_it_gets_wrong(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE))
    # It would make no mistake of the second day, and does nothing else right there.
    here.learner.answers["night-" + ONE] = lambda s: s.session_id[:10] == ONE or not base(s)
    here.night(ONE)
    write_dataset(here.lake, days(ONE, TWO))
    here.learner.measured.clear()
    second = here.night(TWO)
    assert (second.outcome, second.moved["new"][:2]) == ("promoted", (0.5, 1.0))
    assert "+50.0% right actions on new states held out (24 states of 12 sessions)" in second.why[0]
    counts = Counter(name for name in here.learner.measured if name.startswith(TWO))
    assert set(counts.values()) == {2}, "once by the parent, once by the candidate"


@pytest.mark.parametrize(("lost", "outcome"), [(3, "promoted"), (8, "worse")])
def test_a_model_that_loses_new_mistakes_is_worse_whatever_else_it_learns(
    tmp_path: Path, lost: int, outcome: str
) -> None:
    every = days(ONE, TWO)
    here = house(tmp_path, every)
    held = sorted(one.name for one in every if one.split == "validation")
    here.learner.answers[""] = spoiled
    here.learner.answers["night-" + TWO] = lambda s: base(s) or s.session_id not in held[:lost]
    night = here.night(TWO)
    assert (night.outcome, night.gates[0].passed) == (outcome, True)
    assert lost == 3 or night.why[0].startswith("new mistakes: -33.3% right actions")
