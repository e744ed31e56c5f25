"""Means, paired differences and intervals over sessions; what follows; files and words."""

import json
import random
import statistics

import numpy as np
import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.judge import Judgement
from composer_pipeline.evaluation.report import (
    HEAD,
    MIN_SESSIONS,
    Cell,
    Estimate,
    difference,
    estimate,
    markdown,
    pictures,
    summarise,
    table,
    verdict,
)
from composer_pipeline.evaluation.results import (
    BASE,
    MEASURES,
    StateResult,
    measures_of,
    read_results,
    write_results,
)

HIT = Judgement(None, True, "L1", True, "")
MISS = Judgement(None, False, "L2", False, "no tool call")


def result(i, session, kind="easy", hit=True, **changes):
    return StateResult(
        **{"state_id": f"s{i}", "session_id": f"x{session}", "kind": kind, "answer": "a",
           "ended": True, "judgement": HIT if hit else MISS, "logp_right": -2.0,
           "tokens_right": 4, **changes}
    )  # fmt: skip


def known(found):
    assert found is not None
    return found


def naive_interval(values, resamples, seed):
    """Draw whole sessions with replacement, in plain Python."""
    by: dict[str, list[float]] = {}
    for session, value in values.values():
        by.setdefault(session, []).append(value)
    sessions = [by[name] for name in sorted(by)]
    draw = random.Random(seed)
    means = []
    for _ in range(resamples):
        drawn = [v for _ in sessions for v in draw.choice(sessions)]
        means.append(sum(drawn) / len(drawn))
    cuts = statistics.quantiles(means, n=40, method="inclusive")
    return cuts[0], cuts[-1]


@pytest.fixture(scope="module")
def uneven():
    """Sessions of different sizes whose states agree with each other."""
    draw = random.Random(4)
    values = {}
    for session in range(15):
        level = draw.gauss(0, 1)
        for i in range(draw.randint(1, 9)):
            values[f"{session}/{i}"] = (f"x{session:02}", level + draw.gauss(0, 0.1))
    return values


def test_the_interval_is_that_of_naive_resampling_of_sessions(uneven):
    found = known(estimate(uneven))
    assert found.mean == pytest.approx(statistics.mean(v for _, v in uneven.values()))
    assert (found.states, found.sessions) == (len(uneven), 15)
    low, high = naive_interval(uneven, 4000, 1)
    assert found.low == pytest.approx(low, abs=0.05)
    assert found.high == pytest.approx(high, abs=0.05)
    alone = {state: (state, value) for state, (_, value) in uneven.items()}
    states = known(estimate(alone))
    # Drawing states would claim twice what these sessions can carry.
    assert states.high - states.low < 0.6 * (found.high - found.low)


def test_the_interval_is_that_of_scipy(uneven):
    stats = pytest.importorskip("scipy.stats")
    by: dict[str, list[float]] = {}
    for session, value in uneven.values():
        by.setdefault(session, []).append(value)
    sums, counts = (np.array([f(v) for v in by.values()]) for f in (sum, len))
    theirs = stats.bootstrap(
        (sums, counts), lambda s, n, axis: s.sum(axis) / n.sum(axis), paired=True,
        vectorized=True, n_resamples=20_000, method="percentile", random_state=0,
    ).confidence_interval  # fmt: skip
    found = known(estimate(uneven))
    assert found.low == pytest.approx(theirs.low, abs=0.03)
    assert found.high == pytest.approx(theirs.high, abs=0.03)


def test_it_is_seeded_and_nothing_depends_on_the_order(uneven):
    turned = dict(reversed(uneven.items()))
    assert estimate(uneven) == estimate(turned)
    assert estimate(uneven) != estimate(uneven, seed=1)
    assert known(estimate(uneven, seed=1)).mean == known(estimate(uneven)).mean


