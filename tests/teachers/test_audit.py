"""The audit sees what the rules leave out, and says how sure it is."""

import math

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.selection import (
    Cluster,
    CurtailedSelector,
    choose,
    decided,
    remaining_voters,
)
from composer_pipeline.teachers.teachers import Selection, Teacher, sampled
from tests.fixtures.lake_states import write_session
from tests.teachers.worlds import ByText

TODO = Action("", (ToolCall("TodoWrite", {"todos": []}),))


def teacher(name: str, price: str, family: str) -> Teacher:
    cap = {"prompt": price, "completion": price}
    data = {"name": name, "family": family, "model": f"x/{name}", "licence": "MIT"}
    return Teacher.model_validate({**data, "max_price": cap})


def section(**more: object) -> Selection:
    return Selection.model_validate({"curtail": "off", "prioritise": False, **more})


def test_the_audit_asks_about_what_a_rule_leaves_out(lake: Lake) -> None:
    ids = set(write_session(lake, "todo", [(TODO, "ok")] * 200))
    states = list(load_states(lake, state_ids=ids))
    chosen, ruled_out = choose(states, section(skip=["todo"], audit_share=0.2))
    assert ruled_out.keys() == ids
    assert {s.state_id for s in chosen} == {i for i in ids if sampled(i, 0.2)}
    assert 20 <= len(chosen) <= 60
    assert choose(states, section(skip=["todo"], audit_share=0.0))[0] == []


def test_of_near_duplicates_the_first_in_time_is_asked(lake: Lake) -> None:
    ids: list[str] = []
    for number in range(8):  # the ids are hashes, so their order is another
        ids += write_session(lake, f"d{number}", [(Action("git status"), "ok")], day=day(number))
    states = list(load_states(lake, state_ids=set(ids)))
    assert sorted(ids) != ids
    for given in (states, list(reversed(states))):
        chosen, _ = choose(given, section(skip=["near_duplicate"], audit_share=0.0))
        assert [state.state_id for state in chosen] == ids[:1]


def day(number: int) -> str:
    return f"2026-10-{number + 1:02}"


def test_a_vote_that_may_still_be_tied_is_open() -> None:
    assert not decided([Cluster(2)], 2, 2)
    assert decided([Cluster(2)], 1, 2)
    assert not decided([Cluster(3), Cluster(1)], 2, 2)
    assert decided([Cluster(3), Cluster(1)], 1, 2)


def test_a_family_that_has_answered_is_not_asked_through_another_teacher() -> None:
    teachers = [teacher("a1", "1", "a"), teacher("a2", "2", "a"), teacher("b", "3", "b")]
    answer = Action("x")
    names = [t.name for t in remaining_voters(teachers, {"a1": answer}, ByText())]
    assert names == ["b"]
    assert [t.name for t in remaining_voters(teachers, {"a1": None}, ByText())] == ["a2", "b"]


def test_the_estimate_and_its_error_are_those_of_poisson_sampling(lake: Lake) -> None:
    """Missed in the audit m times at share f: m/f - m pairs, give or take sqrt(m(1-f))/f."""
    ids = set(write_session(lake, "todo", [(TODO, "ok")] * 100))
    states = list(load_states(lake, state_ids=ids))
    teachers = [teacher("a", "1", "a"), teacher("b", "2", "b")]
    share = 0.25
    selector = CurtailedSelector(section(skip=["todo"], audit_share=share), ByText())
    known: dict[str, dict[str, Action | None]] = {s: {} for s in ids}
    while wave := selector.next_wave(
        states, teachers, lambda state_id: known[state_id], lambda *_: True
    ):
        for state, who in wave:
            known[state.state_id][who.name] = Action("another")
    report = selector.report()
    missed = sum(sampled(state_id, share) for state_id in ids)
    assert report.audited == report.missed_in_audit == report.pairs == missed > 5
    assert report.missed_pairs == missed / share - missed
    assert report.missed_se == math.sqrt(missed * (1 - share)) / share
