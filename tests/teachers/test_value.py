"""What is asked first, what is told of the rest, and that both hold on worlds of known truth."""

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.preferences.vote import VoteDecision
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import TraceState
from composer_pipeline.teachers.plan import plan, selector_for
from composer_pipeline.teachers.questions import Questions
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.selection import (
    EXPLORE_EVERY,
    Asking,
    CurtailedSelector,
    left_pairs,
    vote_usd,
)
from composer_pipeline.teachers.teachers import Selection, Teacher, TeacherSet, draw, sampled
from composer_pipeline.teachers.value import (
    BASE,
    SPREAD,
    WEIGHTS,
    PairModel,
    calibration,
    features,
    fit,
    model_of,
)
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from tests.fixtures.lake_states import write_session
from tests.teachers.worlds import Truth, asked_until

Serve = Callable[..., LoopbackOpenRouter]
NAMES = ["steady", "careful", "contrarian"]


def posterior(votes: Mapping[frozenset[str], tuple[int, int]], at: Sequence[float]) -> float:
    """Return the log posterior, up to a constant, feature by feature."""
    base, *weights = at
    names = list(WEIGHTS)
    total = -sum((x - y) ** 2 for x, y in zip(at, [BASE, *WEIGHTS.values()], strict=True))
    total /= 2 * SPREAD**2
    for found, (number, pairs) in votes.items():
        odds = base + sum(weights[names.index(name)] for name in found)
        total += pairs * odds - number * math.log1p(math.exp(odds))
    return total


def test_weights_are_where_the_posterior_is_highest() -> None:
    votes = {
        frozenset({"failed"}): (200, 150),
        frozenset({"failed", "edits"}): (40, 4),
        frozenset({"edits"}): (500, 5),
        frozenset[str](): (3000, 60),
        frozenset({"reverted"}): (3, 0),
    }
    model = fit(votes)
    best = [model.base, *model.weights.values()]
    for at in range(len(best)):
        for step in (-1e-3, 1e-3):
            near = [value + step * (k == at) for k, value in enumerate(best)]
            assert posterior(votes, near) < posterior(votes, best)
    assert model.votes == 3743
    assert model.chance({"failed"}) == pytest.approx(0.72, abs=0.03)
    assert model.chance(()) == pytest.approx(0.02, abs=0.005)
    # Nothing moved what no vote was about; three votes move a weight a little.
    assert model.weights["corrected"] == pytest.approx(WEIGHTS["corrected"])
    assert WEIGHTS["reverted"] - 1.5 < model.weights["reverted"] < WEIGHTS["reverted"]


def test_votes_of_one_kind_do_not_break_the_fit() -> None:
    for pairs in (0, 10**6):
        model = fit({frozenset({"failed"}): (10**6, pairs)})
        assert model.chance({"failed"}) == pytest.approx(pairs / 10**6, abs=0.01)


def test_the_interval_covers_what_comes() -> None:
    """Of the pairs among new states, where the truth is drawn as the prior says."""
    draws = np.random.default_rng(3)
    covered = 0
    kinds = [frozenset({"failed"}), frozenset({"edits"}), frozenset[str](), frozenset({"reverted"})]
    for _ in range(400):
        truth = PairModel(
            float(draws.normal(BASE, SPREAD)),
            {name: float(draws.normal(value, SPREAD)) for name, value in WEIGHTS.items()},
        )
        seen = {kind: (60, int(draws.binomial(60, truth.chance(kind)))) for kind in kinds}
        low, high = fit(seen).expect(dict.fromkeys(kinds, 200))[1:]
        new = sum(int(draws.binomial(200, truth.chance(kind))) for kind in kinds)
        covered += low <= new <= high
    assert 0.92 <= covered / 400 <= 0.98


def teacher(name: str) -> Teacher:
    cap = {"prompt": "1", "completion": "1"}
    data = {"name": name, "family": name, "model": f"x/{name}", "licence": "MIT"}
    return Teacher.model_validate({**data, "max_price": cap})


