"""Curtailed voting against brute force, the audit's estimate, priorities and skip rules."""

import itertools
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.eligibility import Reply
from composer_pipeline.preferences.vote import VoteDecision, vote
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import TraceState
from composer_pipeline.teachers.plan_model import asked_shares
from composer_pipeline.teachers.selection import (
    Cluster,
    CurtailedSelector,
    ask_order,
    decided,
    how_many,
    least_needed,
    pair_found,
    skips,
)
from composer_pipeline.teachers.teachers import Selection, Teacher, sampled
from composer_pipeline.teachers.value import TROUBLE, PairModel, features
from tests.fixtures.lake_states import write_session
from tests.teachers.worlds import ByText

STUDENT = "s"


def outcome(votes: Sequence[str], quorum: int) -> str | None:
    """The winner that makes a pair, or ``None``; the rule, written the slow way."""
    counts = {answer: votes.count(answer) for answer in votes}
    for answer, count in counts.items():
        if count >= quorum and all(count > n for a, n in counts.items() if a != answer):
            return None if answer == STUDENT else answer
    return None


def clusters(votes: Sequence[str]) -> list[Cluster]:
    return [Cluster(votes.count(a), a == STUDENT) for a in dict.fromkeys(votes)]


@pytest.mark.parametrize(("families", "quorum"), [(2, 2), (3, 2), (4, 2), (5, 2), (4, 3), (5, 3)])
def test_a_vote_is_decided_exactly_when_nothing_can_change_it(families: int, quorum: int) -> None:
    names = [STUDENT, *"abcde"[:families]]
    for asked in range(families + 1):
        for votes in itertools.product(names, repeat=asked):
            rest = families - asked
            ends = {
                outcome([*votes, *more], quorum) for more in itertools.product(names, repeat=rest)
            }
            if None not in ends or len(ends) > 1:
                # A winner that nobody named yet is no known cluster.
                expected = len(ends) == 1 and next(iter(ends)) in votes
            else:
                expected = True
            assert decided(clusters(votes), rest, quorum) == expected, votes
            fewest = next(
                n
                for n in range(rest + 1)
                if n == rest
                or any(
                    decided(clusters([*votes, *more]), rest - n, quorum)
                    for more in itertools.product(names, repeat=n)
                )
            )
            assert least_needed(clusters(votes), rest, quorum) == fewest, votes


def test_the_audit_sample_is_the_share_that_was_asked_for() -> None:
    found = [sampled(f"state{n}", 0.03) for n in range(20_000)]
    assert sum(found) / 20_000 == pytest.approx(0.03, abs=0.004)
    assert found == [sampled(f"state{n}", 0.03) for n in range(20_000)]
    assert not any(sampled(f"state{n}", 0.0) for n in range(100))
    assert all(sampled(f"state{n}", 1.0) for n in range(100))


# -- the selector --------------------------------------------------------------------


def teacher(name: str, price: str, family: str = "") -> Teacher:
    cap = {"prompt": price, "completion": price}
    data = {"name": name, "family": family or name, "model": f"x/{name}", "licence": "MIT"}
    return Teacher.model_validate({**data, "max_price": cap})


TEACHERS = [teacher("dear", "3"), teacher("cheap", "1"), teacher("middle", "2")]


def states_of(lake: Lake, texts: Sequence[str], **more: Any) -> list[TraceState]:
    steps = [(Action(text=text), "go on?") for text in texts]
    ids = set(write_session(lake, "s", steps, **more))
    return sorted(load_states(lake, state_ids=ids), key=lambda s: s.n_messages)


def ask(
    selector: CurtailedSelector,
    states: Sequence[TraceState],
    script: Mapping[str, Sequence[str | None]],
    teachers: Sequence[Teacher] = TEACHERS,
) -> dict[str, list[str]]:
    """Run a selector on answers ``{teacher: [answer to each state]}``; who was asked what."""
    known: dict[str, dict[str, Action | None]] = {s.state_id: {} for s in states}
    number = {s.state_id: n for n, s in enumerate(states)}
    waves = 0
    while wave := selector.next_wave(
        states, teachers, lambda state_id: known[state_id], lambda *_: True
    ):
        waves += 1
        assert waves < 20
        for state, who in wave:
            assert who.name not in known[state.state_id], "asked twice"
            text = script[who.name][number[state.state_id]]
            known[state.state_id][who.name] = None if text is None else Action(text=text)
    return {name: sorted(k for k, v in known.items() if name in v) for name in script}


