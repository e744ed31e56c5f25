"""What of a night's data holds it, each fact by itself, and what is too little to say so."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.nights.buffer import dataset_states
from composer_pipeline.nights.canaries import Facts, facts_of, judge
from composer_pipeline.nights.night import plan_night
from composer_pipeline.nights.rules import CanaryRules, NightRules
from composer_pipeline.testing.training import call
from tests.nights.made import AGENT, TEACHERS, Session, days, house, sessions, write_dataset

ONE, TWO = "2026-11-02", "2026-11-03"
RULES = CanaryRules()


def holding(tmp_path: Path, tonight: Sequence[Session], usual: Sequence[Session] = ()) -> set[str]:
    """Return the canaries that hold a night, after one that was promoted."""
    before = list(usual) or days(ONE)
    here = house(tmp_path, before)
    assert here.night(ONE).outcome == "promoted"
    write_dataset(here.lake, [*before, *tonight])
    plan = plan_night(here.lake, TWO, NightRules())
    night = here.night(TWO)
    assert night.canaries == tuple(plan.canaries)
    found = {canary.name for canary in night.canaries if canary.holds}
    assert (night.outcome == "held") == bool(found)
    assert len(night.why) == max(1, len(found))
    return found


def test_a_usual_night_is_not_held(tmp_path: Path) -> None:
    assert holding(tmp_path, sessions(TWO)) == set()


def test_teachers_who_suddenly_agree_against_the_agent(tmp_path: Path) -> None:
    usual = sessions(ONE, reason="no consensus")
    # Half of all votes are pairs, of none before; their reasons differ by as much.
    assert holding(tmp_path, sessions(TWO), usual) == {"rejected", "labels"}


def test_a_project_that_has_nearly_all_states(tmp_path: Path) -> None:
    usual = [*sessions(ONE, train=0), *_renamed(ONE, "other", 6)]
    assert holding(tmp_path, sessions(TWO), usual) == set(), "from two thirds to all: usual"
    assert holding(tmp_path / "two", _renamed(TWO, "new", 18), usual) == {"project"}


def _renamed(day: str, project: str, count: int) -> list[Session]:
    return [Session(f"{day}-{project}-{i}", day, "train", project) for i in range(count)]


def test_a_teacher_who_is_out(tmp_path: Path) -> None:
    assert holding(tmp_path, sessions(TWO, raters=("agent", "two"))) == {"usable"}


def test_labels_of_other_reasons(tmp_path: Path) -> None:
    assert holding(tmp_path, sessions(TWO, reason="no majority")) == {"labels"}


def test_right_actions_of_another_tool(tmp_path: Path) -> None:
    check = call("Bash", command="make check")
    check["tool_calls"] *= 2  # half of all calls, of none before
    assert holding(tmp_path, sessions(TWO, right=check)) == {"tools"}


def test_a_consensus_against_what_the_trace_shows_to_be_right(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE, train=24))
    here.night(ONE)
    wrong = call("Read", file_path="/w/z.py")
    for contradicts in (False, True):
        tonight = sessions(TWO, train=24, right=wrong if contradicts else TEACHERS)
        every = [*days(ONE, train=24), *tonight]
        write_dataset(here.lake, every)
        here.lake.write("dataset_hints", [_fix(s) for s in every if s.split == "train"],
                        split="train")  # fmt: skip
        canaries = plan_night(here.lake, TWO, NightRules()).canaries
        held = {canary.name: canary.holds for canary in canaries}
        assert held == {**dict.fromkeys(held, False), "contradicted": contradicts}
    assert canaries[0].why == (
        "100% of the fixes in the trace are contradicted by the teachers' consensus, 0% before"
    )


def _fix(one: Session) -> dict[str, Any]:
    return {
        "state_id": f"{one.name}/hard", "session_id": one.name, "group_id": one.name,
        "day": one.day, "repository": one.project, "tools": [], "hint": "no", "span_call": 0,
        "prompt": [{"role": "user", "content": "x"}], "action": [AGENT], "recovery": [TEACHERS],
    }  # fmt: skip


def facts(n: int = 100, **changes: Any) -> Facts:
    """Return facts of ``n`` states at which all is usual."""
    known = {
        "sessions": n, "projects": Counter(a=n // 2, b=n - n // 2),
        "labels": Counter(x=n // 2, y=n - n // 2),
        "voted": n, "rejected": n // 5, "usable": Counter(one=n, two=n),
        "tools": Counter(Edit=n // 2, Bash=n - n // 2), "fixes": n,
        "contradicted": 0,
    }  # fmt: skip
    made = {k: Counter(v) if isinstance(v, dict) else v for k, v in (known | changes).items()}
    return Facts(**made)  # type: ignore[arg-type]


JUMPS: dict[str, dict[str, Any]] = {
    "rejected": {"rejected": 50}, "project": {"projects": {"c": 90, "a": 10}},
    "usable": {"usable": {"one": 40, "two": 100}}, "labels": {"labels": {"x": 10, "y": 90}},
    "tools": {"tools": {"Edit": 10, "Bash": 90}},
    "contradicted": {"contradicted": 40},
}  # fmt: skip


@pytest.mark.parametrize("name", JUMPS)
def test_each_holds_by_itself_and_not_when_data_are_few(name: str) -> None:
    def held(tonight: Facts, usual: Facts, rules: CanaryRules = RULES) -> set[str]:
        found = judge(tonight, usual, rules)
        assert [c.holds for c in found] == sorted((c.holds for c in found), reverse=True)
        return {canary.name for canary in found if canary.holds}

    jump = facts(100, **JUMPS[name])
    assert held(facts(), facts()) == set()
    assert held(jump, facts()) == {name}
    own = {name: 0.0 if name == "usable" else 1.0}
    assert held(jump, facts(), RULES.model_copy(update=own)) == set(), "by its own limit"
    assert held(facts(), jump) <= {name} & {"labels", "tools"}, "only those have no direction"
    few = {
        field: ({k: v // 10 for k, v in value.items()} if isinstance(value, dict) else value // 10)
        for field, value in JUMPS[name].items()
    }
    assert held(facts(10, **few), facts()) == set()
    assert held(jump, facts(10)) == set()
    assert held(facts(100, sessions=9, **JUMPS[name]), facts()) == set(), "states of few sessions"


def test_no_answer_at_all_is_an_outage_unless_few_were_asked_before() -> None:
    nobody = facts(voted=0, rejected=0, usable={}, labels={})
    held = [canary for canary in judge(nobody, facts(), RULES) if canary.holds]
    assert [canary.name for canary in held] == ["usable"]
    assert held[0].why == "no teacher answered at any of 100 states; before, some did at 100%"
    rare = facts(200, voted=40, rejected=8, usable={"one": 40}, fixes=40)
    assert not any(canary.holds for canary in judge(nobody, rare, RULES))


def test_a_teacher_who_left_or_is_rare_says_nothing() -> None:
    usual = facts(usable={"one": 100, "gone": 15})
    assert not any(c.holds for c in judge(facts(usable={"one": 100}), usual, RULES))
    out = judge(facts(usable={"gone": 15}), usual, RULES)[0]
    assert (out.name, out.holds, out.tonight, out.usual) == ("usable", True, 0, 1)


def test_states_that_nobody_was_asked_about_are_no_votes(tmp_path: Path) -> None:
    here = house(tmp_path, days(ONE))
    rows = here.lake.rows("votes", days=[ONE])
    for row in rows[:6]:
        row.update(n_replies=0, reason="not asked")
    here.lake.write("votes", [{k: v for k, v in r.items() if k != "day"} for r in rows], day=ONE)
    found = facts_of(here.lake, dataset_states(here.lake, ONE), {row["state_id"] for row in rows})
    assert found[0].voted == len(rows) - 6
    assert "vote: not asked" not in found[0].labels
