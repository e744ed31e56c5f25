"""Means and intervals of an evaluation, the verdict, and the report as text and charts."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from composer_pipeline.charts import bars, intervals
from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.results import BASE, MEASURES, SHARES, StateResult, measures_of
from composer_pipeline.evaluation.states import KINDS
from composer_pipeline.markdown import table as markdown_table

#: Fewer sessions give no interval: it would be far too narrow (a test simulates its coverage).
MIN_SESSIONS = 10
RESAMPLES = 10_000
LEVEL = 0.95
#: Row of the tables that joins both hard kinds.
HARD = "hard"
#: Row of the tables to the kinds of states in it.
GROUPS: dict[str, tuple[str, ...]] = {
    HARD: ("hard_covered", "hard_uncovered"),
    **{kind: (kind,) for kind in KINDS},
}


class Estimate(msgspec.Struct, frozen=True):
    """A mean over states with its interval over sessions."""

    mean: float
    #: ``None`` with fewer than :data:`MIN_SESSIONS` sessions.
    low: float | None
    high: float | None
    states: int
    sessions: int

    @property
    def excludes_zero(self) -> bool:
        """True if the interval lies entirely above or below 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


class Cell(msgspec.Struct, frozen=True):
    """One measure of one kind of states: of an arm, and against the base."""

    kind: str
    measure: str
    arm: str
    value: Estimate
    #: The base, and arm minus base over the states that both have; ``None`` for the base itself.
    against: str | None = None
    difference: Estimate | None = None

    @property
    def claimed(self) -> bool:
        """True if the interval of the difference excludes 0."""
        return self.difference is not None and self.difference.excludes_zero