def select(curtail: str, audit: float = 0.0, **more: Any) -> CurtailedSelector:
    options = {"curtail": curtail, "audit_share": audit, "prioritise": False, **more}
    return CurtailedSelector(Selection.model_validate(options), ByText())


SCRIPT: dict[str, list[str | None]] = {
    #          pair, agent right, unlike, heuristic misses, unusable
    "cheap": ["B", "A", "B", "A", None],
    "middle": ["B", "A", "C", "B", "B"],
    "dear": ["C", "C", "D", "B", "B"],
}


def test_exact_curtailing_finds_every_pair_with_fewer_questions(lake: Lake) -> None:
    states = states_of(lake, ["A"] * 5)
    selector = select("exact")
    asked = ask(selector, states, SCRIPT)
    assert len(asked["cheap"]) == len(asked["middle"]) == 5
    assert asked["dear"] == sorted(states[n].state_id for n in (2, 3, 4))
    report = selector.report()
    assert (report.asked, report.full, report.pairs) == (13, 15, 3)
    assert report.missed_pairs is None
    full = select("off")
    assert all(len(names) == 5 for names in ask(full, states, SCRIPT).values())
    assert full.report().pairs == 3


def test_student_curtailing_misses_what_the_audit_then_counts(lake: Lake) -> None:
    states = states_of(lake, ["A"] * 5)
    selector = select("student")
    asked = ask(selector, states, SCRIPT)
    assert len(asked["cheap"]) == 5
    assert asked["middle"] == sorted(states[n].state_id for n in (0, 2, 4))
    assert selector.report().pairs == 2
    audit = select("student", audit=1.0)
    assert all(len(names) == 5 for names in ask(audit, states, SCRIPT).values())
    report = audit.report()
    assert (report.audited, report.missed_in_audit, report.pairs) == (5, 1, 3)
    assert (report.missed_pairs, report.missed_se) == (0, 0)  # all were asked: none was missed


def test_the_estimate_of_missed_pairs_is_unbiased(lake: Lake) -> None:
    count, share = 3000, 0.1
    states = states_of(lake, ["A"] * count)
    # One state in three is a pair that the heuristic misses.
    hidden = [n % 3 == 0 for n in range(count)]
    script: dict[str, list[str | None]] = {
        "cheap": ["A"] * count,
        "middle": ["B" if h else "A" for h in hidden],
        "dear": ["B" if h else "A" for h in hidden],
    }
    selector = select("student", audit=share)
    ask(selector, states, script)
    report = selector.report()
    missed = sum(hidden) - report.pairs
    assert report.missed_pairs is not None
    assert report.missed_se is not None
    assert abs(report.missed_pairs - missed) < 3 * report.missed_se
    assert 0 < report.missed_se < missed / 4
    assert report.asked < 1.4 * count


def test_a_family_speaks_through_its_next_teacher_and_the_agents_own_never(lake: Lake) -> None:
    states = states_of(lake, ["A"])
    teachers = [
        teacher("a1", "1", "fa"), teacher("a2", "2", "fa"), teacher("b", "3"),
        teacher("own", "0", "claude"),
    ]  # fmt: skip
    script: dict[str, list[str | None]] = {"a1": [None], "a2": ["B"], "b": ["B"], "own": ["A"]}
    asked = ask(select("exact"), states, script, teachers)
    assert {name for name, ids in asked.items() if ids} == {"a1", "a2", "b"}
    script["a1"] = ["B"]
    asked = ask(select("exact"), states, script, teachers)
    assert {name for name, ids in asked.items() if ids} == {"a1", "b"}


def test_teachers_are_ordered_by_price() -> None:
    assert ask_order(TEACHERS) == ["cheap", "middle", "dear"]
    free = {"dear": (Decimal(0), Decimal(0))}
    assert ask_order(TEACHERS, free) == ["dear", "cheap", "middle"]


def test_the_most_promising_state_is_the_one_with_trouble(lake: Lake) -> None:
    for session in range(8):
        steps = [(Action(text=f"step {n}"), "and?") for n in range(3)]
        error = [1] if session == 5 else []
        write_session(lake, f"p{session}", steps, error_turns=error, day="2026-11-17")
    states = list(load_states(lake, days=["2026-11-17"]))
    options = {"prioritise": True, "audit_share": 0.0}
    few = CurtailedSelector(Selection.model_validate({"max_states": 1, **options}), ByText())
    ((state, _), *_) = few.next_wave(states, TEACHERS, lambda _: {}, lambda *_: True)
    assert state.error_kind


# -- features ------------------------------------------------------------------------