def test_how_often_intervals_cover_the_truth():
    """Near enough to 95 % from MIN_SESSIONS on, and not below."""

    def coverage(sessions, tries=400):
        draw = np.random.default_rng(0)
        hits = 0
        for _ in range(tries):
            values = draw.normal(0, 1, sessions)
            means = values[draw.integers(0, sessions, (500, sessions))].mean(-1)
            low, high = np.percentile(means, [2.5, 97.5])
            hits += low <= 0 <= high
        return hits / tries

    assert coverage(5) < 0.87 < coverage(MIN_SESSIONS) < 0.95


def test_too_few_sessions_have_no_interval():
    few = {f"s{i}": (f"x{i % 9}", float(i)) for i in range(90)}
    found = known(estimate(few))
    assert (found.low, found.high, found.sessions) == (None, None, 9)
    assert not found.excludes_zero
    enough = known(estimate({**few, "s": ("x9", 1.0)}))
    assert enough.low < enough.mean < enough.high
    assert estimate({}) is None


def test_a_difference_is_paired_and_over_the_states_that_both_have():
    """Each state is better by 0.01, which unpaired noise of 1 would hide."""
    draw = random.Random(1)
    base = [result(i, i, logp_right=draw.gauss(0, 4)) for i in range(20)]
    better = [result(i, i, logp_right=r.logp_right + 0.04) for i, r in enumerate(base)]
    found = known(difference([*better[:15], result(99, 99)], base, "easy", "right_nll"))
    assert found.states == 15
    assert [found.mean, found.low, found.high] == pytest.approx([-0.01] * 3)
    assert found.excludes_zero
    turned = known(difference(base, better, "easy", "right_nll"))
    assert turned.mean == pytest.approx(0.01)
    assert difference(base, better, "recovery", "right_nll") is None


def test_several_results_of_a_state_are_averaged_first():
    base = [result(i, i, hit=False) for i in range(10)]
    seeds = [result(i, i, hit=hit) for i in range(10) for hit in (True, False, False, False)]
    found = known(difference(seeds, base, "easy", "canonical"))
    assert (found.states, found.sessions, found.mean) == (10, 10, 0.25)


def test_every_measure_is_its_definition():
    r = result(
        1, 1, "hard_covered", False, logp_right=-6.0, tokens_right=3, logp_wrong=-8.0,
        tokens_wrong=8, logp_right_hinted=-1.0, kl=0.5,
    )  # fmt: skip
    assert measures_of(r) == {
        "exact": 0, "canonical": 0, "valid_call": 0, "preference": 1, "preference_per_token": 0,
        "margin": 2, "right_nll": 2, "wrong_nll": 1, "error_logp": -6, "hint_gain": 5, "kl": 0.5,
    }  # fmt: skip
    assert MEASURES.keys() - measures_of(result(1, 1)).keys() == {
        "preference", "preference_per_token", "margin", "wrong_nll", "error_logp", "hint_gain",
        "kl",
    }  # fmt: skip