def summarise(
    results: Mapping[str, Sequence[StateResult]],
    *,
    base: str,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> list[Cell]:
    """Return every measure of every kind for every arm, against ``base``; no empty cells.

    The same results and seed give the same cells.
    """
    if base not in results:
        raise InputError(f"no results of arm {base!r}; there are {', '.join(sorted(results))}")
    cells = []
    for kind in GROUPS:
        for measure in MEASURES:
            for arm in results:
                ends = (0, 1) if measure in SHARES else None
                value = estimate(_values(results[arm], kind, measure), seed, resamples, ends)
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


def difference(
    one: Sequence[StateResult],
    other: Sequence[StateResult],
    kind: str,
    measure: str,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Estimate | None:
    """Return ``one`` minus ``other`` over common states, or ``None`` without any."""
    a, b = _values(one, kind, measure), _values(other, kind, measure)
    both = {state: (a[state][0], a[state][1] - b[state][1]) for state in a if state in b}
    return estimate(both, seed, resamples, (-1, 1) if measure in SHARES else None)


def estimate(
    values: Mapping[str, tuple[str, float]],
    seed: int = 0,
    resamples: int = RESAMPLES,
    ends: tuple[int, int] | None = None,
) -> Estimate | None:
    """Return the mean of values with its interval from resampled sessions, or ``None``.

    ``values`` maps state id to (session id, value). With the least and the largest possible value
    as ``ends``, the interval is never narrower than :func:`possible`.
    """
    if not values:
        return None
    import numpy as np  # comes with the extra `train`; importing this module must not need it

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
        if ends:
            least, most = possible(mean, sessions, ends)
            low, high = min(low, least), max(high, most)
    return Estimate(mean, low, high, len(values), sessions)


def possible(mean: float, sessions: int, ends: tuple[int, int]) -> tuple[float, float]:
    """Return what a mean may be though all sessions were alike, however they are drawn again.

    Of so many sessions none is otherwise at 95 % if the part of such sessions is below
    ``1 - 0.025 ** (1 / sessions)`` (Clopper and Pearson 1934); they may be at either end.
    """
    other = 1 - ((1 - LEVEL) / 2) ** (1 / sessions)
    return mean - other * (mean - ends[0]), mean + other * (ends[1] - mean)


def _values(
    results: Iterable[StateResult], kind: str, measure: str
) -> dict[str, tuple[str, float]]:
    # State id to (session id, value), where the measure applies.
    found: dict[str, tuple[str, list[float]]] = {}
    for result in results:
        if result.kind in GROUPS[kind] and measure in (values := measures_of(result)):
            found.setdefault(result.state_id, (result.session_id, []))[1].append(values[measure])
    return {state: (session, sum(v) / len(v)) for state, (session, v) in found.items()}


#: Kinds at which the base acts rightly, which training must not unlearn.
GUARDED = ("easy", "recovery")
MEASURE = "canonical"
#: The largest acceptable loss of canonical matches.
TOLERANCE = 0.02


class Verdict(msgspec.Struct, frozen=True):
    """Sentences: where the model is worse than its base, and where that is unknown."""

    worse: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def cells_of(evaluation: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of an ``evaluation.json``."""
    return msgspec.convert(evaluation.get("cells", []), list[Cell])


def guarded(cells: Iterable[Cell], arm: str) -> dict[str, Estimate]:
    """Return arm minus base for each kind in :data:`GUARDED`."""
    return {
        cell.kind: cell.difference
        for cell in cells
        if cell.arm == arm and cell.measure == MEASURE and cell.kind in GUARDED and cell.difference
    }


def verdict(cells: Iterable[Cell], arm: str, *, tolerance: float = TOLERANCE) -> Verdict:
    """Return where an arm is worse than its base on easy or recovery states.

    It is worse if the whole interval of the difference lies below ``-tolerance``.
    """
    found = guarded(cells, arm)
    worse, unknown = [], []
    for kind in GUARDED:
        difference = found.get(kind)
        if difference is None:
            unknown.append(f"{kind} states: there is none")
        elif difference.low is None or difference.high is None:
            unknown.append(
                f"{kind} states: {difference.states} states of {difference.sessions} sessions, and"
                f" an interval needs {MIN_SESSIONS} sessions"
            )
        elif difference.high < -tolerance:
            worse.append(
                f"{kind} states: {difference.mean:+.3f} canonical matches against the base"
                f" (95 % interval {difference.low:+.3f} to {difference.high:+.3f},"
                f" {difference.states} states of {difference.sessions} sessions)"
            )
    return Verdict(tuple(worse), tuple(unknown))


#: The columns of :func:`table`.
HEAD = ("states", "measure", "base", "trained", "difference, 95 % interval", "states (sessions)")
#: What each kind of states is.
MEANINGS = {
    "hard": "the agent was wrong: both kinds below together",
    "hard_covered": "the agent was wrong; teachers agreed on something else",
    "hard_uncovered": "the agent was wrong: no consensus, but a later action worked",
    "easy": "the agent and the teachers agree",
    "recovery": "right after an error; nothing indicates that the agent was wrong",
}


def table(cells: Iterable[Cell], arm: str) -> list[tuple[str, ...]]:
    """Return one row of text for each kind and measure; a star marks a difference other than 0."""
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
                (kind, measure, _number(base.value.mean, measure) if base else "",
                 _number(value.mean, measure), _difference(mine, measure),
                 f"{value.states} ({value.sessions})")
            )  # fmt: skip
    return rows


def markdown(cells: Sequence[Cell], arm: str, found: Verdict, about: Mapping[str, object]) -> str:
    """Return the report; ``about`` are facts for its head."""
    rows = table(cells, arm)
    parts = ["# Evaluation", "\n".join(f"- {name}: {value}" for name, value in about.items())]
    parts.append("\n\n".join(_sentences(found)))
    parts += [f"![{title}]({name})" for name, (title, _) in pictures(cells, arm).items()]
    for kind in GROUPS:
        mine = [row[1:] for row in rows if row[0] == kind]
        if mine:
            parts.append(
                f"## {kind}\n\n{MEANINGS[kind].capitalize()}.\n\n{markdown_table(HEAD[1:], mine)}"
            )
    parts.append("## Measures\n\n" + markdown_table(("measure", "meaning"), MEASURES.items()))
    parts.append(
        "Intervals come from drawing whole sessions with replacement; a difference is paired: the"
        " same states of the same sessions for both models. A star marks a difference whose"
        " interval excludes 0; no other difference is claimed. An interval of shares is never"
        " narrower than what so many sessions can exclude. With fewer than"
        f" {MIN_SESSIONS} sessions there is no interval."
    )
    return "\n\n".join(parts) + "\n"


def pictures(cells: Sequence[Cell], arm: str) -> dict[str, tuple[str, str]]:
    """Return file name to (title, SVG): what moved, the certain first, and the right actions.

    What is 0 is not drawn.
    """
    shares: dict[str, float] = {}
    moved: dict[str, list[tuple[Cell, Estimate]]] = {}
    for cell in cells:
        if cell.measure == MEASURE and cell.arm in (BASE, arm):
            name = f"{cell.kind}, {'base' if cell.arm == BASE else 'trained'}"
            shares[name] = round(100 * cell.value.mean, 1)
        if cell.arm == arm and cell.difference is not None and cell.difference.mean:
            name = "differences" if cell.measure in SHARES else cell.measure
            moved.setdefault(name, []).append((cell, cell.difference))
    claimed = {name: any(cell.claimed for cell, _ in some) for name, some in moved.items()}
    found = {}
    for name, some in sorted(moved.items(), key=lambda item: not claimed[item[0]]):
        some.sort(key=lambda each: (not each[0].claimed, -abs(each[1].mean)))
        scale, title = (100, "points") if name == "differences" else (1, MEASURES[name])
        rows = {
            f"{cell.kind} {cell.measure}" if name == "differences" else cell.kind: (
                scale * change.mean,
                None if change.low is None else scale * change.low,
                None if change.high is None else scale * change.high,
            )
            for cell, change in some
        }
        found[f"{name}.svg"] = (f"{name}, trained minus base: {title}", intervals(rows))
    if any(shares.values()):
        found["actions.svg"] = ("Right actions, per cent", bars(shares, unit=" %"))
    return found


def _number(value: float, measure: str) -> str:
    return f"{100 * value:.1f} %" if measure in SHARES else f"{value:.4f}"


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


def _sentences(found: Verdict) -> list[str]:
    out = [f"**Worse than its base.** {sentence}." for sentence in found.worse]
    out += [f"Not known whether it is worse than its base on {each}." for each in found.unknown]
    return out or ["Not significantly worse than its base on easy or recovery states."]
