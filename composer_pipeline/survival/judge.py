"""Whether labels and teachers predict what people kept; intervals are over sessions.

*Gone* is an edit of which less than half of the lines are in the commit that follows, whoever took
them out. A sign's AUC is the chance that it tells a gone edit from another one: 0.5 says nothing.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer_pipeline.lake.store import Lake
from composer_pipeline.reports import Report
from composer_pipeline.states.fates import by_horizon, fate_of
from composer_pipeline.survival.follow import HORIZONS

Row = Mapping[str, Any]
#: Sessions drawn again for an interval, and from how many sessions on one is given.
_DRAWS, _LEAST_SESSIONS = 1000, 5


@dataclass(frozen=True)
class Estimate(Report):
    """A number with its 95 % interval over sessions (``None`` where it cannot be measured)."""

    value: float | None
    low: float | None
    high: float | None
    states: int
    sessions: int

    def __str__(self) -> str:
        if self.value is None:
            return "-"
        between = "" if self.low is None else f" [{self.low:.3f}, {self.high:.3f}]"
        return f"{self.value:.3f}{between}"


@dataclass(frozen=True)
class Sign(Report):
    """A sign in the trace or of a teacher: how well it tells gone edits, and the shares gone."""

    auc: Estimate
    with_it: Estimate
    without_it: Estimate


@dataclass(frozen=True)
class Judgement(Report):
    """What became of the edits of a lake, and what foretold it.

    Attributes:
        fates: states by fate.
        unknown: other states with an edit, by why nothing is known.
        alive: horizon to the mean share of a state's lines that is alive.
        lost_to: of lines not in the commit, the share that a later edit of the session took out.
        signs: sign of the trace to what it foretells.
        teachers: teacher to what its dissent from the agent foretells.
        contested: where teachers agreed against the agent, the share that git kept whole.
    """

    fates: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    alive: dict[str, Estimate] = field(default_factory=dict)
    lost_to: dict[str, Estimate] = field(default_factory=dict)
    signs: dict[str, Sign] = field(default_factory=dict)
    teachers: dict[str, Sign] = field(default_factory=dict)
    contested: Estimate | None = None

    def foretold(self) -> dict[str, Sign]:
        """Return the signs and the dissent of teachers that hold at a state or more, by name."""
        dissent = {f"dissent of {name}": sign for name, sign in self.teachers.items()}
        return {n: sign for n, sign in {**self.signs, **dissent}.items() if sign.with_it.states}


#: Signs of the trace, from columns of ``states``.
SIGNS: Mapping[str, Callable[[Row], bool]] = {
    "error turn": lambda row: row["error_kind"] is not None,
    "mistake": lambda row: row["verdict"] == "mistake",
    "caused an error": lambda row: row["caused_error"] is not None,
    "user correction": lambda row: bool(row["followed_by_correction"])
    or row["error_kind"] in ("user_rejection", "user_correction"),
    "tests failed": lambda row: row["tests_passed"] is False,
    "undone in the session": lambda row: bool(row["reverted"]),
    "no success": lambda row: bool(
        row["error_kind"] or row["caused_error"] or row["followed_by_error"]
        or row["followed_by_correction"] or row["interrupted"] or row["reverted"]
        or row["tests_passed"] is False
    ),
}  # fmt: skip
_COLUMNS = ["state_id", "session_id", "error_kind", "verdict", "caused_error", "interrupted",
            "followed_by_correction", "followed_by_error", "tests_passed", "reverted"]  # fmt: skip
_VOTE = ["state_id", "session_id", "reason", "raters", "levels"]


def judge_outcomes(lake: Lake, *, days: Iterable[str] | None = None) -> Judgement:
    """Return what became of the edits of some days (all when ``None``), and what foretold it.

    Args:
        lake: reads ``outcomes``, ``states`` and ``votes``.
        days: ``YYYY-MM-DD``.
    """
    chosen = lake.chosen_days("outcomes", days)
    rows = by_horizon(lake.rows("outcomes", days=chosen))
    fates, unknown = defaultdict[str, int](int), defaultdict[str, int](int)
    gone: dict[str, bool] = {}
    kept: dict[str, bool] = {}
    for state_id, mine in rows.items():
        fate = fate_of(mine)
        if fate.fate is None:
            unknown[mine["commit"]["why"]] += 1
        else:
            fates[fate.fate] += 1
            gone[state_id] = fate.fate in ("gone", "refined")
            kept[state_id] = fate.fate == "kept"
    every = lake.rows("states", days=chosen, columns=_COLUMNS)
    states = [row for row in every if row["state_id"] in gone]
    every = lake.rows("votes", days=chosen, columns=_VOTE)
    votes = [row for row in every if row["state_id"] in gone]
    against = [row for row in votes if row["reason"] == "pair"]
    return Judgement(
        dict(sorted(fates.items())),
        dict(sorted(unknown.items())),
        _alive(rows.values()),
        _lost(rows.values()),
        {name: _sign(states, gone, holds) for name, holds in SIGNS.items()},
        _teachers(votes, gone),
        _mean([(row["session_id"], kept[row["state_id"]]) for row in against]) if against else None,
    )


def _alive(rows: Iterable[Mapping[str, Row]]) -> dict[str, Estimate]:
    found: dict[str, list[tuple[str, float]]] = {horizon: [] for horizon in HORIZONS}
    for mine in rows:
        for horizon, row in mine.items():
            if row["status"] == "known":
                found[horizon].append((row["session_id"], row["alive"] / row["lines"]))
    return {horizon: _mean(values) for horizon, values in found.items() if values}


def _lost(rows: Iterable[Mapping[str, Row]]) -> dict[str, Estimate]:
    """Return who took out lines that are not in the commit, where a session shows it."""
    found: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for mine in rows:
        row = mine["commit"]
        if row["status"] == "known" and row["alive"] < row["lines"]:
            lost = row["lines"] - row["alive"]
            for name, column in (("the session", "by_session"), ("another session", "by_others")):
                found[name].append((row["session_id"], row[column] / lost))
    return {name: _mean(values) for name, values in found.items()}


def _sign(states: Sequence[Row], gone: Mapping[str, bool], holds: Callable[[Row], bool]) -> Sign:
    return _told([(row["session_id"], holds(row), gone[row["state_id"]]) for row in states])


def _teachers(votes: Sequence[Row], gone: Mapping[str, bool]) -> dict[str, Sign]:
    """Return what each teacher's dissent foretells, and that of the consensus."""
    found: dict[str, list[tuple[str, bool, bool]]] = defaultdict(list)
    for row in votes:
        state, session = gone[row["state_id"]], row["session_id"]
        if row["reason"] in _DECIDED:
            found["their consensus"].append((session, row["reason"] == "pair", state))
        for at, teacher in enumerate(row["raters"][1:]):
            # The levels of the agent, who is first, with each teacher come first.
            found[teacher].append((session, row["levels"][at] > _SAME, state))
    return {teacher: _told(rows) for teacher, rows in sorted(found.items())}


