"""An evaluation as people read it: rows of text, Markdown, and pictures.

Belongs here: words and pictures of numbers that are known. Does not belong here: computing them
(``evaluation.summary``) and the command line's own table (``cli.views``).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import msgspec

from composer_pipeline.charts import bars, intervals
from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.measure import BASE
from composer_pipeline.evaluation.results import MEASURES, SHARES, StateResult
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


#: What the columns of :func:`table` say.
HEAD = ("states", "measure", "base", "trained", "difference, 95 % interval", "states (sessions)")
#: What each kind of states is.
MEANINGS = {
    "hard": "the agent was wrong: both kinds below together",
    "hard_covered": "the agent was wrong; teachers agreed on something else",
    "hard_uncovered": "the agent was wrong; no consensus says so, but what worked later",
    "easy": "the agent and the teachers agree",
    "recovery": "right behind an error; nothing speaks against what the agent did",
}


def table(cells: Iterable[Cell], arm: str) -> list[tuple[str, ...]]:
    """Return one row of text for each kind and measure, with the columns of :data:`HEAD`.

    A difference whose interval excludes 0 is marked with a star.

    Args:
        cells: as from ``summarise``.
        arm: the trained model.
    """
    by = {(cell.kind, cell.measure, cell.arm): cell for cell in cells}
    rows: list[tuple[str, ...]] = []
    for kind in GROUPS:
        for measure in MEASURES:
            mine = by.get((kind, measure, arm))
            if mine is None:
                continue
            base = by.get((kind, measure, BASE))
            value = mine.value
            rows.append(
                (kind, measure, number(base.value.mean, measure) if base else "",
                 number(value.mean, measure), _difference(mine, measure),
                 f"{value.states} ({value.sessions})")
            )  # fmt: skip
    return rows


def markdown(cells: Sequence[Cell], arm: str, found: Verdict, about: Mapping[str, object]) -> str:
    """Return the report.

    Args:
        cells: as from ``summarise``.
        arm: the trained model.
        found: what follows from them.
        about: facts that stand at its head, by name.
    """
    rows = table(cells, arm)
    parts = ["# Evaluation", "\n".join(f"- {name}: {value}" for name, value in about.items())]
    parts.append("\n\n".join(_said(found)))
    parts.append("![canonical match](actions.svg)\n\n![differences](differences.svg)")
    for kind in GROUPS:
        mine = [row[1:] for row in rows if row[0] == kind]
        if mine:
            parts.append(f"## {kind}\n\n{MEANINGS[kind].capitalize()}.\n\n{grid(HEAD[1:], mine)}")
    measures = [(name, said) for name, (said, _) in MEASURES.items()]
    parts.append("## Measures\n\n" + grid(("measure", "what it says"), measures))
    parts.append(
        "Intervals come from drawing whole sessions with replacement; a difference is paired: the"
        " same states of the same sessions for both models. A star marks a difference whose"
        " interval excludes 0; no other difference is claimed. Where there are fewer than"
        f" {MIN_SESSIONS} sessions there is no interval."
    )
    return "\n\n".join(parts) + "\n"


def pictures(cells: Sequence[Cell], arm: str) -> dict[str, str]:
    """Return file name to SVG: canonical matches of both models, and their differences."""
    shares: dict[str, float] = {}
    changes: dict[str, tuple[float, float | None, float | None]] = {}
    for cell in cells:
        if cell.measure == MEASURE and cell.arm in (BASE, arm):
            name = f"{cell.kind}, {'base' if cell.arm == BASE else 'trained'}"
            shares[name] = round(100 * cell.value.mean, 1)
        if cell.arm == arm and cell.measure in SHARES and cell.difference is not None:
            change = cell.difference
            changes[f"{cell.kind} {cell.measure}"] = (change.mean, change.low, change.high)
    return {"actions.svg": bars(shares, unit=" %"), "differences.svg": intervals(changes)}


def number(value: float, measure: str) -> str:
    """Return a number of a measure as text."""
    return f"{100 * value:.1f} %" if measure in SHARES else f"{value:.4f}"


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines).replace("||", r"\|\|")


def _difference(cell: Cell, measure: str) -> str:
    change = cell.difference
    if change is None:
        return ""
    return _signed(change, measure) + (" *" if cell.claimed else "")


def _signed(change: Estimate, measure: str) -> str:
    scale, unit, digits = (100, " points", 1) if measure in SHARES else (1, "", 4)
    mean = f"{scale * change.mean:+.{digits}f}{unit}"
    if change.low is None or change.high is None:
        return f"{mean} [no interval]"
    return f"{mean} [{scale * change.low:+.{digits}f}, {scale * change.high:+.{digits}f}]"


def _said(found: Verdict) -> list[str]:
    """Return the verdict in sentences."""
    out = [f"**Worse than its base.** {sentence}." for sentence in found.worse]
    out += [f"Not known whether it is worse than its base on {each}." for each in found.unknown]
    return out or ["Not surely worse than its base on easy or recovery states."]