@pytest.fixture
def many(lake: Lake) -> list[TraceState]:
    """Three hundred and sixty states on nine days, every fifth of them an edit."""
    for number in range(9):
        turns = [
            (Action("", (ToolCall(("Edit", *["Bash"] * 4)[n % 5], {"command": f"{number} {n}"}),)),
             "ok" * (n % 7))
            for n in range(40)
        ]  # fmt: skip
        write_session(lake, f"many{number}", turns, day=f"2026-10-0{number + 1}",
                      error_turns=[7, 23, 31])  # fmt: skip
    return [s for s in load_states(lake) if s.session_id.startswith("many")]


def test_the_order_is_value_per_dollar_with_every_tenth_state_drawn(
    many: list[TraceState],
) -> None:
    chance = {s.state_id: random.Random(s.state_id).random() for s in many}
    usd = {s.state_id: 0.01 + len(s.messages) / 1000 for s in many}
    order = [s.state_id for s in Asking.by_value(many, chance, usd).states]
    assert sorted(order) == sorted(chance)
    left = set(order)
    for at, state in enumerate(order):
        if at % EXPLORE_EVERY == EXPLORE_EVERY - 1:
            assert state == min(left, key=draw)
        else:
            assert state == max(left, key=lambda s: (chance[s] / usd[s], s))
        left.remove(state)
    shuffled = random.Random(1).sample(many, len(many))
    assert [s.state_id for s in Asking.by_value(shuffled, chance, usd).states] == order
    # Teachers that cost nothing are asked where the chance is highest.
    rank = Asking.by_value(many, chance, dict.fromkeys(chance, 0.0)).rank
    assert sorted(rank, key=rank.__getitem__) == sorted(chance, key=lambda s: (-chance[s], s))


def test_trouble_is_asked_first_over_all_days(many: list[TraceState]) -> None:
    selector, begun = asked_until(many, 120, set(), [teacher("a"), teacher("b")])
    trouble = {s.state_id for s in many if s.error_kind}
    assert len(trouble) == 27
    assert len(trouble & begun) >= 25
    report = selector.report()
    assert (report.by_value + report.drawn, report.left) == (120, 240)
    assert 8 <= report.drawn <= 12
    days = {s.day for s in many if s.state_id in begun}
    assert len(days) == 9


def test_the_estimate_of_what_was_left_covers_the_truth(many: list[TraceState]) -> None:
    """200 worlds whose pairs value cannot see, of any share and size of the ceiling."""
    covered, signed = 0, []
    for world in range(200):
        luck = random.Random(world)
        share, room = luck.uniform(0.05, 0.5), luck.randrange(100, 320)
        pairs = {s.state_id for s in many if luck.random() < share}
        selector, begun = asked_until(many, room, pairs, [teacher("a"), teacher("b")])
        report = selector.report()
        truth = len(pairs - begun)
        assert report.left == len(many) - len(begun) > 0
        assert report.pairs == len(pairs & begun)
        assert report.left_pairs is not None
        assert report.left_low is not None
        assert report.left_high is not None
        covered += report.left_low <= truth <= report.left_high
        signed.append((report.left_pairs - truth) / report.left)
    assert 0.93 <= covered / 200 <= 0.985  # counts are whole, so that it is a little wide
    assert abs(np.mean(signed)) < 3 * np.std(signed) / math.sqrt(200) + 0.01


@pytest.mark.parametrize(("found", "sampled", "rest"), [(0, 5, 40), (3, 10, 100), (10, 10, 20)])
def test_the_interval_of_the_rest_is_the_beta_binomial(found: int, sampled: int, rest: int) -> None:
    """Against simulation: a share from the posterior of Jeffreys' prior, then the rest."""
    draws = np.random.default_rng(0)
    shares = draws.beta(found + 0.5, sampled - found + 0.5, 200_000)
    rests = draws.binomial(rest, shares)
    mean, low, high = left_pairs(found, sampled, rest)
    assert mean == pytest.approx(rests.mean(), rel=0.02)
    assert low == pytest.approx(np.quantile(rests, 0.025), abs=1)
    assert high == pytest.approx(np.quantile(rests, 0.975), abs=1)


@pytest.fixture
def selected(teacher_set: TeacherSet) -> TeacherSet:
    selection = {"curtail": "exact", "audit_share": 0}
    return TeacherSet.model_validate(teacher_set.model_dump() | {"selection": selection})


