"""Controls over the wire: asked about a fixed share, never voting, the only noise floor."""

import hashlib
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from composer_pipeline.actions import Action
from composer_pipeline.chat.convert import to_chat, wire_messages
from composer_pipeline.cli.teachers import plan_tables
from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.explain import explain
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.preferences.quality import measure
from composer_pipeline.preferences.vote import VoteDecision
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import TraceState
from composer_pipeline.teachers.plan import plan, selector_for
from composer_pipeline.teachers.replies import pending_days
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import Teacher, TeacherSet
from composer_pipeline.testing.openrouter.models import SimulatedModel
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import PersonaName, Script, prefix_key
from tests.fixtures.lake_states import DAY, write_sessions

Serve = Callable[..., LoopbackOpenRouter]
SHARE = 0.25


def chosen(state_id: str, share: float = SHARE) -> bool:
    """The rule of the sample, written again."""
    digest = hashlib.blake2b(state_id.encode(), digest_size=8, person=b"audit").digest()
    return int.from_bytes(digest, "big") / 2**64 < share


class Roles(Script):
    """``one`` and ``two`` disagree; ``control`` says what ``one`` says or what the agent did.

    With a vote, the control would make a pair wherever it repeats ``one``.
    """

    def __init__(self, states: list[TraceState]) -> None:
        super().__init__()
        self.asked: list[tuple[str, str]] = []
        self.state_of = {prefix_key(wire_messages(to_chat(s).messages)): s for s in states}

    @staticmethod
    def repeats_one(state_id: str) -> bool:
        return int(state_id[-1], 16) % 3 > 0

    def decide(self, persona: PersonaName, body: Mapping[str, Any]) -> Action:
        role = body["model"].split("/")[1]
        state = self.state_of[prefix_key(body["messages"])]
        self.asked.append((role, state.state_id))
        if role == "control":
            if not self.repeats_one(state.state_id):
                return state.action
            role = "one"
        return Action(f"{role} stops here.")


@pytest.fixture
def lake(tmp_path: Any) -> Lake:
    lake = Lake(tmp_path / "lake")
    write_sessions(lake, sessions=12, turns=4)
    return lake


@pytest.fixture
def script(lake: Lake, serve: Serve) -> Roles:
    script = Roles(list(load_states(lake)))
    price = Decimal("1e-9")
    models = [
        SimulatedModel(f"loopback/{role}", "careful", price, price, 10**7)
        for role in ("one", "two", "control")
    ]
    serve(script=script, models=models)
    return script


def teachers(base: TeacherSet, family: str = "claude", **more: Any) -> TeacherSet:
    data = base.model_dump()
    cap = {"prompt": "0.01", "completion": "0.01"}
    entries: list[tuple[str, str, dict[str, Any]]] = [("one", "alpha", {}), ("two", "beta", {})]
    entries.append(("control", family, {"control": True, "ask_share": SHARE, **more}))
    data["teachers"] = [
        {"name": name, "family": fam, "model": f"loopback/{name}", "licence": "simulated",
         "max_price": cap, **extra}
        for name, fam, extra in entries
    ]  # fmt: skip
    return TeacherSet.model_validate(data)


@pytest.mark.parametrize("family", ["claude", "gamma"])
@pytest.mark.parametrize("curtail", [None, "exact"])
def test_a_control_is_asked_about_its_share_and_never_votes(
    lake: Lake, script: Roles, teacher_set: TeacherSet, family: str, curtail: str | None
) -> None:
    asked_of = teachers(teacher_set, family)
    selector = None
    if curtail:
        data = asked_of.model_dump() | {"selection": {"curtail": curtail, "audit_share": 0.0}}
        asked_of = TeacherSet.model_validate(data)
        selector = selector_for(lake, asked_of, VoteDecision())
    states = {state.state_id for state in load_states(lake)}
    sample = {state_id for state_id in states if chosen(state_id)}
    assert len(states) == 48
    assert 4 <= len(sample) <= 20

    report = replay(lake, asked_of, max_usd=Decimal(5), selector=selector)
    assert sorted(s for role, s in script.asked if role == "control") == sorted(sample)
    for voter in ("one", "two"):
        assert sorted(s for role, s in script.asked if role == voter) == sorted(states)
    figures = report.by_teacher["control"]
    assert (figures.calls, figures.not_asked) == (len(sample), 48 - len(sample))
    assert report.not_asked == 48 - len(sample)
    assert report.not_bought == report.skipped == []
    assert not report.stopped()
    rows = [row for row in lake.rows("replies") if row["teacher"] == "control"]
    assert {row["state_id"] for row in rows} == sample
    assert {row["control"] for row in rows} == {True}
    assert {row["control"] for row in lake.rows("replies") if row["teacher"] == "one"} == {False}
    if selector:
        told = selector.report()
        assert told.full == told.asked == report.calls == 96 + len(sample)
        assert told.pairs == 0
    before = len(script.asked)
    again = selector_for(lake, asked_of, VoteDecision()) if curtail else None
    assert replay(lake, asked_of, max_usd=Decimal(5), selector=again).calls == 0
    assert len(script.asked) == before, "every run asks the same states"

    found = build_pairs(lake, days=[DAY])
    assert (found.pairs, found.by_reason) == (0, {"no_quorum": 48})
    for row in lake.rows("votes"):
        flags = dict(zip(row["raters"], row["controls"], strict=True))
        assert flags == {"agent": False, "one": False, "two": False} | (
            {"control": True} if row["state_id"] in sample else {}
        )
        assert row["n_families"] == 2
        labels = dict(zip(row["raters"], row["labels"], strict=True))
        assert labels.get("control") is None


