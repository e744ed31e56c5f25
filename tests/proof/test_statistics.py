"""Intervals of the proof: how often a difference of nothing is called one, and what they find.

The simulated grids share nothing with the code under test: each answer is a coin whose odds depend
on the session, the seed, the arm and the kind of mistake. ``python -m tests.proof.test_statistics``
prints the shares for thousands of grids with 1, 3, 5 and 8 seeds.
"""

import sys
from math import comb

import numpy as np
import pytest

from composer_pipeline.evaluation.judge import Judgement
from composer_pipeline.evaluation.report import estimate as over_sessions
from composer_pipeline.evaluation.results import StateResult
from examples.proof.statistics import contrast, estimate, holm, loss_bound

KINDS = 12  # of mistakes
#: Standard deviations, in log odds, of what an answer depends on; `arm`: differently in each arm.
WORLDS = {
    "states alone": {"state": 1.0},
    "sessions": {"session": 1.0, "session_arm": 0.7},
    "seeds": {"seed": 0.3, "seed_arm": 0.3},
    "sessions and seeds": {"session": 1.0, "session_arm": 0.7, "seed": 0.3, "seed_arm": 0.2},
    "sessions, differently by seed": {"session": 0.5, "session_seed_arm": 1.0},
    "kinds, differently by seed": {"state": 1.0, "kind_seed_arm": 1.0},
    "seeds, near the ceiling": {"level": 4.5, "session": 1.0, "seed": 0.5, "seed_arm": 1.0},
}
SIZES = np.tile([1, 2, 3], 80)
#: As real sessions fall into projects: one of them has more than half of all states.
PROJECTS = np.array([124, 26, 5, 3, 2] + [2] * 8 + [1] * 31)


def grids(number, rng, *, seeds=5, sizes=SIZES, effect=0.0, **world):
    """Return answers (grid, arm, seed, state) and the session of each state."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    kind, units = rng.integers(KINDS, size=len(owner)), len(sizes)

    def drawn(name, *shape):
        return rng.normal(0, world.get(name, 0.0), (number, *shape))

    odds = world.get("level", 0.0) + drawn("state", 1, 1, len(owner))
    odds = odds + drawn("session", 1, 1, units)[..., owner]
    odds = odds + drawn("session_arm", 2, 1, units)[..., owner]
    odds = odds + drawn("session_seed_arm", 2, seeds, units)[..., owner]
    odds = odds + drawn("seed", 1, seeds, 1) + drawn("seed_arm", 2, seeds, 1)
    odds = odds + drawn("kind_seed_arm", 2, seeds, KINDS)[..., kind]
    odds[:, 0] += effect
    return rng.random(odds.shape) < 1 / (1 + np.exp(-odds)), owner


def estimates(answers, owner):
    """Return an estimate of the arms' difference for each grid."""
    counts = np.bincount(owner).astype(float)
    starts = np.searchsorted(owner, np.arange(len(counts)))
    sums = np.add.reduceat(answers[:, 0].astype(float) - answers[:, 1], starts, axis=-1)
    return [estimate(grid, counts, share=True) for grid in sums]


def result(state, session, right):
    return StateResult(
        state_id=str(state), session_id=str(session), kind="hard_uncovered", answer="", ended=True,
        judgement=Judgement(None, right, "L0" if right else "", None, ""), logp_right=-1.0,
        tokens_right=1,
    )  # fmt: skip


def results(answers, owner):
    """Return seed to results of one arm's answers (seed, state)."""
    return {
        seed: [result(state, owner[state], bool(right)) for state, right in enumerate(row)]
        for seed, row in enumerate(answers)
    }


def compared(one, other, *, measure="exact", states=lambda result: True):
    return contrast(one, other, measure=measure, states=states)


def lost(answers, base):
    """Return the bound for answers (seed, session) that are right or not."""
    owner = np.arange(answers.shape[1])
    return loss_bound(results(answers, owner), results(base, owner), states=lambda result: True)


def test_at_most_five_percent_of_grids_without_an_effect_are_called_significant():
    answers, owner = grids(200, np.random.default_rng(1), **WORLDS["sessions and seeds"])
    found = [compared(results(one, owner), results(other, owner)) for one, other in answers]
    assert sum(each.excludes_zero for each in found) <= 10
    assert sum(each.p <= 0.05 for each in found) <= 10
    assert {(each.units, each.seeds) for each in found} == {(240, 5)}


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_whatever_the_answers_depend_on_the_rate_is_kept(seeds):
    rng = np.random.default_rng(seeds)
    wrong = [
        sum(each.excludes_zero for each in estimates(*grids(200, rng, seeds=seeds, **world)))
        for world in WORLDS.values()
    ]
    assert sum(wrong) <= 0.05 * 200 * len(WORLDS)
    assert max(wrong) <= 19  # above it: less than once in 500 with a rate of 5 %


