"""How often the cheapest teacher, or the cheapest two, would have been enough; nobody is asked.

A *voting family* has a usable reply of a teacher that is no control, in the chosen days. A state
is *asked in full* if a reply of each voting family votes there; other states with replies, such as
those that curtailing left early, are left out and counted. *Cheapest* is by the mean of the known
costs of a teacher's usable replies, then by name. *One* is the reply of the cheapest family, *two*
those of the two cheapest; at each state the cheapest teacher of a family that answered speaks.

The *outcome* of all replies and of two is that of the vote: a pair for the winner's action, the
agent confirmed, or no decision. One teacher has no quorum: it confirms the agent whose action it
takes, and is else a pair for its own. A pair is the same outcome as that of all if the winning
cluster of all contains the action chosen.

The *kind* of a state is the agent's first tool; kinds with fewer than 20 states asked in full are
summed as ``other``. The *noise floor* is the share of states at which a control (the first by
family and name) differs from the agent. *Sufficient* is the smallest set that :data:`RULE` admits,
and *overpaid* is what the votes outside the set of the state's kind cost.
"""

import math
import textwrap
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import NormalDist
from typing import Any, Literal

import yaml

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.eligibility import (
    Reply,
    is_control,
    is_usable,
    read_replies,
    usable_replies,
)
from composer_pipeline.preferences.vote import Vote, context_of, same_action, vote
from composer_pipeline.preferences.vote_rows import CONFIRMED, first_tool, reason_of
from composer_pipeline.reports import Progress, Report
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import TraceState
from composer_pipeline.teachers.teachers import TeacherSet

LEAST_STATES, OTHER = 20, "other"
#: Share of other outcomes that is borne where the agent's own noise is smaller.
BORNE = 0.05
RULE = (
    "The smallest set of teachers is taken whose agreement with all has a lower bound (95 %) of at"
    f" least 1 - max({BORNE}, noise floor)."
)
_Z = NormalDist().inv_cdf(0.975)

#: Replies with their costs in picodollars.
_Costed = list[tuple[Reply, int | None]]


@dataclass(frozen=True)
class Proportion(Report):
    """A share with its 95 % interval."""

    hits: int
    of: int
    share: float
    low: float
    high: float


def wilson(hits: int, of: int) -> Proportion:
    """Return ``hits / of`` with Wilson's score interval (JASA 1927); ``of`` is above 0."""
    centre = (hits + _Z**2 / 2) / (of + _Z**2)
    half = _Z * math.sqrt(hits * (of - hits) / of + _Z**2 / 4) / (of + _Z**2)
    return Proportion(hits, of, hits / of, max(0.0, centre - half), min(1.0, centre + half))


@dataclass(frozen=True)
class KindFigures(Report):
    """The figures of a kind of states, or of all."""

    states: int  #: asked in full
    one: Proportion  #: of them with the outcome of all
    two: Proportion
    noise_floor: Proportion | None  #: ``None`` where no control was asked
    sufficient: Literal["one", "two", "all"]
    overpaid_picodollars: int
    without_cost: int  #: overpaid replies of unknown cost, which count 0


@dataclass(frozen=True)
class SufficiencyReport(Report):
    """What :func:`sufficiency` found; for the words see the module."""

    states: int  #: asked in full
    left_out: int
    families: list[str]  #: the cheapest first
    cheapest: list[str]  #: the cheapest teachers of the first two families
    mean_picodollars: dict[str, int | None]  #: by voting teacher; ``None``: no cost is known
    total: KindFigures  #: its ``overpaid_picodollars`` is the sum over the kinds
    by_kind: dict[str, KindFigures]  #: the most states first
    rule: str = RULE


@dataclass(frozen=True)
class _Compared:
    """A state asked in full; ``same`` and the costs ``outside`` are by set of teachers."""

    kind: str
    same: Mapping[str, bool]
    outside: Mapping[str, list[int | None]]
    control_differs: bool | None


