"""Canaries: what of a night's data is so unlike the nights before that nothing is trained on it.

Each compares tonight's new states with those of the accepted nights. They look at the data alone
and cost no model: whether teachers suddenly agree against the agent, one project has nearly all
states, a teacher is out, labels have other reasons than usual, right actions call other tools, or
the consensus contradicts what the trace itself shows to be right.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from composer_pipeline.evaluation.judge import CANONICAL, situation_of_chat
from composer_pipeline.evaluation.report import MIN_SESSIONS
from composer_pipeline.evaluation.select_states import action_of
from composer_pipeline.lake.store import Lake
from composer_pipeline.nights.buffer import StateRow
from composer_pipeline.nights.rules import CanaryRules
from composer_pipeline.preferences.actions.levels import level

#: Reason of a vote at which teachers agree against the agent.
_PAIR = "pair"
#: Share of the states that teachers answered before, above which none is an outage.
_ASKED = 0.25


class Canary(msgspec.Struct, frozen=True):
    """One comparison of tonight's data with the nights before; ``usual`` is ``None`` without any.

    ``holds`` is True if the night must not train.
    """

    name: str
    holds: bool
    why: str
    tonight: float | None = None
    usual: float | None = None
    limit: float = 0.0


@dataclass(frozen=True)
class Facts:
    """What is counted of a set of states.

    ``labels`` are reasons of votes, and verdict and source of hints; ``usable`` replies by teacher;
    ``tools`` the calls of the consensus and of the agent's successes.
    """

    sessions: int
    projects: Counter[str]
    labels: Counter[str]
    voted: int
    rejected: int
    usable: Counter[str]
    tools: Counter[str]
    fixes: int
    contradicted: int


def facts_of(lake: Lake, states: Mapping[str, StateRow], *sets: Collection[str]) -> list[Facts]:
    """Return the facts of each set of states, by id, of ``states``."""
    columns = ["state_id", "reason", "n_replies", "raters"]
    votes = [row for row in lake.read("votes", columns=columns).to_pylist() if row["n_replies"]]
    hints = lake.read("hints", columns=["state_id", "verdict", "source"]).to_pylist()
    fixes, tools = _right(lake)
    return [_facts(one, states, votes, hints, fixes, tools) for one in sets]


def _facts(
    of: Collection[str], states: Mapping[str, StateRow], votes: Sequence[Mapping[str, Any]],
    hints: Sequence[Mapping[str, Any]], fixes: Mapping[str, bool],
    tools: Sequence[tuple[str, str]],
) -> Facts:  # fmt: skip
    mine = [row for row in votes if row["state_id"] in of]
    labels = Counter(f"vote: {row['reason']}" for row in mine)
    labels.update(f"hint: {r['verdict']}, {r['source']}" for r in hints if r["state_id"] in of)
    agreed = [agrees for state_id, agrees in fixes.items() if state_id in of]
    rows = [row for state_id, row in states.items() if state_id in of]
    return Facts(
        len({row.session_id for row in rows}),
        Counter(row.repository for row in rows),
        labels,
        len(mine),
        sum(row["reason"] == _PAIR for row in mine),
        Counter(name for row in mine for name in row["raters"] or () if name != "agent"),
        Counter(tool for state_id, tool in tools if state_id in of),
        len(agreed),
        agreed.count(False),
    )


def judge(tonight: Facts, usual: Facts, rules: CanaryRules) -> list[Canary]:
    """Return every canary, those that hold the night first."""
    every = (_rejected, _project, _usable, _labels, _tools, _contradicted)
    if min(tonight.sessions, usual.sessions) < MIN_SESSIONS:
        # States of a session are alike, and of one project.
        return [_unknown(name) for name in CanaryRules.model_fields if name != "min_states"]
    found = [canary(tonight, usual, rules) for canary in every]
    return sorted(found, key=lambda canary: not canary.holds)


def _rejected(tonight: Facts, usual: Facts, rules: CanaryRules) -> Canary:
    return _rise(
        "rejected", "of the states have teachers who agree against the agent",
        (tonight.rejected, tonight.voted), (usual.rejected, usual.voted), rules.rejected,
        rules.min_states,
    )  # fmt: skip


def _contradicted(tonight: Facts, usual: Facts, rules: CanaryRules) -> Canary:
    return _rise(
        "contradicted", "of the fixes in the trace are contradicted by the teachers' consensus",
        (tonight.contradicted, tonight.fixes), (usual.contradicted, usual.fixes),
        rules.contradicted, rules.min_states,
    )  # fmt: skip


def _project(tonight: Facts, usual: Facts, rules: CanaryRules) -> Canary:
    name, count = max(tonight.projects.items(), key=lambda i: (i[1], i[0]), default=("", 0))
    return _rise(
        "project", "of the states are of the largest project", (count, tonight.projects.total()),
        (usual.projects[name], usual.projects.total()), rules.project, rules.min_states,
    )  # fmt: skip


def _usable(tonight: Facts, usual: Facts, rules: CanaryRules) -> Canary:
    name, states = "usable", tonight.projects.total()
    before = usual.voted / max(1, usual.projects.total())
    if not tonight.voted and min(states, usual.voted) >= rules.min_states and before > _ASKED:
        why = f"no teacher answered at any of {states} states; before, some did at {before:.0%}"
        return Canary(name, True, why, 0.0, before, rules.usable)
    if min(tonight.voted, usual.voted) < rules.min_states:
        return _unknown(name, rules.usable)
    ratios = {
        teacher: (tonight.usable[teacher] / tonight.voted, count / usual.voted)
        for teacher, count in usual.usable.items()
        # One who left, or answers a few only, says nothing by answering none.
        if count * tonight.voted >= rules.min_states * usual.voted
    }
    worst = min(ratios, key=lambda teacher: ratios[teacher][0] / ratios[teacher][1], default="")
    now, before = ratios.get(worst, (1.0, 1.0))
    out = now < rules.usable * before
    why = f"teacher {worst} answers {now:.0%} of the states in a usable way, {before:.0%} before"
    return Canary(name, out, why, now, before, rules.usable)


def _labels(tonight: Facts, usual: Facts, rules: CanaryRules) -> Canary:
    return _shift("labels", "labels", tonight.labels, usual.labels, rules.labels, rules.min_states)


def _tools(tonight: Facts, usual: Facts, rules: CanaryRules) -> Canary:
    what = "tools of right actions"
    return _shift("tools", what, tonight.tools, usual.tools, rules.tools, rules.min_states)


def _shift(
    name: str, what: str, now: Counter[str], before: Counter[str], limit: float, least: int
) -> Canary:
    if min(now.total(), before.total()) < least:
        return _unknown(name, limit)
    shift = {
        each: now[each] / now.total() - before[each] / before.total() for each in {*now, *before}
    }
    distance = sum(map(abs, shift.values())) / 2
    most = max(shift, key=lambda each: (abs(shift[each]), each))
    why = f"{what} are {distance:.0%} from the usual ones; most: {shift[most]:+.0%} {most}"
    return Canary(name, distance > limit, why, distance, 0.0, limit)


def _rise(
    name: str, what: str, now: tuple[int, int], before: tuple[int, int], limit: float, least: int
) -> Canary:
    if min(now[1], before[1]) < least:
        return _unknown(name, limit)
    one, other = now[0] / now[1], before[0] / before[1]
    return Canary(name, one - other > limit, f"{one:.0%} {what}, {other:.0%} before", one, other,
                  limit)  # fmt: skip


def _unknown(name: str, limit: float = 0.0) -> Canary:
    return Canary(name, False, "too little to compare", limit=limit)


def _right(lake: Lake) -> tuple[dict[str, bool], list[tuple[str, str]]]:
    """Return whether consensus and the trace's own fix agree, where there are both, and tools.

    These are of what is taught as right: state and name of each call.
    """
    fixes = {
        row["state_id"]: row["recovery"]
        for row in lake.iter_rows("dataset_hints", columns=["state_id", "recovery"])
        if row["recovery"]
    }
    agree: dict[str, bool] = {}
    tools: list[tuple[str, str]] = []
    for table, column in (("dataset_groups", "consensus"), ("dataset_successes", "action")):
        for row in lake.iter_rows(table, columns=["state_id", column]):
            state_id, right = row["state_id"], action_of(row[column])
            if right is None:
                continue
            tools += [(state_id, call.name) for call in right.tool_calls]
            fix = action_of(fixes.get(state_id)) if column == "consensus" else None
            if fix is not None:
                same = level(right, fix, situation_of_chat([], "")).level
                agree[state_id] = same <= CANONICAL
    return agree, tools
