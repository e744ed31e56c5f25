"""What follows from an evaluation: is the model worse than its base where it must not be?

Belongs here: the rule. Does not belong here: the numbers (``evaluation.summary``) and who obeys
(``publishing.model`` and the asset check).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from composer_pipeline.evaluation.summary import MIN_SESSIONS, Cell, Estimate

#: Kinds at which the base acts rightly, and training must not unlearn it.
GUARDED = ("easy", "recovery")
MEASURE = "canonical"
#: A fall that is surely larger than this is too much.
TOLERANCE = 0.02


class Verdict(msgspec.Struct, frozen=True):
    """Sentences: where the model is worse than its base, and where nobody can say."""

    worse: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def cells_of(evaluation: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of an ``evaluation.json``; none of one that an earlier version wrote."""
    return msgspec.convert(evaluation.get("cells", []), list[Cell])


def guarded(cells: Iterable[Cell], arm: str) -> dict[str, Estimate]:
    """Return arm minus base, with its interval, of each kind at which nothing may be lost."""
    return {
        cell.kind: cell.difference
        for cell in cells
        if cell.arm == arm and cell.measure == MEASURE and cell.kind in GUARDED and cell.difference
    }


def verdict(cells: Iterable[Cell], arm: str, *, tolerance: float = TOLERANCE) -> Verdict:
    """Return whether an arm is worse than its base on easy or recovery states.

    It is where the whole interval of the difference lies below ``-tolerance``.

    Args:
        cells: as from ``summarise``.
        arm: the trained model.
        tolerance: share of states that may be lost.
    """
    found = guarded(cells, arm)
    worse, unknown = [], []
    for kind in GUARDED:
        difference = found.get(kind)
        if difference is None:
            unknown.append(f"{kind} states: there is none")
        elif difference.low is None or difference.high is None:
            unknown.append(
                f"{kind} states: {difference.states} of {difference.sessions} sessions, and an"
                f" interval needs {MIN_SESSIONS} sessions"
            )
        elif difference.high < -tolerance:
            worse.append(
                f"{kind} states: {difference.mean:+.3f} canonical matches against the base"
                f" (95 % interval {difference.low:+.3f} to {difference.high:+.3f},"
                f" {difference.states} states of {difference.sessions} sessions)"
            )
    return Verdict(tuple(worse), tuple(unknown))