def test_the_noise_floor_is_measured_from_the_control_alone(
    lake: Lake, script: Roles, teacher_set: TeacherSet
) -> None:
    replay(lake, teachers(teacher_set, "gamma"), max_usd=Decimal(5))
    build_pairs(lake, days=[DAY])
    sample = [s.state_id for s in load_states(lake) if chosen(s.state_id)]
    differs = sum(script.repeats_one(state_id) for state_id in sample) / len(sample)
    assert 0 < differs < 1
    quality = measure(lake)
    noise = quality.noise
    assert noise.resample.n == noise.teacher.n == noise.excess.n == len(sample)
    assert noise.resample.value == pytest.approx(differs)
    assert noise.teacher.value == 1.0
    assert noise.excess.value == pytest.approx(1 - differs)
    (counted,) = [row for row in quality.rows() if row["statistic"] == "control_replies"]
    assert (counted["a"], counted["value"], counted["n"]) == ("control", len(sample), 48)
    told = explain(lake, sample[0])
    assert {t["teacher"]: (t["control"], t["votes"]) for t in told["teachers"]} == {
        "one": (False, True),
        "two": (False, True),
        "control": (True, False),
    }


def test_a_plan_counts_only_what_would_be_asked(
    lake: Lake, script: Roles, teacher_set: TeacherSet
) -> None:
    sample = [s.state_id for s in load_states(lake) if chosen(s.state_id)]
    everything = plan(lake, teachers(teacher_set, ask_share=1.0), decide=VoteDecision())
    found = plan(lake, teachers(teacher_set), decide=VoteDecision())
    part, full = found.by_teacher["control"], everything.by_teacher["control"]
    assert (part.calls, part.not_asked, part.control) == (len(sample), 48 - len(sample), True)
    assert (full.calls, full.not_asked) == (48, 0)
    assert found.calls == 96 + len(sample)
    assert found.worst_usd < everything.worst_usd
    # Its calls do not wait for the vote, so curtailing expects every one of them.
    curtailed = teachers(teacher_set).model_dump() | {
        "selection": {"curtail": "student", "audit_share": 0.0}
    }
    expected = plan(
        lake, TeacherSet.model_validate(curtailed), decide=VoteDecision(), agreement=(0.6, 0.5)
    )
    assert expected.by_teacher["control"].expected_calls == len(sample)
    assert expected.by_teacher["two"].expected_calls < 48
    names = [str(cell) for cell in plan_tables(found)[1].columns[1].cells]
    assert "control (control)" in names
    replay(lake, teachers(teacher_set), max_usd=Decimal(5))
    assert plan(lake, teachers(teacher_set), decide=VoteDecision()).calls == 0


def test_the_file_of_now_says_who_is_a_control(
    lake: Lake, script: Roles, teacher_set: TeacherSet
) -> None:
    """A teacher that voted and is made a control loses its votes without another call."""
    voting = teachers(teacher_set, "gamma", control=False, ask_share=1.0)
    replay(lake, voting, max_usd=Decimal(5))
    agreeing = sum(script.repeats_one(s.state_id) for s in load_states(lake))
    assert build_pairs(lake, days=[DAY]).pairs == agreeing > 0
    calls = len(script.asked)
    replay(lake, teachers(teacher_set, "gamma"), max_usd=Decimal(5))
    assert len(script.asked) == calls
    assert build_pairs(lake, days=[DAY]).pairs == 0


