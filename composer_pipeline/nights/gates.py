"""The gates of a night: better on new states, and not worse on any anchor.

*Better* is a one-sided sign-flip test by session: a candidate that is no better than its parent may
be either of the two, so that the sign of each session's difference is a coin. The test is exact for
whatever distribution the differences have. Each test has the level alpha over the number of nights
(Bonferroni), so that a month of candidates that are no better promotes one with probability alpha.

*Not worse* is non-inferiority: the 95 % interval of the difference, by session, lies above the
margin; of gains the mean does. It is against the model that a state was frozen with, not against
yesterday's: otherwise each night could lose a little.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from math import ceil, log, log2

import msgspec

from composer_pipeline.evaluation.report import LEVEL, Estimate, estimate

#: Flips that are drawn where there are too many to try them all.
FLIPS = 99_999
#: So many sessions have all their flips tried.
_ALL = 14
#: Flips that are held in memory at once.
_CHUNK = 10_000

#: What an interval leaves below its lower end.
UNSURE = (1 - LEVEL) / 2

#: State id to (session id, value).
Values = Mapping[str, tuple[str, float]]


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """One test: what was compared, and whether the candidate passed.

    ``limit`` is the level of ``p``, or the share that may be lost.
    """

    name: str
    passed: bool
    why: str
    limit: float
    before: float | None = None
    after: float | None = None
    difference: Estimate | None = None
    p: float | None = None

    @property
    def lost(self) -> bool:
        """True if an anchor certainly lost something, or more than the margin of many sessions.

        Of few sessions one that answers otherwise by chance is more than the margin.
        """
        change = self.difference
        if self.passed or change is None or change.high is None or self.p is not None:
            return False
        many = change.sessions >= needed(self.limit)
        return change.high < 0 or (many and change.mean < -self.limit)


def differences(one: Mapping[str, float], other: Values) -> Values:
    """Return one minus other at the states that both have."""
    return {
        state: (session, one[state] - value)
        for state, (session, value) in other.items()
        if state in one
    }


def mean_of(values: Values, states: Collection[str]) -> float:
    """Return the mean of the values of some states."""
    return sum(values[state][1] for state in states) / len(states)


def p_better(values: Values) -> float:
    """Return the one-sided p of a mean above 0, by flipping the signs of whole sessions."""
    import numpy as np  # comes with the extra `train`; importing this module must not need it

    by_session: dict[str, float] = defaultdict(float)
    for session, value in values.values():
        by_session[session] += value
    sums = np.array([total for _, total in sorted(by_session.items()) if total])
    if not len(sums) or sums.sum() <= 0:
        return 1.0
    seen = sums.sum() - 1e-9
    if len(sums) <= _ALL:
        signs = (np.arange(2 ** len(sums))[:, None] >> np.arange(len(sums)) & 1) * 2 - 1
        return float((signs @ sums >= seen).mean())
    random, reached = np.random.default_rng(0), 0
    for start in range(0, FLIPS, _CHUNK):
        signs = random.integers(0, 2, (min(_CHUNK, FLIPS - start), len(sums))) * 2 - 1
        reached += int((signs @ sums >= seen).sum())
    return (1 + reached) / (1 + FLIPS)


def fewest(level: float) -> int:
    """Return how many sessions, if all of them improve, have a p of at most ``level``."""
    return ceil(-log2(level))


def better(candidate: Mapping[str, float], parent: Values, *, level: float) -> Gate:
    """Return the gate on new states that are held out."""
    both = differences(candidate, parent)
    found = estimate(both, ends=(-1, 1))
    if found is None:
        why = "no new state that is held out was measured"
        return Gate(name="new", passed=False, why=why, limit=level)
    p = p_better(both)
    passed = p <= level
    why = (
        f"{found.mean:+.1%} right actions on new states held out ({found.states} states of"
        f" {found.sessions} sessions), p {p:.2g}; {level:.2g} is asked"
    )
    before = mean_of(parent, both)
    return Gate(
        name="new", passed=passed, why=why, limit=level, before=before,
        after=before + found.mean, difference=found, p=p,
    )  # fmt: skip


def needed(margin: float) -> int:
    """Return how many sessions can exclude a loss of ``margin`` if none of them loses anything."""
    return ceil(log(UNSURE) / log(1 - margin))


def not_worse(
    name: str, candidate: Mapping[str, float], reference: Values, margin: float, *,
    exclude: bool = True,
) -> Gate | None:  # fmt: skip
    """Return the gate on a kind of anchors or on mistakes, ``None`` if too few for an interval.

    Where sessions are fewer than :func:`needed`, with which no candidate could pass, a loss of more
    than the margin has to be seen, not excluded. Without ``exclude`` it always has to be seen, and
    of so few sessions a loss has to be certain.
    """
    both = differences(candidate, reference)
    found = estimate(both, ends=(-1, 1))
    if found is None or found.low is None or found.high is None:
        return None
    few = found.sessions < needed(margin)
    if exclude:
        passed = (found.mean if few else found.low) >= -margin
        more = f", {needed(margin)} could exclude a loss of {margin:.0%}"
    else:
        passed = found.high >= 0 if few else found.mean >= -margin
        more = f", of fewer than {needed(margin)} a loss has to be certain"
    what = "new mistakes" if name == "hard" else f"anchors {name}"
    why = (
        f"{what}: {found.mean:+.1%} right actions, 95 % interval {found.low:+.1%} to"
        f" {found.high:+.1%} ({found.states} states of {found.sessions} sessions{more * few});"
        f" no more than {margin:.0%} may be lost"
    )
    before = mean_of(reference, both)
    return Gate(
        name=name, passed=passed, why=why,
        limit=margin, before=before, after=before + found.mean, difference=found,
    )  # fmt: skip
