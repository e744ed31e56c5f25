"""States and replies of a day in, the partitions of ``votes`` and ``pairs`` out.

Belongs here: the stage :func:`build_pairs` and its report. Does not belong here: the vote
(``preferences.agreement.vote``), the row of a pair (``preferences.pairs.pair_row``) and which
pairs are kept (``preferences.pairs.filters``).

Every state has one row in ``votes``. Each of them whose reason is ``pair`` is in ``pairs`` or,
with the rule that dropped it, in ``drops``.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer_pipeline.chat import Toolsets
from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.lake.notes import Stamps, noting
from composer_pipeline.preferences.actions import Level, Semantic
from composer_pipeline.preferences.agreement import CONFIRMED, ballot_row, vote
from composer_pipeline.preferences.pairs.benchmarks import Benchmarks
from composer_pipeline.preferences.pairs.contamination import contaminated_sessions
from composer_pipeline.preferences.pairs.filters import STAGE, select
from composer_pipeline.preferences.pairs.origin import pairs_origin
from composer_pipeline.preferences.pairs.pair_row import pair_row, prompt_of
from composer_pipeline.preferences.pairs.replies import Answers, answers_of, reply_rows, usable_of
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.reports import Progress, Report, add_counts
from composer_pipeline.trace_states import load_states


@dataclass(frozen=True)
class PairFigures(Report):
    """What a day gave, or several together.

    ``voted`` are the states with at least two families, ``consensus`` those with a winner,
    ``confirmed`` those whose winner agrees with the agent. The rates are per consensus and
    per voted state, 0.0 where there are none. ``by_tool`` counts pairs by the chosen tool.
    ``by_reason`` counts every state by what came of its vote (``vote_rows.REASONS``), and
    ``drops`` the pairs that a rule of the recipe left out.
    """

    states: int = 0
    voted: int = 0
    consensus: int = 0
    confirmed: int = 0
    pairs: int = 0
    by_tier: dict[str, int] = field(default_factory=dict)
    by_tool: dict[str, int] = field(default_factory=dict)
    by_reason: dict[str, int] = field(default_factory=dict)
    drops: dict[str, int] = field(default_factory=dict)

    @property
    def agreement_rate(self) -> float:
        """Share of the voted states on which the teachers agree with each other."""
        return self.consensus / self.voted if self.voted else 0.0

    @property
    def confirmation_rate(self) -> float:
        """Share of the consensus states on which the teachers agree with the agent."""
        return self.confirmed / self.consensus if self.consensus else 0.0


@dataclass(frozen=True)
class PairsReport(PairFigures):
    """The sum over the days, and each day's own figures."""

    by_day: dict[str, PairFigures] = field(default_factory=dict)


def build_pairs(
    lake: Lake,
    *,
    days: Iterable[str] | None = None,
    rules: PreferenceRules | None = None,
    judge: Semantic | None = None,
    progress: Progress | None = None,
) -> PairsReport:
    """Vote on every state of some days and write ``votes``, ``pairs`` and the ledger of drops.

    The same states, replies and rules give the same bytes. A day without pairs gets an
    empty partition, so that a second run leaves nothing stale.

    Args:
        lake: the lake.
        days: ``YYYY-MM-DD``; all days with states when ``None``.
        rules: the preference recipe; its defaults when not given.
        judge: the paid judge of meaning that the recipe asks for (``open_judge``). It is asked
            only where a pair would be made.
        progress: called after each state of a day.

    Raises:
        InputError: a list of benchmarks cannot be read, or the recipe names a judge and none
            is given.
        BudgetExhausted: the judge has no money left; nothing of the day is written.
        StorageError: the lake is not writable.
    """
    rules = rules or PreferenceRules()
    if rules.semantic_judge and judge is None:
        raise InputError("the preference recipe names a semantic_judge; pairs need it opened")
    benchmarks = Benchmarks.of_rules(rules)
    wanted = lake.days("states") if days is None else sorted(set(days))
    by_day, stamps = {}, Stamps(lake)
    for day in wanted:
        with noting(lake, pairs_origin(lake, day, rules), stamps):
            by_day[day] = _build_day(lake, day, rules, benchmarks, judge, progress)
    return PairsReport(**_added(list(by_day.values())), by_day=by_day)


def _added(parts: Sequence[PairFigures]) -> dict[str, Any]:
    """Return the figures of several days together, by the name of the field."""
    counts = ("states", "voted", "consensus", "confirmed", "pairs")
    groups = ("by_tier", "by_tool", "by_reason", "drops")
    return {
        **{name: sum(getattr(part, name) for part in parts) for name in counts},
        **{name: add_counts(getattr(part, name) for part in parts) for name in groups},
    }


def _build_day(
    lake: Lake,
    day: str,
    rules: PreferenceRules,
    benchmarks: Benchmarks,
    judge: Semantic | None,
    progress: Progress | None,
) -> PairFigures:
    states = list(load_states(lake, days=[day]))
    rows = reply_rows(lake, day)
    replies, answered = usable_of(rows), answers_of(rows)
    tools = Toolsets(lake, states)
    ballots: list[dict[str, Any]] = []
    candidates: list[dict[str, Any]] = []
    for done, state in enumerate(states, start=1):
        mine = replies.get(state.state_id, [])
        told = answered.get(state.state_id, Answers())
        outcome = vote(state, mine)
        if judge and outcome.is_pair and outcome.student_level is Level.L4:
            outcome = vote(state, mine, semantic=judge)
        ballots.append(
            ballot_row(
                state,
                mine,
                outcome,
                n_replies=told.count,
                unusable=told.unusable,
                cost=told.cost,
            )
        )
        if outcome.is_pair:
            candidates.append(
                pair_row(state, outcome, tools.of(state), told.cost, weights=rules.hindsight)
            )
        if progress:
            progress(f"pairs {day}", done, len(states))
    evidence = contaminated_sessions(states, benchmarks)
    for row in (*ballots, *candidates):
        row["contamination"] = evidence.get(row["session_id"], [])
    kept, drops = select(candidates, evidence, rules)
    kept.sort(key=lambda row: str(row["pair_id"]))
    drops.sort(key=lambda row: (row["pair_id"], row["step"]))
    lake.write("votes", sorted(ballots, key=lambda row: str(row["state_id"])), day=day)
    if drops or day in lake.days("drops", stage=STAGE):
        lake.write("drops", drops, stage=STAGE, day=day)
    by_id = {state.state_id: state for state in states}
    lake.writer("pairs", day=day).write_rows(
        row | prompt_of(state, tools.of(state))
        for row in kept
        for state in [by_id[row["state_id"]]]
    )
    return PairFigures(
        states=len(states),
        voted=sum(row["n_families"] >= 2 for row in ballots),
        consensus=sum(row["n_agree"] > 0 for row in ballots),
        confirmed=sum(row["reason"] in CONFIRMED for row in ballots),
        pairs=len(kept),
        by_tier=_count(row["tier"] for row in kept),
        by_tool=_count(row["tool_chosen"] for row in kept),
        by_reason=_count(row["reason"] for row in ballots),
        drops=_count(row["op"] for row in drops),
    )


def _count(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