def test_a_curve_says_what_amounts_buy(
    lake: Lake, selected: TeacherSet, serve: Serve, many: list[TraceState]
) -> None:
    serve(key_endpoints=False)
    whole = plan(lake, selected, teachers=NAMES, decide=VoteDecision())
    everything = whole.curve[-1]
    amount = round(Decimal(everything.spent) / 3, 6)
    full = plan(lake, selected, teachers=NAMES, decide=VoteDecision(), max_usd=amount)
    (small,) = (point for point in full.curve if point.usd == float(amount))
    assert full.curve[-1] == everything
    assert everything.usd is None
    # Round amounts from a twentieth of everything on, each buying more than the one before.
    rounds = [point.usd for point in whole.curve[:-1] if point.usd]
    assert 3 <= len(rounds) <= 5
    assert all(f"{usd:g}".lstrip("0.").rstrip("0") in ("1", "2", "5") for usd in rounds)
    assert everything.spent / 20 <= rounds[0] < rounds[-1] <= everything.spent
    bought = [point.states for point in full.curve]
    assert bought == sorted(bought)
    assert sum(point.states == small.states for point in full.curve) == 1
    assert everything.states == full.states == len(Questions(lake, selected).states)
    assert everything.spent == pytest.approx(float(full.expected_usd), rel=0.1)
    assert 0 < small.states < everything.states
    assert float(amount) * 0.95 < small.spent <= float(amount)
    assert small.uncached >= small.spent
    # A third of the money buys more than a third of the pairs, and most of the trouble.
    assert small.pairs > 0.4 * everything.pairs
    assert small.low <= small.pairs <= small.high
    assert 27 == everything.kinds["failed"] >= small.kinds["failed"] > 15
    assert full.votes == 0


def test_a_replay_asks_what_the_plan_says(
    lake: Lake, selected: TeacherSet, serve: Serve, many: list[TraceState]
) -> None:
    serve()
    replay(lake, selected, max_usd=5, teachers=NAMES, days=["2026-10-01"])  # to measure replies
    whole = plan(lake, selected, teachers=NAMES, decide=VoteDecision()).curve[-1]
    amount = round(Decimal(whole.spent) / 3, 6)
    found = plan(lake, selected, teachers=NAMES, decide=VoteDecision(), max_usd=amount)
    before = {row["state_id"] for row in lake.rows("replies")}
    selector = selector_for(lake, selected, VoteDecision(), teachers=NAMES)
    report = replay(lake, selected, max_usd=amount, teachers=NAMES, selector=selector)
    assert selector
    assert report.exhausted_scope
    asked = {row["state_id"] for row in lake.rows("replies")} - before
    (planned,) = (point.states for point in found.curve if point.usd == float(amount))
    # Of so small a ceiling much stays reserved.
    assert 0.4 * planned < len(asked) < 1.1 * planned
    trouble = {s.state_id for s in many if s.error_kind} - before
    assert len(trouble & asked) / len(trouble) > 1.2 * len(asked) / whole.states


def test_votes_move_the_chance_of_the_next_plan(
    lake: Lake, selected: TeacherSet, serve: Serve, many: list[TraceState]
) -> None:
    serve()
    assert model_of(lake) == PairModel()
    replay(lake, selected, max_usd=5, teachers=NAMES)
    build_pairs(lake)
    votes = lake.rows("votes")
    recorded = {row["state_id"]: row["features"] for row in votes}
    assert all(recorded[s.state_id] == sorted(features(s)) for s in many)
    assert ["failed"] in recorded.values()
    by_features: dict[frozenset[str], list[bool]] = {}
    for row in votes:
        if row["n_families"] >= 2:
            by_features.setdefault(frozenset(row["features"]), []).append(row["reason"] == "pair")
    model = model_of(lake)
    assert model.votes == sum(map(len, by_features.values())) > 100
    assert model == fit({kind: (len(v), sum(v)) for kind, v in by_features.items()})
    assert plan(lake, selected, teachers=NAMES).votes == model.votes