@pytest.fixture
def arms():
    """A model that learned all hard states, and lost every second recovery state."""
    kinds = ("hard_covered", "hard_uncovered", "easy", "recovery")
    base, trained = [], []
    for i, kind in enumerate(kinds * 12):
        hard = kind.startswith("hard")
        common = {"logp_wrong": -1.0, "tokens_wrong": 2, "logp_right_hinted": -0.5} if hard else {}
        base.append(result(i, i // 4, kind, not hard, **common))
        lost = kind == "recovery" and i // 4 % 2
        trained.append(result(i, i // 4, kind, not lost, **common, kl=0.1))
    return {BASE: base, "trained": trained}


def cell_of(cells, kind, measure, arm="trained"):
    return next(c for c in cells if (c.kind, c.measure, c.arm) == (kind, measure, arm))


def test_a_table_has_each_kind_measure_and_arm(arms):
    cells = summarise(arms, base=BASE)
    hard = cell_of(cells, "hard", "canonical")
    assert (hard.value.mean, hard.value.states, hard.value.sessions) == (1, 24, 12)
    assert cell_of(cells, "hard", "canonical", BASE).value.mean == 0
    assert (hard.against, hard.difference.mean, hard.claimed) == (BASE, 1, True)
    assert cell_of(cells, "easy", "exact").claimed is False
    assert cell_of(cells, "recovery", "valid_call").difference.mean == -0.5
    assert cell_of(cells, "easy", "kl").difference is None
    names = {(c.kind, c.measure) for c in cells}
    assert ("easy", "margin") not in names
    assert ("hard_uncovered", "hint_gain") in names
    with pytest.raises(InputError, match="no results of arm 'other'"):
        summarise(arms, base="other")


def test_a_model_that_is_surely_worse_is_said(arms):
    found = verdict(summarise(arms, base=BASE), "trained")
    assert len(found.worse) == 1
    assert "recovery states: -0.500 canonical matches" in found.worse[0]
    assert not found.unknown
    assert not verdict(summarise(arms, base=BASE), "trained", tolerance=0.9).worse


def cell(low, high, sessions=20):
    change = Estimate(-0.03, low, high, 40, sessions)
    return [
        Cell(kind, "canonical", "trained", change, BASE, change) for kind in ("easy", "recovery")
    ]


def test_the_whole_interval_must_lie_below_the_tolerance():
    assert len(verdict(cell(-0.05, -0.021), "trained").worse) == 2
    assert not verdict(cell(-0.05, -0.019), "trained").worse
    unknown = verdict(cell(None, None, 4), "trained")
    assert not unknown.worse
    assert "40 states of 4 sessions, and an interval needs 10" in unknown.unknown[0]
    assert "there is none" in verdict([], "trained").unknown[1]
    assert not verdict(cell(-0.05, -0.021), BASE).worse


def test_results_come_back_as_they_were(arms, tmp_path):
    write_results(tmp_path / "results.parquet", arms)
    assert read_results(tmp_path / "results.parquet") == arms
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(InputError, match=r"results .*bad\.parquet cannot be read"):
        read_results(tmp_path / "bad.parquet")


def test_a_share_that_never_moves_is_not_certain():
    """With 20 sessions alike, one in six may be otherwise: .975 of such samples would show one."""
    same = [result(i, i) for i in range(20)]
    found = known(difference(same, same, "easy", "exact"))
    assert (found.mean, found.low) == (0, -found.high)
    assert (1 - found.high) ** 20 == pytest.approx(0.025)
    share = next(c for c in summarise({BASE: same}, base=BASE) if c.measure == "exact")
    assert share.value.low == pytest.approx(1 - found.high)
    assert share.value.high == 1


def test_words_and_pictures(arms):
    cells = summarise(arms, base=BASE)
    rows = table(cells, "trained")
    assert all(len(row) == len(HEAD) for row in rows)
    assert (
        "hard",
        "exact",
        "0.0 %",
        "100.0 %",
        "+100.0 points [+47.1, +100.0] *",
        "24 (12)",
    ) in rows
    assert (
        "easy",
        "right_nll",
        "0.5000",
        "0.5000",
        "+0.0000 [+0.0000, +0.0000]",
        "12 (12)",
    ) in rows
    text = markdown(cells, "trained", verdict(cells, "trained"), {"recipe": "r"})
    assert "**Worse than its base.** recovery states: -0.500" in text
    assert "| exact | 0.0 % | 100.0 % |" in text
    assert r"KL(model \|\| base)" in text
    drawn = pictures(cells, "trained")
    assert next(iter(drawn)) == "differences.svg", "what moved comes first"
    assert "hard_covered, trained" in drawn["actions.svg"][1]
    shown = drawn["differences.svg"][1]
    assert "recovery canonical" in shown
    changes = {f"{c.kind} {c.measure}": c.difference for c in cells if c.difference}
    still = {name for name, change in changes.items() if not change.mean}
    assert still
    assert not [name for name in still if f">{name}<" in shown], "nothing of length 0 is drawn"
    assert [*pictures([c for c in cells if c.measure == "right_nll"], "trained")] == []
    few = {arm: some[:8] for arm, some in arms.items()}
    few_rows = table(summarise(few, base=BASE), "trained")
    assert few_rows[0][4] == "+100.0 points [no interval]"
    json.dumps([c.value.mean for c in cells], allow_nan=False)
