"""Results by kind of state: means, intervals over sessions, and differences between models.

Belongs here: numbers from numbers. Does not belong here: what a measure is
(``evaluation.results``), tables and pictures (``evaluation.report``) and what follows from a
difference (``evaluation.verdict``).

States of one session are not independent, so intervals come from drawing whole sessions with
replacement (the percentile bootstrap of a cluster mean). A difference is paired: both models are
measured at the same states, and the same sessions are drawn for both. Where a state has several
results (seeds), their mean is its value.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import msgspec

from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.results import MEASURES, StateResult
from composer_pipeline.evaluation.states import KINDS

#: Below this many sessions there is no interval: it would be far too narrow (a test simulates how
#: often it covers the truth).
MIN_SESSIONS = 10
RESAMPLES = 10_000
LEVEL = 0.95
#: Row of the tables that holds both hard kinds.
HARD = "hard"
#: Kind of a row to the kinds of states in it.
GROUPS: dict[str, tuple[str, ...]] = {
    HARD: ("hard_covered", "hard_uncovered"),
    **{kind: (kind,) for kind in KINDS},
}


class Estimate(msgspec.Struct, frozen=True):
    """A mean over states with its interval over sessions.

    ``low`` and ``high`` are ``None`` where there are fewer than :data:`MIN_SESSIONS` sessions.
    """

    mean: float
    low: float | None
    high: float | None
    states: int
    sessions: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval is wholly above or wholly below 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


class Cell(msgspec.Struct, frozen=True):
    """One measure of one kind of states: an arm alone, and against another arm.

    ``difference`` is arm minus ``against``, over the states that both have; both are ``None``
    for the arm that the others are compared with.
    """

    kind: str
    measure: str
    arm: str
    value: Estimate
    against: str | None = None
    difference: Estimate | None = None

    @property
    def claimed(self) -> bool:
        """Whether the difference may be claimed: its interval excludes 0."""
        return self.difference is not None and self.difference.excludes_zero


def summarise(
    results: Mapping[str, Sequence[StateResult]],
    *,
    base: str,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> list[Cell]:
    """Return every measure of every kind for every arm, against ``base``.

    Cells without a state are left out. The same results and seed give the same cells.

    Args:
        results: arm to its results.
        base: the arm that the others are compared with.
        seed: of the resampling.
        resamples: draws of sessions.

    Raises:
        InputError: there is no arm ``base``.
    """
    if base not in results:
        raise InputError(f"no results of arm {base!r}; there are {', '.join(sorted(results))}")
    cells = []
    for kind in GROUPS:
        for measure in MEASURES:
            for arm in results:
                value = estimate(_values(results[arm], kind, measure), seed, resamples)
                if value is None:
                    continue
                against = base if arm != base else None
                found = None
                if against is not None:
                    found = difference(
                        results[arm], results[base], kind, measure, seed=seed, resamples=resamples
                    )
                cells.append(Cell(kind, measure, arm, value, against, found))
    return cells


def differences(
    results: Mapping[str, Sequence[StateResult]],
    *,
    kinds: Iterable[str] = tuple(GROUPS),
    measures: Iterable[str] = ("canonical",),
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> list[tuple[str, str, str, str, Estimate]]:
    """Return (kind, measure, arm, other arm, arm minus other) for every two arms.

    Args:
        results: arm to its results.
        kinds: rows of the table.
        measures: names of :data:`~composer_pipeline.evaluation.results.MEASURES`.
        seed: of the resampling.
        resamples: draws of sessions.
    """
    measures = tuple(measures)
    return [
        (kind, measure, a, b, found)
        for kind in kinds
        for measure in measures
        for a, b in combinations(results, 2)
        if (found := difference(
            results[a], results[b], kind, measure, seed=seed, resamples=resamples
        ))
    ]  # fmt: skip


def difference(
    one: Sequence[StateResult],
    other: Sequence[StateResult],
    kind: str,
    measure: str,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Estimate | None:
    """Return ``one`` minus ``other`` over the states that both have, or ``None`` without any."""
    a, b = _values(one, kind, measure), _values(other, kind, measure)
    both = {state: (a[state][0], a[state][1] - b[state][1]) for state in a if state in b}
    return estimate(both, seed, resamples)


def estimate(
    values: Mapping[str, tuple[str, float]], seed: int = 0, resamples: int = RESAMPLES
) -> Estimate | None:
    """Return the mean of the states' values with its interval, or ``None`` without a state.

    Args:
        values: state id to (session id, value).
        seed: of the resampling.
        resamples: draws of sessions.
    """
    if not values:
        return None
    import numpy as np  # comes with the extra `train`; the door of this room needs none

    by_session: dict[str, list[float]] = defaultdict(list)
    for session, value in values.values():
        by_session[session].append(value)
    sums = np.array([sum(v) for _, v in sorted(by_session.items())])
    counts = np.array([len(v) for _, v in sorted(by_session.items())])
    mean, sessions = float(sums.sum() / counts.sum()), len(by_session)
    low = high = None
    if sessions >= MIN_SESSIONS:
        draws = np.random.default_rng(seed).integers(0, sessions, (resamples, sessions))
        means = sums[draws].sum(-1) / counts[draws].sum(-1)
        tail = 100 * (1 - LEVEL) / 2
        low, high = (float(v) for v in np.percentile(means, [tail, 100 - tail]))
    return Estimate(mean, low, high, len(values), sessions)


def _values(
    results: Iterable[StateResult], kind: str, measure: str
) -> dict[str, tuple[str, float]]:
    """Return state id to (session id, value), where the measure says something."""
    _, value_of = MEASURES[measure]
    found: dict[str, tuple[str, list[float]]] = {}
    for result in results:
        if result.kind in GROUPS[kind] and (value := value_of(result)) is not None:
            found.setdefault(result.state_id, (result.session_id, []))[1].append(value)
    return {state: (session, sum(v) / len(v)) for state, (session, v) in found.items()}