def sufficiency(
    lake: Lake,
    *,
    days: Iterable[str] | None = None,
    sessions: Collection[str] | None = None,
    progress: Progress | None = None,
) -> SufficiencyReport:
    """Compare the cheapest one and two teachers with all of them, on replies already bought.

    Args:
        lake: the lake; it is only read.
        days: ``YYYY-MM-DD``; all days with states when ``None``.
        sessions: only the states of these sessions; all when ``None``.
        progress: called after each state that every voting family answered.

    Raises:
        InputError: no replies, fewer than two voting families, or no state asked in full.
    """
    days = lake.chosen_days("states", days)
    rows = lake.rows("states", days=days, columns=["state_id", "session_id", "model"])
    models = {row["state_id"]: row["model"] for row in rows}
    means, family_of, answered = _survey(lake, days, models)
    first: dict[str, str] = {}
    for name in means:
        first.setdefault(family_of[name], name)
    if not answered:
        raise InputError(f"lake {lake.url} has no replies to these states; run replay first")
    if len(first) < 2:
        named = " and ".join(first) or "none"
        raise InputError(f"lake {lake.url}: two voting families must have replied, not {named}")
    ours = {row["state_id"] for row in rows if sessions is None or row["session_id"] in sessions}
    ours &= answered.keys()
    full = {name for name in ours if answered[name] >= first.keys()}
    compared: list[_Compared] = []
    for day in days:
        replies = _costed(read_replies(lake, day))
        for done, state in enumerate(load_states(lake, days=[day], state_ids=full), start=1):
            found = _compare(state, replies[state.state_id], list(means), list(first))
            compared += [found] if found else []
            if progress:
                progress(f"sufficiency {day}", done, 0)
    if not compared:
        raise InputError(
            f"lake {lake.url} has no state that all of {', '.join(first)} answered; audit_share"
            " in selection of the teacher file is the share of states that is asked in full"
        )
    total, by_kind = _tabulate(compared)
    return SufficiencyReport(
        states=len(compared),
        left_out=len(ours) - len(compared),
        families=list(first),
        cheapest=list(first.values())[:2],
        mean_picodollars={k: None if v is None else round(v) for k, v in means.items()},
        total=total,
        by_kind=by_kind,
    )


def _survey(
    lake: Lake, days: Iterable[str], models: Mapping[str, str | None]
) -> tuple[dict[str, Fraction | None], dict[str, str], dict[str, set[str]]]:
    """Return mean costs and families of the voting teachers, and who answered each state.

    The cheapest teacher is first; states whose replies do not vote have nobody.
    """
    costs: defaultdict[str, list[int]] = defaultdict(list)
    family_of: dict[str, str] = {}
    answered: dict[str, set[str]] = {}
    for day in days:
        rows = [row for row in read_replies(lake, day) if row["state_id"] in models]
        answered |= {row["state_id"]: set() for row in rows}
        for state_id, replies in _costed(rows).items():
            for reply, cost in replies:
                if not is_control(reply, models[state_id]):
                    family_of[reply.teacher] = family = reply.family.lower()
                    answered[state_id].add(family)
                    costs[reply.teacher] += [] if cost is None else [cost]

    def price(name: str) -> tuple[bool, Fraction, str]:
        known = costs[name]
        return not known, Fraction(sum(known), len(known) or 1), name

    order = sorted(map(price, family_of))
    return {name: None if free else mean for free, mean, name in order}, family_of, answered


def _costed(rows: Sequence[Mapping[str, Any]]) -> dict[str, _Costed]:
    """Return the replies of ``usable_replies`` with their costs; ``None`` where it is unknown."""
    lost: defaultdict[str, list[Reply]] = defaultdict(list)
    for row in rows:
        if is_usable(row) and row["cost_picodollars"] is None:
            lost[row["state_id"]].append(Reply.from_row(row))
    return {
        state_id: [(r, None if r in lost[state_id] else r.cost_picodollars) for r in replies]
        for state_id, replies in usable_replies(rows).items()
    }


