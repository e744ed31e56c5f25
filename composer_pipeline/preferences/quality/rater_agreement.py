"""How much raters agree, from rows of the table ``votes``.

Belongs here: the agreement matrix and Krippendorff's alpha. Does not belong here: the noise
floor (``preferences.quality.noise_floor``), votes (``preferences.agreement.vote``) and where
the numbers are stored (``preferences.quality.statistics``).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from composer_pipeline.preferences.actions import Level
from composer_pipeline.preferences.agreement import level_of

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """A number, what it was measured on, and why there is none where ``value`` is ``None``."""

    value: float | None
    n: int
    note: str = ""


def agreement_matrix(rows: Iterable[Row], bound: Level) -> dict[tuple[str, str], Measured]:
    """Return, for each two raters, the share of states at which they agree.

    Args:
        rows: rows of ``votes``.
        bound: the loosest level that counts, for example ``Level.L1``.

    Returns:
        (rater, rater) in alphabetical order, the agent among them, to the share of the
        states that both answered. Two raters that never met are left out.
    """
    agreed: Counter[tuple[str, str]] = Counter()
    met: Counter[tuple[str, str]] = Counter()
    for row in rows:
        raters = row["raters"]
        for i, j in combinations(range(len(raters)), 2):
            key = (min(raters[i], raters[j]), max(raters[i], raters[j]))
            met[key] += 1
            agreed[key] += level_of(row, i, j) <= bound
    return {key: Measured(agreed[key] / met[key], met[key]) for key in sorted(met)}


def nominal_alpha(units: Iterable[Sequence[str]]) -> Measured:
    """Return Krippendorff's alpha for nominal values.

    ``1 - D_o / D_e`` over the units with at least two values (Krippendorff, *Computing
    Krippendorff's Alpha-Reliability*, 2011, section C). Equal to the package
    ``krippendorff``, whose tables need units x values x values numbers: 2,000 states with
    1,000 different actions would take 16 GB there; this is linear in the values.

    Args:
        units: the values that each unit got; missing ones are left out.

    Returns:
        alpha, with ``n`` units that had two values or more. It is not defined where there
        is none, or where all values are equal.
    """
    totals: Counter[str] = Counter()
    disagreed = 0.0
    n_units = 0
    for unit in units:
        if len(unit) < 2:
            continue
        n_units += 1
        counts = Counter(unit)
        totals.update(counts)
        equal = sum(c * (c - 1) for c in counts.values())
        disagreed += (len(unit) * (len(unit) - 1) - equal) / (len(unit) - 1)
    n = totals.total()
    if not n:
        return Measured(None, 0, "not measured: no state with two voters")
    expected = (n * (n - 1) - sum(c * (c - 1) for c in totals.values())) / (n - 1)
    if expected == 0:
        return Measured(None, n_units, "not defined: every voter took the same action everywhere")
    return Measured(1 - disagreed / expected, n_units)


def alpha_by_tool(rows: Iterable[Row]) -> dict[str, Measured]:
    """Return Krippendorff's alpha of the voters' clusters, by the tool that the agent used.

    The value of a reply is its cluster, named by the cluster's action, so two voters of one
    cluster have equal values, and an action that is common at many states agrees by chance.

    Returns:
        tool to alpha; the key ``""`` is over all tools.
    """
    units: dict[str, list[list[str]]] = defaultdict(list)
    for row in rows:
        labels = [label for label in row["labels"] if label is not None]
        units[row["tool"]].append(labels)
        units[""].append(labels)
    return {tool: nominal_alpha(found) for tool, found in sorted(units.items())}