def test_calibration_tells_what_the_other_half_foretold() -> None:
    luck = random.Random(4)
    rows: list[dict[str, Any]] = [
        {
            "session_id": f"s{n % 400}",
            "features": ["failed"] if n % 3 == 0 else ["edits"] if n % 3 == 1 else [],
            "n_families": 2 if n % 10 else 1,
            "reason": "pair" if luck.random() < (0.6, 0.2, 0.02)[n % 3] else "style",
        }
        for n in range(30_000)
    ]
    groups = calibration(rows)
    voted = [row for row in rows if row["n_families"] > 1]
    assert sum(n for *_, n in groups) == len(voted)
    assert sum(seen * n for _, seen, n in groups) == pytest.approx(
        sum(row["reason"] == "pair" for row in voted)
    )
    for told, seen, n in groups:
        assert told == pytest.approx(seen, abs=4 * math.sqrt(seen * (1 - seen) / n) + 0.01)
    assert [told for told, *_ in groups] == sorted(told for told, *_ in groups)
    assert groups[0][1] < 0.05
    assert groups[-1][1] > 0.5
    # Where the halves differ, it shows: all pairs are in the sessions of one.
    for row in rows:
        row["reason"] = "pair" if draw(row["session_id"]) % 2 else "style"
    assert max(abs(told - seen) for told, seen, _ in calibration(rows)) > 0.3
    assert calibration([]) == []


def test_a_plan_after_a_replay_counts_no_question_that_nobody_would_ask(
    lake: Lake, selected: TeacherSet, serve: Serve, many: list[TraceState]
) -> None:
    server = serve()
    selector = selector_for(lake, selected, VoteDecision(), teachers=NAMES)
    replay(lake, selected, max_usd=5, teachers=NAMES, selector=selector, days=["2026-10-01"])
    found = plan(lake, selected, teachers=NAMES, days=["2026-10-01"], decide=VoteDecision())
    assert found.calls == found.expected_usd == 0
    asked = found.cached
    assert sum(part.decided for part in found.by_teacher.values()) == 40 * 3 - asked > 20
    assert found.curve[-1].states == 0
    billed = server.billed
    again = selector_for(lake, selected, VoteDecision(), teachers=NAMES)
    replay(lake, selected, max_usd=5, teachers=NAMES, selector=again, days=["2026-10-01"])
    assert server.billed == billed
    # Other settings are other questions.
    data = selected.model_dump()
    data["teachers"] = [one | {"max_tokens": 77} for one in data["teachers"]]
    other = TeacherSet.model_validate(data)
    assert (
        plan(lake, other, teachers=NAMES, days=["2026-10-01"], decide=VoteDecision()).calls == 120
    )


def test_a_vote_costs_two_families_and_no_more_than_their_windows() -> None:
    cheap, dear, third = teacher("a"), teacher("b"), teacher("c")
    prices = {"a": (Decimal("1e-6"), Decimal("2e-6")), "b": (Decimal("3e-6"), Decimal(0)),
              "c": (Decimal(1), Decimal(1))}  # fmt: skip
    order = [cheap, dear, third]
    assert vote_usd(40_000, order, Truth(), prices, "student") == pytest.approx(
        10_000 * 1e-6 + 400 * 2e-6 + 10_000 * 3e-6
    )
    cut = dear.model_copy(update={"prompt": "window", "window_tokens": 4_000})
    twin = cheap.model_copy(update={"name": "c"})  # of a family that has spoken
    control = third.model_copy(update={"control": True})
    order = [cheap, twin, control, cut]
    assert vote_usd(40_000, order, Truth(), prices, "student") == pytest.approx(
        10_000 * 1e-6 + 400 * 2e-6 + 4_000 * 3e-6
    )
    # With five families two that agree may still be outvoted, and `off` asks everybody.
    five = [teacher(name) for name in "abcde"]
    prices = dict.fromkeys("abcde", (Decimal("1e-6"), Decimal(0)))
    for curtail, asked in (("student", 2), ("exact", 3), ("off", 5)):
        usd = vote_usd(4_000, five, Truth(), prices, curtail)
        assert usd == pytest.approx(asked * 1_000 * 1e-6)