def test_an_interval_over_sessions_alone_calls_half_of_them_significant():
    """The former method: seeds averaged, sessions drawn; a seed's luck is taken for an effect."""
    answers, owner = grids(40, np.random.default_rng(2), **WORLDS["seeds"])
    differences = answers[:, 0].mean(1) - answers[:, 1].mean(1)
    called = 0
    for row in differences:
        values = {str(at): (str(owner[at]), value) for at, value in enumerate(row)}
        found = over_sessions(values, resamples=1000)
        called += found is not None and found.excludes_zero
    assert called > 0.4 * len(differences)


def test_a_project_with_most_of_the_states_does_not_count_as_many():
    world = {"session": 1.0, "session_arm": 0.5, "seed_arm": 0.1}
    found = estimates(*grids(200, np.random.default_rng(3), sizes=PROJECTS, **world))
    assert sum(each.excludes_zero for each in found) <= 10


def test_an_effect_is_found():
    rng, world = np.random.default_rng(4), WORLDS["sessions and seeds"]
    found = estimates(*grids(100, rng, effect=1.0, **world))
    assert sum(each.low > 0 for each in found) > 90
    assert all(each.p <= 0.05 for each in found if each.low > 0)


def test_one_seed_is_an_interval_over_sessions_and_few_sessions_have_none():
    answers, owner = grids(1, np.random.default_rng(5), seeds=1)
    ((one, other),) = answers
    found = compared(results(one, owner), results(other, owner))
    assert found.seeds == 1
    sums = np.bincount(owner, one[0].astype(float) - other[0])
    error = np.std((sums - found.mean * SIZES) / SIZES.mean(), ddof=1) / np.sqrt(len(SIZES))
    assert found.high - found.mean == pytest.approx(1.97 * error, rel=0.01)
    few = owner < 9
    found = compared(results(one[:, few], owner), results(other[:, few], owner))
    assert (found.units, found.low, found.p, found.excludes_zero) == (9, None, None, False)


def test_only_what_both_arms_have_in_each_seed_is_compared():
    one = results(np.ones((3, 40), bool), np.arange(40))
    other = results(np.zeros((2, 30), bool), np.arange(30))
    other[1] = other[1][:20]
    found = compared(one, other, states=lambda r: r.state_id != "0")
    assert (found.mean, found.units, found.seeds) == (1, 19, 2)
    assert compared(one, {7: one[0]}) is None
    assert compared(one, other, measure="hint_gain") is None
    assert compared(one, other, states=lambda r: False) is None


def test_arms_that_never_differ_leave_a_difference_possible():
    same = results(np.ones((5, 40), bool), np.arange(40))
    found = compared(same, same)
    assert (found.mean, found.p) == (0, 1)
    assert found.high == -found.low == pytest.approx(1 - 0.025 ** (1 / 40))
    none = compared(same, same, measure="right_nll")
    assert (none.mean, none.low, none.excludes_zero) == (0, None, False)


@pytest.mark.parametrize("wrong", [0, 1, 7])
def test_a_loss_has_the_exact_bound_of_as_many_sessions(wrong):
    found = lost((np.arange(60) >= wrong)[None], np.ones((1, 60), bool))
    p = found.high  # were it the truth, so few would be lost with probability 2.5 %
    tail = sum(comb(60, k) * p**k * (1 - p) ** (60 - k) for k in range(wrong + 1))
    assert 0.02 < tail < 0.0251
    assert found.low <= found.mean == pytest.approx(wrong / 60)


def test_a_seed_that_loses_much_widens_the_bound_and_gains_do_not_hide_a_loss():
    base = np.arange(240)[None].repeat(5, 0) >= 40
    answers = np.ones((5, 240), bool)
    answers[0, 40:60] = False  # a tenth of what the base has right, in one seed of five
    found = lost(answers, base)
    assert (found.mean, found.units, found.low) == (pytest.approx(0.02), 200, 0)
    assert found.high > 0.07
    found = lost(np.ones((5, 240), bool), base)
    assert (found.mean, found.low) == (0, 0)
    assert found.high == pytest.approx(1 - 0.025 ** (1 / 200))


def test_holm_stops_at_the_first_that_does_not_stand():
    # 0.005 <= 0.05 / 4, 0.01 <= 0.05 / 3, 0.03 > 0.05 / 2; 0.04 would stand alone
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == {"a", "d"}
    assert holm({"b": 0.04}) == {"b"}
    assert holm({}) == frozenset()


def main(number: int) -> None:
    """Print how often each number of seeds is wrong in each world, in percent."""
    shapes = [(name, SIZES, world) for name, world in WORLDS.items()]
    shapes.append(("projects", PROJECTS, WORLDS["sessions and seeds"]))
    for name, sizes, world in shapes:
        said = []
        for seeds in (1, 3, 5, 8):
            rng, wrong = np.random.default_rng([seeds, len(sizes)]), 0
            for _ in range(number // 200):
                found = estimates(*grids(200, rng, seeds=seeds, sizes=sizes, **world))
                wrong += sum(each.excludes_zero for each in found)
            said.append(f"{seeds}: {100 * wrong / number:.1f}")
        print(f"{name:30s} {'  '.join(said)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
