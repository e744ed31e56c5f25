"""What may be said of a difference between two arms: its interval, and which of many stand.

Units (sessions, or groups of them) and seeds are both samples, and crossed: another seed is another
dataset and another model, measured at the same states. An estimate is a ratio of sums over units,
each with its own number of states, and over seeds. Half its interval is the root of the sum of two
squares: half the t interval over units and half the t interval over seeds, each with its own
degrees of freedom (as Howe 1974 adds limits). That is two-way clustering (Cameron, Gelbach and
Miller 2011) without taking out what is common to both, so it is rather too wide; one quantile for
both by Satterthwaite is too narrow for three seeds, and resampling (Owen 2007) has none for few
seeds. Units of unequal size have the degrees of freedom of ``(sum n)^2 / sum n^2`` equal ones
(Kish). ``tests/proof/test_statistics.py`` measures how often a difference of nothing is called one.

With one seed an interval is over units alone and about that one model. Kinds of mistakes are not
sampled: a claim is about those of the world that was measured.
"""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt

import msgspec
import numpy as np
import numpy.typing as npt

from composer_pipeline.evaluation.report import possible
from composer_pipeline.evaluation.results import SHARES, StateResult, measures_of

#: Fewer units give no interval.
MIN_UNITS = 10
#: One less than the confidence of every interval.
LEVEL = 0.05
_NORMAL = 1.96

Array = npt.NDArray[np.float64]
#: Seed to results.
Results = Mapping[int, Sequence[StateResult]]
States = Callable[[StateResult], bool]
Unit = Callable[[StateResult], str]


class Estimate(msgspec.Struct, frozen=True):
    """A mean over states with its 95 % interval and its two-sided p against 0.

    All three are ``None`` with fewer than :data:`MIN_UNITS` units, and where a measure that is not
    a share is the same everywhere. With ``seeds`` 1 nothing is said about another seed.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    units: int
    seeds: int

    @property
    def excludes_zero(self) -> bool:
        """True if the interval lies entirely above or below 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def session(result: StateResult) -> str:
    """Return the session of a result."""
    return result.session_id


def contrast(
    one: Results, other: Results, *, measure: str, states: States, unit: Unit = session
) -> Estimate | None:
    """Return ``one`` minus ``other`` over the seeds and states that both have, or ``None``.

    ``measure`` is one of ``evaluation.results.MEASURES``; ``states`` says which results count, and
    ``unit`` what is drawn together: a session, or a group of sessions.
    """
    mine, theirs, units = _paired(one, other, measure, states, unit)
    return estimate(*_summed(mine - theirs, units), share=measure in SHARES) if units else None


def loss_bound(
    arm: Results, base: Results, *, states: States, unit: Unit = session, measure: str = "exact"
) -> Estimate | None:
    """Return the share that an arm gets wrong of the states that its base gets right.

    The interval is the wider of the t interval and Clopper and Pearson's for that share of
    effectively as many sessions (Korn and Graubard 1998), at most as many as there are. It is never
    of zero width: with nothing lost in N equal sessions it ends at ``1 - 0.025 ** (1 / N)``,
    which is about other sessions for the models of these seeds, not about another seed's model.
    """
    mine, theirs, units = _paired(arm, base, measure, states, unit)
    right = [at for at in range(len(units)) if (theirs[:, at] == 1).all()]
    if not right:
        return None
    sums, counts = _summed(1 - mine[:, right], [units[at] for at in right])
    plain = estimate(sums, counts, share=False)
    if plain.units < MIN_UNITS:
        return plain
    from scipy.special import betaincinv

    lost, size, half = plain.mean, equal_units(counts), _half(_errors(sums, counts), LEVEL)
    if half and 0 < lost < 1:
        size = min(size, lost * (1 - lost) * (_NORMAL / half) ** 2)
    wrong, rest = lost * size, (1 - lost) * size
    low = float(betaincinv(wrong, rest + 1, LEVEL / 2)) if wrong else 0.0
    high = float(betaincinv(wrong + 1, rest, 1 - LEVEL / 2)) if rest else 1.0
    low, high = min(low, lost - half), max(high, lost + half)
    return msgspec.structs.replace(plain, low=max(0.0, low), high=min(1.0, high))