def state_with(
    lake: Lake, action: Action, *, prompt: str = "Do it.", before: Any = ()
) -> TraceState:
    steps = [*before, (action, "ok")]
    ids = write_session(lake, uuid.uuid4().hex, steps, prompt=prompt, day="2026-11-18")
    return next(load_states(lake, state_ids=ids[-1:]))


def call(name: str, **arguments: Any) -> Action:
    return Action(tool_calls=(ToolCall(name, arguments),))


READ = call("Read", file_path="/home/user/shop/cart.py")


@pytest.mark.parametrize(
    ("action", "prompt", "before", "rule"),
    [
        (call("TodoWrite", todos=[]), "x", (), "todo"),
        (READ, "Look at cart.py.", (), "named_read"),
        (READ, "Look at order.py.", (), None),
        (READ, "Look at cart.py.", ((READ, "text"),), None),
        (Action(text="Done."), "x", (), "confirmation"),
        (Action(text="Shall I?"), "x", (), None),
        (Action(text="long " * 80), "x", (), None),
        (call("Bash", command="ls"), "x", (), None),
    ],
)
def test_skip_rules(lake: Lake, action: Action, prompt: str, before: Any, rule: str | None) -> None:
    state = state_with(lake, action, prompt=prompt, before=before)
    every = ["todo", "named_read", "confirmation", "near_duplicate"]
    assert skips([state], every).get(state.state_id) == rule  # type: ignore[arg-type]
    assert skips([state], []) == {}


def test_near_duplicates_differ_only_in_numbers_and_are_asked_once(lake: Lake) -> None:
    for number, command in enumerate(["make", "make", "make all"]):
        step = (call("Bash", command="git status"), f"[{number}] ok after 1{number}s")
        write_session(lake, f"d{number}", [step, (call("Bash", command=command), "")])
    second = [
        s for s in load_states(lake) if s.session_id.startswith("d") and s.n_messages > 1
    ]  # fmt: skip
    found = skips(sorted(second, key=lambda s: s.session_id), ["near_duplicate"])
    assert [s.session_id for s in second if s.state_id in found] == ["d1"]


def test_features_and_value(lake: Lake) -> None:
    repeated = state_with(lake, READ, before=((READ, "text"),))
    assert features(repeated) == {"repeated"}
    edit = state_with(lake, call("Edit", file_path="a", old_string="b", new_string="c"))
    assert features(edit) == {"edits"}
    write_session(lake, "e", [(Action(text="Done."), "no")], error_turns=[0], day="2026-11-19")
    (failed,) = load_states(lake, days=["2026-11-19"])
    assert features(failed) & TROUBLE
    chances = [PairModel().chance(features(state)) for state in (failed, edit, repeated)]
    assert chances[0] > chances[2] > chances[1] > PairModel().chance(())
    assert skips([failed], ["confirmation"]) == {}  # what went wrong is always asked


# -- the real vote -------------------------------------------------------------------


def test_the_real_vote_as_clusters(lake: Lake) -> None:
    state = state_with(lake, call("Bash", command="pytest tests"))
    decide = VoteDecision()
    answers = {
        "fa": call("Bash", command="pytest tests 2>&1 | tail -n 5"),
        "fb": call("Read", file_path="/home/user/shop/a.py"),
        "fc": call("Read", file_path="/home/user/shop/a.py", limit=2000),
    }
    found = decide.tally(state, answers)
    assert sorted((c.families, c.agrees_with_student) for c in found) == [(1, True), (2, False)]
    replies = [Reply(name, name, name, action) for name, action in answers.items()]
    assert pair_found(found, decide.quorum) == vote(state, replies).is_pair
    assert decide.tally(state, {}) == []
    assert not decide.votes("Claude")
    assert decide.votes("qwen")


def test_how_many_follows_the_example_of_the_worked_numbers() -> None:
    # p = 0.6, q = 0.5: 1 + (1 - p)(1 + (1 - q)) = 1.6 of 3.
    student = asked_shares(3, "student", p=0.6, q=0.5)
    assert sum(student) == pytest.approx(1.6)
    assert student == pytest.approx([1.0, 0.4, 0.2])
    exact = asked_shares(3, "exact", p=0.6, q=0.5)
    assert exact[:2] == [1.0, 1.0]
    assert 0 < exact[2] < 1
    assert how_many([], 3, 2, "exact") == 2
    assert how_many([], 3, 2, "student") == 1
    assert how_many([Cluster(1, True)], 2, 2, "student") == 0
    assert how_many([Cluster(1, True)], 2, 2, "exact") == 1