def _compare(
    state: TraceState, replies: _Costed, order: Sequence[str], families: Sequence[str]
) -> _Compared | None:
    """Compare the sets at a state; ``None`` if a family's reply may not vote there after all."""
    costs = {reply.teacher: cost for reply, cost in replies}
    whole = vote(state, [reply for reply, _ in replies])
    if not {reply.family.lower() for reply in whole.voters}.issuperset(families):
        return None
    cast = sorted([*whole.voters, *whole.same_family], key=lambda r: order.index(r.teacher))
    speakers = {reply.family.lower(): reply for reply in reversed(cast)}
    one, other = (speakers[family] for family in families[:2])
    context, controls = context_of(state), whole.controls

    def same(outcome: str, chosen: Reply | None) -> bool:
        if outcome != _outcome(whole) or outcome != "pair" or chosen is None:
            return outcome == _outcome(whole)
        if chosen in whole.voters:
            return chosen in whole.members
        return all(same_action(chosen.action, m.action, context) for m in whole.members)

    alone = "agent" if same_action(one.action, state.action, context) else "pair"
    two = vote(state, [one, other])
    differs = [not same_action(reply.action, state.action, context) for reply in controls[:1]]
    return _Compared(
        kind=first_tool(state.action),
        same={"one": same(alone, one), "two": same(_outcome(two), two.winner)},
        outside={
            name: [costs[reply.teacher] for reply in cast if reply not in inside]
            for name, inside in (("one", [one]), ("two", [one, other]), ("all", cast))
        },
        control_differs=differs[0] if differs else None,
    )


def _outcome(outcome: Vote) -> str:
    reason = reason_of(outcome, outcome.n_usable)
    return "pair" if outcome.is_pair else "agent" if reason in CONFIRMED else "none"


def _tabulate(compared: Sequence[_Compared]) -> tuple[KindFigures, dict[str, KindFigures]]:
    """Return the figures of all states and of each kind."""
    sizes = Counter(state.kind for state in compared)
    groups: defaultdict[str, list[_Compared]] = defaultdict(list)
    for state in compared:
        groups[state.kind if sizes[state.kind] >= LEAST_STATES else OTHER].append(state)
    ranked = sorted(groups.items(), key=lambda item: (item[0] == OTHER, -len(item[1]), item[0]))
    by_kind = {kind: _figures(states) for kind, states in ranked}
    overpaid = sum(part.overpaid_picodollars for part in by_kind.values())
    unknown = sum(part.without_cost for part in by_kind.values())
    total = _figures(compared)
    return replace(total, overpaid_picodollars=overpaid, without_cost=unknown), by_kind


def _figures(states: Sequence[_Compared]) -> KindFigures:
    n = len(states)
    one, two = (wilson(sum(s.same[name] for s in states), n) for name in ("one", "two"))
    controls = [s.control_differs for s in states if s.control_differs is not None]
    floor = wilson(sum(controls), len(controls)) if controls else None
    least = 1 - max(BORNE, floor.share if floor else 0.0)
    sufficient: Any = "one" if one.low >= least else "two" if two.low >= least else "all"
    outside = [cost for s in states for cost in s.outside[sufficient]]
    overpaid = sum(cost or 0 for cost in outside)
    return KindFigures(n, one, two, floor, sufficient, overpaid, outside.count(None))


def teacher_file(report: SufficiencyReport, teachers: TeacherSet, source: str) -> str:
    """Return a teacher file (YAML) that asks what was sufficient for all states together.

    A vote needs two families. For *one* it keeps the two cheapest teachers with ``curtail:
    student``, for *two* the same with ``curtail: exact``, else every teacher with ``curtail:
    exact``. Controls and all other fields stay. ``source`` names the file ``teachers`` in errors.

    Raises:
        InputError: one of the two cheapest teachers is not in the file.
    """
    kept, found = list(teachers.teachers), report.total.sufficient
    if found != "all":
        voters = [teacher.name for teacher in kept if not teacher.control]
        if missing := [name for name in report.cheapest if name not in voters]:
            raise InputError(f"{source}: has no voting teacher {missing[0]}, one of the cheapest")
        kept = [teacher for teacher in kept if teacher.control or teacher.name in report.cheapest]
    new = teachers.model_copy(update={"teachers": kept})
    data = new.model_dump(mode="json", exclude_unset=True)
    curtail = "student" if found == "one" else "exact"
    data["selection"] = {**data.get("selection", {}), "curtail": curtail}
    head = (
        f"Written by composer-pipeline sufficiency from {report.states} states asked in full, for"
        f" which the verdict is: {found}. {report.rule}"
    )
    lines = [f"# {line}\n" for line in textwrap.wrap(head, 98)]
    return "".join(lines) + yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