def test_nothing_is_trained_on_a_control(
    lake: Lake, script: Roles, teacher_set: TeacherSet
) -> None:
    voting = teachers(teacher_set, "gamma", ask_share=1.0).model_dump()
    voting["teachers"][1]["model"] = "loopback/one"  # two families that agree
    replay(lake, TeacherSet.model_validate(voting), max_usd=Decimal(5))
    assert build_pairs(lake, days=[DAY]).pairs == 48
    assert {tuple(row["chosen_teachers"]) for row in lake.rows("pairs")} == {("one", "two")}
    lake.write("normalized_pairs", [], day=DAY)
    build_dataset(lake)
    groups = lake.rows("dataset_groups")
    assert len(groups) == 48
    assert {tuple(row["sources"]) for row in groups} == {("agent", "one", "two")}
    assert {len(row["candidates"]) for row in groups} == {3}


def test_the_loosest_terms_of_the_voters_reach_the_dataset(
    lake: Lake, script: Roles, teacher_set: TeacherSet, serve: Serve
) -> None:
    """The control's terms are the loosest of all, and do not count."""
    price = Decimal("1e-9")
    free = SimulatedModel("loopback/one", "careful", price, price, 10**7)
    closed = SimulatedModel("loopback/control", "careful", price, price, 10**7, distillable=False)
    serve(script=script, models=[free, closed])
    data = teachers(teacher_set, ask_share=1.0).model_dump()
    data["teachers"][1]["model"] = "loopback/one"
    for number in (1, 2):
        data["teachers"][number]["provider"]["enforce_distillable_text"] = False
    replay(lake, TeacherSet.model_validate(data), max_usd=Decimal(5))
    terms = {(row["teacher"], row["training_terms"]) for row in lake.rows("replies")}
    assert terms == {("one", "enforced"), ("two", "declared"), ("control", "not enforced")}
    build_pairs(lake, days=[DAY])
    pairs = lake.rows("pairs")
    assert {row["training_terms"] for row in pairs} == {"declared"}
    normal = [{k: v for k, v in row.items() if k != "day"} | {"recipe": "none"} for row in pairs]
    lake.write("normalized_pairs", normal, day=DAY)
    build_dataset(lake)
    kept = lake.rows("dataset_pairs")
    assert len(kept) == 48
    assert {(row["training_terms"], row["weight"]) for row in kept} == {("declared", 1.0)}


def test_a_day_that_only_a_control_answered_is_pending(
    lake: Lake, script: Roles, teacher_set: TeacherSet
) -> None:
    from datetime import date

    today = date.fromisoformat(DAY)
    asked_of = teachers(teacher_set, ask_share=1.0)
    replay(lake, asked_of, max_usd=Decimal(5), teachers=["control"])
    assert pending_days(lake, today) == [DAY]
    replay(lake, asked_of, max_usd=Decimal(5))
    assert pending_days(lake, today) == []


def test_two_partial_teachers_meet_on_the_same_states(
    lake: Lake, script: Roles, teacher_set: TeacherSet
) -> None:
    data = teachers(teacher_set).model_dump()
    data["teachers"][1]["ask_share"] = 0.5
    replay(lake, TeacherSet.model_validate(data), max_usd=Decimal(5))
    asked = {role: {s for r, s in script.asked if r == role} for role in ("one", "two", "control")}
    assert asked["control"] < asked["two"] < asked["one"]
    assert asked["two"] == {s for s in asked["one"] if chosen(s, 0.5)}


def entry(**more: Any) -> Teacher:
    data = {"name": "t", "family": "claude", "model": "x/y", "licence": "MIT"}
    cap = {"prompt": "1", "completion": "1"}
    return Teacher.model_validate({**data, "max_price": cap, **more})


def test_shares_and_their_defaults() -> None:
    assert (entry().control, entry().ask_share) == (False, 1.0)
    assert (entry(control=True).control, entry(control=True).ask_share) == (True, 0.03)
    assert entry(control=True, ask_share=1).asks("any")
    kept = Teacher.model_validate(entry(control=True).model_dump())
    assert kept == entry(control=True)
    for bad in ({"ask_share": 0}, {"ask_share": 1.1}, {"ask_share": "nan"}, {"control": "yes"}):
        with pytest.raises(ValidationError):
            entry(**bad)
