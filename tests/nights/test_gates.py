"""The gates beside independent formulas, and their level over months."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from composer_pipeline.nights.gates import Gate, better, needed, not_worse, p_better
from composer_pipeline.nights.rules import GateRules

Rng = np.random.Generator


def by_session(sums: list[float]) -> dict[str, tuple[str, float]]:
    return {f"s{i}": (f"session{i}", value) for i, value in enumerate(sums)}


def test_p_is_that_of_every_sign(rng: Rng) -> None:
    for sessions in (3, 8, 12):
        sums = [int(v) for v in rng.integers(-2, 4, sessions)]
        if sum(sums) <= 0:
            continue
        every = [sum(s * v for s, v in zip(signs, sums, strict=True)) >= sum(sums)
                 for signs in product((-1, 1), repeat=sessions)]  # fmt: skip
        assert p_better(by_session([*map(float, sums)])) == pytest.approx(np.mean(every))


@pytest.fixture
def rng() -> Rng:
    return np.random.default_rng(7)


def test_p_of_many_sessions_is_scipy_s(rng: Rng) -> None:
    sums = rng.choice([-1.0, 1.0], 60, p=[0.35, 0.65])
    theirs = stats.permutation_test(
        (sums,), np.sum, permutation_type="samples", alternative="greater", n_resamples=50_000,
        random_state=1,
    ).pvalue  # fmt: skip
    assert p_better(by_session([*sums])) == pytest.approx(theirs, abs=0.003)
    # Wins of a fair coin: the sign test.
    wins = int((sums > 0).sum())
    assert p_better(by_session([*sums])) == pytest.approx(
        stats.binomtest(wins, 60, alternative="greater").pvalue, abs=0.003
    )


def test_states_of_a_session_are_one_observation() -> None:
    one = {f"s{i}": ("session", 1.0) for i in range(50)}
    assert p_better(one) == 0.5
    assert p_better({}) == p_better(by_session([-1, 1])) == p_better(by_session([-1.0])) == 1
    assert p_better(by_session([1.0] * 9)) == 2**-9
    assert p_better(by_session([1.0] * 40)) == 1e-5, "no less than one of the flips that are drawn"


def gate_of(parent: list[float], candidate: list[float], level: float) -> Gate:
    names = [f"s{i}" for i in range(len(parent))]
    return better(
        dict(zip(names, candidate, strict=True)), by_session(parent), level=level
    )  # fmt: skip


def test_a_candidate_is_better_at_the_level(rng: Rng) -> None:
    level = GateRules().level
    assert level == 0.05 / 30
    assert not gate_of([0] * 9, [1] * 9, level).passed
    ten = gate_of([0] * 10, [1] * 10, level)
    assert (ten.passed, ten.before, ten.after, ten.p) == (True, 0, 1, 2**-10)
    assert not gate_of([1] * 20, [0] * 20, level).passed
    nothing = better({}, by_session([0] * 20), level=level)
    assert (nothing.passed, nothing.p) == (False, None)
    assert better({"s0": 1.0}, by_session([0] * 20), level=level).difference.states == 1  # type: ignore[union-attr]


def test_a_month_of_candidates_that_are_no_better_promotes_one_in_twenty_at_most(rng: Rng) -> None:
    # Both answer the same states, by chance alike; sessions are of different difficulty.
    months, level, wrong = 2000, GateRules().level, 0
    for _ in range(months):
        ease = rng.random((30, 14, 1))
        one, other = (rng.random((30, 14, 6)) < ease for _ in range(2))
        sums = (one.astype(float) - other).sum(-1)
        likely = sums.sum(-1) > 2.4 * np.sqrt((sums**2).sum(-1))  # the others' p is far larger
        wrong += any(p_better(by_session([*night])) <= level for night in sums[likely])
    assert wrong / months <= 0.05
    assert wrong, "the test is not empty"


@pytest.mark.parametrize("sessions", [71, 72])
def test_a_loss_has_to_be_excluded_where_that_is_possible(sessions: int) -> None:
    assert needed(0.05) == 72
    # Nothing lost in n sessions: 1 - 0.025 ** (1 / n) may be lost (Clopper and Pearson).
    same = {f"s{i}": 1.0 for i in range(sessions)}
    gate = not_worse("easy", same, by_session([1.0] * sessions), 0.05)
    assert gate is not None
    assert gate.difference is not None
    low = gate.difference.low
    assert low is not None
    assert low == pytest.approx(-stats.beta.ppf(0.975, 1, sessions))
    assert (gate.passed, gate.lost, low >= -0.05) == (True, False, sessions == 72)
    lost = {**same, "s0": 0.0}
    gate = not_worse("easy", lost, by_session([1.0] * sessions), 0.05)
    assert gate is not None
    assert (gate.passed, gate.lost) == (sessions == 71, False)


def test_non_inferiority_is_the_normal_interval_s_where_that_holds(rng: Rng) -> None:
    reference = (rng.random(800) < 0.8).astype(float)
    for loss in (0.0, 0.02, 0.035, 0.06, 0.1):
        now = np.where(rng.random(800) < loss, 0, reference)
        gate = not_worse(
            "own", {f"s{i}": float(v) for i, v in enumerate(now)}, by_session([*reference]), 0.05
        )
        assert gate is not None
        assert gate.difference is not None
        change = now - reference
        low = change.mean() - 1.96 * change.std() / np.sqrt(800)
        assert gate.difference.low == pytest.approx(low, abs=0.006)
        assert gate.passed == (low >= -0.05)
        certain = change.mean() < -0.05 or change.mean() + change.std() * 0.07 < 0
        assert gate.lost == (not gate.passed and certain), "within the margin nothing is lost"


@pytest.mark.parametrize("lost", [8, 13])
def test_a_loss_of_gains_has_to_be_seen_not_excluded(lost: int) -> None:
    """A few rows that every candidate loses must not refuse all later nights."""
    now = {f"s{i}": float(i >= lost) for i in range(120)}
    reference = by_session([1.0] * 120)
    gate = not_worse("gains", now, reference, 0.1, exclude=False)
    sure = not_worse("gains", now, reference, 0.1)
    assert gate is not None
    assert sure is not None
    assert (gate.passed, gate.lost) == (lost == 8, lost == 13)
    assert not sure.passed
    assert "could exclude" not in gate.why


@pytest.mark.parametrize("lost", [0, 4, 7])
def test_a_loss_of_few_gains_has_to_be_certain(lost: int) -> None:
    """After the first promotions a few sessions stand against hundreds that were learned."""
    now = {f"s{i}": float(i >= lost) for i in range(20)}
    gate = not_worse("gains", now, by_session([1.0] * 20), 0.1, exclude=False)
    assert gate is not None
    assert gate.difference is not None
    assert gate.difference.high is not None
    assert gate.passed == (gate.difference.high >= 0) == (lost < 7)
    assert gate.lost == (lost == 7)
    assert "20 sessions, of fewer than 36 a loss has to be certain)" in gate.why


def test_few_anchors_say_little() -> None:
    assert not_worse("gains", {}, by_session([1.0] * 20), 0.05) is None
    assert not_worse("gains", {f"s{i}": 1.0 for i in range(9)}, by_session([1.0] * 9), 0.05) is None
    one_of_ten = {f"s{i}": float(i > 0) for i in range(10)}
    gate = not_worse("gains", one_of_ten, by_session([1.0] * 10), 0.05)
    assert gate is not None
    assert (gate.passed, gate.lost) == (False, False), "one session may be chance"
    gate = not_worse(
        "gains", {f"s{i}": float(i > 6) for i in range(10)}, by_session([1.0] * 10), 0.05
    )
    assert gate is not None
    assert (gate.passed, gate.lost) == (False, True)


def test_a_model_of_the_same_quality_is_hardly_ever_called_worse(rng: Rng) -> None:
    for sessions in (12, 100):
        worse = 0
        for _ in range(60):
            before, now = (rng.random(sessions) < 0.9 for _ in range(2))
            gate = not_worse(
                "easy", {f"s{i}": float(v) for i, v in enumerate(now)}, by_session([*before]), 0.05
            )
            assert gate is not None
            worse += gate.lost
        assert worse <= 8, "of 72 sessions and more a loss of the margin is seen too"