def test_shares_of_asked_teachers_are_those_of_a_curtailed_replay(
    lake: Lake, selected: TeacherSet, serve: Serve, many: list[TraceState]
) -> None:
    """Not only of the states where all teachers answered: these are the contested ones."""
    server = serve()
    half = [f"2026-10-0{n}" for n in range(1, 6)]
    selector = selector_for(lake, selected, VoteDecision(), teachers=NAMES)
    replay(lake, selected, max_usd=5, teachers=NAMES, selector=selector, days=half)
    asked = Counter(row["teacher"] for row in lake.rows("replies"))
    found = plan(lake, selected, teachers=NAMES, decide=VoteDecision())
    order = sorted(found.by_teacher, key=lambda name: found.by_teacher[name].rank)
    assert found.agreement.shares == [round(asked[name] / 200, 4) for name in order]
    before = server.billed
    selector = selector_for(lake, selected, VoteDecision(), teachers=NAMES)
    replay(lake, selected, max_usd=5, teachers=NAMES, selector=selector)
    bill = (server.billed - before) / 10**12
    assert float(found.expected_usd) == pytest.approx(bill, rel=0.1)


def test_where_votes_are_open_nobody_knows_how_often_a_teacher_is_asked(
    lake: Lake, selected: TeacherSet, serve: Serve, many: list[TraceState]
) -> None:
    """The first two agreed at the decided states; that the third is never asked is not known."""
    serve()
    days = [f"2026-10-0{n}" for n in range(1, 6)]
    first, names = ["flaky", "careful"], ["flaky", "careful", "steady"]
    replay(lake, selected, max_usd=5, teachers=first, days=days)
    assert plan(lake, selected, teachers=first, decide=VoteDecision()).agreement.shares
    assert plan(lake, selected, teachers=names, decide=VoteDecision()).agreement.shares == []


@pytest.mark.parametrize("curtail", ["off", "exact", "student"])
def test_what_was_recovered_before_the_first_wave_does_not_end_the_run(
    many: list[TraceState], curtail: str
) -> None:
    """A wave of nothing but answered questions would: the run asks no further."""
    for audit_share in (0.0, 1.0):
        selection = Selection.model_validate({"curtail": curtail, "audit_share": audit_share})
        selector = CurtailedSelector(selection, Truth())
        teachers = [teacher("a"), teacher("b")]
        known: dict[str, dict[str, Action | None]] = {s.state_id: {} for s in many}
        known[many[0].state_id] = {"a": Action("same"), "b": None}
        known[many[1].state_id] = {"a": Action("other"), "b": Action("other")}
        fits = lambda *_: True  # noqa: E731
        while wave := selector.next_wave(many, teachers, known.__getitem__, fits):
            new = [(s.state_id, who.name) for s, who in wave if who.name not in known[s.state_id]]
            assert len(new) == len(wave)
            for state_id, name in new:
                known[state_id][name] = Action("other")
        assert all(known[s.state_id] for s in many)


def test_what_a_vote_does_not_decide_stays_open_in_a_plan(
    lake: Lake, selected: TeacherSet, serve: Serve, many: list[TraceState]
) -> None:
    """A control's answer, the audit sample, and everything where nothing is curtailed."""
    serve()
    day: Any = {"days": ["2026-10-01"]}
    selector = selector_for(lake, selected, VoteDecision(), teachers=NAMES)
    replay(lake, selected, max_usd=5, teachers=NAMES, selector=selector, **day)
    bought = Counter(row["state_id"] for row in lake.rows("replies"))

    def open_calls(selection: dict[str, Any], names: list[str], **control: Any) -> dict[str, int]:
        data = selected.model_dump() | {"selection": selection}
        data["teachers"] = [
            one | (control if one["name"] == "flaky" else {}) for one in data["teachers"]
        ]
        found = plan(lake, TeacherSet.model_validate(data), teachers=names, decide=VoteDecision(),
                     **day)  # fmt: skip
        return {name: part.calls for name, part in found.by_teacher.items()}

    exact = {"curtail": "exact", "audit_share": 0}
    again = open_calls(exact, [*NAMES, "flaky"], control=True, ask_share=1.0)
    assert again == dict.fromkeys(NAMES, 0) | {"flaky": 40}
    everything = open_calls({"curtail": "off"}, NAMES)
    assert sum(everything.values()) == sum(3 - number for number in bought.values()) > 20
    half = {state for state in bought if sampled(state, 0.5)}
    audited = open_calls({"curtail": "exact", "audit_share": 0.5}, NAMES)
    assert sum(audited.values()) == sum(3 - bought[state] for state in half) > 5