def holm(p_values: Mapping[str, float]) -> frozenset[str]:
    """Return the names whose p stands among all of them (Holm 1979)."""
    stand: list[str] = []
    for name, p in sorted(p_values.items(), key=lambda item: item[1]):
        if p > LEVEL / (len(p_values) - len(stand)):
            break
        stand.append(name)
    return frozenset(stand)


def estimate(sums: Array, counts: Array, *, share: bool) -> Estimate:
    """Return the estimate of sums of differences (seeds x units) over states (units).

    A share's interval is at least what stays possible of it when units are all alike: with N units
    the part of them that is otherwise is below ``1 - 0.025 ** (1 / N)``.
    """
    seeds, units = sums.shape
    mean = float(sums.sum() / counts.sum() / seeds)
    errors = _errors(sums, counts)
    if units < MIN_UNITS or not (share or any(error for error, _ in errors)):
        return Estimate(mean, None, None, None, units, seeds)
    half, p = _half(errors, LEVEL), _p(errors, abs(mean))
    low, high = mean - half, mean + half
    if share:
        least, most = possible(mean, units, (-1, 1))
        low, high = max(-1.0, min(low, least)), min(1.0, max(high, most))
        p = max(p, min(1.0, 2 * (1 + abs(mean)) ** -units))
    return Estimate(mean, low, high, p, units, seeds)


def _errors(sums: Array, counts: Array) -> list[tuple[float, float]]:
    """Return the standard errors over units and over seeds, with their degrees of freedom."""
    (seeds, units), total = sums.shape, counts.sum()
    rest = sums - sums.sum() / total / seeds * counts
    by_unit, by_seed = rest.mean(0) / total, rest.sum(1) / total / seeds
    found = []
    if units > 1:
        found.append((sqrt(units / (units - 1) * (by_unit**2).sum()), equal_units(counts) - 1))
    if seeds > 1:
        found.append((sqrt(seeds / (seeds - 1) * (by_seed**2).sum()), seeds - 1.0))
    return [(error if error > 1e-12 else 0.0, degrees) for error, degrees in found]


def _half(errors: Sequence[tuple[float, float]], level: float) -> float:
    from scipy.special import stdtrit

    return sqrt(sum((error * float(stdtrit(degrees, level / 2))) ** 2 for error, degrees in errors))


def _p(errors: Sequence[tuple[float, float]], distance: float) -> float:
    """Return the level at which half an interval is ``distance``."""
    if not any(error for error, _ in errors):
        return float(distance == 0)
    low, high = 0.0, 1.0
    for _ in range(50):
        level = (low + high) / 2
        low, high = (level, high) if _half(errors, level) > distance else (low, level)
    return high


def equal_units(counts: Array) -> float:
    """Return how many units of equal size are worth units with these numbers of states (Kish)."""
    return float(counts.sum() ** 2 / (counts**2).sum())


def _paired(
    one: Results, other: Results, measure: str, states: States, unit: Unit
) -> tuple[Array, Array, list[str]]:
    """Return values (seeds x states) of both arms where both have them in each seed, and units."""
    seeds = sorted(one.keys() & other.keys())
    found = [
        {r.state_id: (value, unit(r)) for r in arm[seed] if states(r)
         and (value := measures_of(r).get(measure)) is not None}
        for arm in (one, other) for seed in seeds
    ]  # fmt: skip
    common = [state for state in found[0] if all(state in each for each in found)] if found else []
    values = np.array([[each[state][0] for state in common] for each in found], dtype=np.float64)
    return values[: len(seeds)], values[len(seeds) :], [found[0][state][1] for state in common]


def _summed(values: Array, units: Sequence[str]) -> tuple[Array, Array]:
    """Return sums (seeds x units) and numbers of states (units)."""
    names, place = np.unique(units, return_inverse=True)
    sums = [np.bincount(place, row, len(names)) for row in values]
    return np.array(sums), np.bincount(place).astype(np.float64)