#: Votes with a consensus, and levels up to which two actions are the same (L2).
_DECIDED = frozenset({"pair", "agrees_with_student", "style", "same_meaning"})
_SAME = 2


def _told(rows: Sequence[tuple[str, bool, bool]]) -> Sign:
    """Return the figures of (session, the sign holds, the edit is gone)."""
    by_session: dict[str, list[list[int]]] = defaultdict(lambda: [[0, 0], [0, 0]])
    for session, holds, gone in rows:
        by_session[session][holds][gone] += 1
    tables = list(by_session.values())
    return Sign(
        _estimate(tables, _auc),
        _estimate(tables, lambda t: _share(t[1][1], t[1][0]), sum(h for _, h, _ in rows)),
        _estimate(tables, lambda t: _share(t[0][1], t[0][0]), sum(not h for _, h, _ in rows)),
    )


def _share(hits: Any, others: Any) -> Any:
    import numpy as np

    with np.errstate(invalid="ignore"):
        return hits / (hits + others)


def _auc(table: Any) -> Any:
    """Return (1 + P(sign | gone) - P(sign | not gone)) / 2, the AUC of a sign of two values."""
    return (1 + _share(table[1][1], table[0][1]) - _share(table[1][0], table[0][0])) / 2


def _mean(values: Sequence[tuple[str, float]]) -> Estimate:
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for session, value in values:
        sums[session][0] += value
        sums[session][1] += 1
    with_nothing = [[total, number - total] for total, number in sums.values()]
    return _estimate(with_nothing, lambda t: _share(t[0], t[1]), len(values))


def _estimate(
    tables: Sequence[Any], figure: Callable[[Any], Any], states: int | None = None
) -> Estimate:
    """Return a figure of summed tables, one a session, with an interval over drawn sessions."""
    import numpy as np

    every = np.array(tables, dtype=float)
    if not len(every):
        return Estimate(None, None, None, 0, 0)
    number = int(every.sum()) if states is None else states
    value = float(figure(every.sum(axis=0)))
    if np.isnan(value):
        return Estimate(None, None, None, number, len(every))
    low = high = None
    if len(every) >= _LEAST_SESSIONS:
        drawn = np.random.default_rng(0).multinomial(
            len(every), [1 / len(every)] * len(every), _DRAWS
        )
        totals = np.tensordot(drawn, every, axes=1)
        values = figure(np.moveaxis(totals, 0, -1))
        low, high = (float(one) for one in np.nanpercentile(values, [2.5, 97.5]))
    return Estimate(value, low, high, number, len(every))
