"""States and replies of a day in, the partitions of ``votes`` and ``pairs`` out.

Belongs here: the stage :func:`build_pairs` and its report. Does not belong here: the vote
(``preferences.agreement.vote``), the row of a pair (``preferences.pairs.pair_row``) and which
pairs are kept (``preferences.pairs.filters``).

Every state has one row in ``votes``. Each of them whose reason is ``pair`` is in ``pairs`` or,
with the rule that dropped it, in ``drops``.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from composer_pipeline.actions import Action
from composer_pipeline.chat.convert import action_message, to_chat
from composer_pipeline.chat.tools import Toolset, Toolsets
from composer_pipeline.errors import InputError
from composer_pipeline.lake.provenance import Derivation, FileStamps, recorded
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.actions.canonical import Level, canonical
from composer_pipeline.preferences.actions.levels import Semantic
from composer_pipeline.preferences.actions.shell_parse import Place
from composer_pipeline.preferences.contamination import Benchmarks, contaminated_sessions, is_strong
from composer_pipeline.preferences.eligibility import Reply, loosest_terms
from composer_pipeline.preferences.rules import Hindsight, PreferenceRules, bundled_benchmarks
from composer_pipeline.preferences.vote import Vote, home_of, vote
from composer_pipeline.preferences.vote_rows import CONFIRMED, ballot_row
from composer_pipeline.reports import Progress, Report, add_counts
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import TraceState
from composer_pipeline.versions import CONVERTER_VERSION, PAIRS_VERSION

#: The stage of these drops in the lake's ledger.
STAGE = "pairs"

Row = dict[str, Any]


def hindsight(state: TraceState, weights: Hindsight) -> tuple[str, float, str]:
    """Return (outcome, weight, reason) of the agent's action at a state.

    The outcome is ``student_bad`` when a call failed, the user corrected it or it was
    undone; ``student_ok`` when the tests that it ran passed and none of these; else
    ``unknown``, with weight 1 and no reason.
    """
    for reason in ("followed_by_correction", "reverted", "followed_by_error"):
        if getattr(state, reason):
            return "student_bad", weights.student_bad, reason
    if state.tests_passed:
        return "student_ok", weights.student_ok, "tests_passed"
    return "unknown", 1.0, ""


def select(
    candidates: Sequence[Row], evidence: dict[str, list[str]], rules: PreferenceRules
) -> tuple[list[Row], list[Row]]:
    """Return (pairs kept, ledger rows of those dropped); together they are the candidates.

    Of a session with more pairs than the cap, gold stays before silver, then the heavier,
    then the wider margin, then a hash of the pair, so that a cap keeps no part of a session
    in particular.

    Args:
        candidates: rows of the table ``pairs``.
        evidence: session id to its evidence of contamination.
        rules: the recipe.
    """
    kept: list[Row] = []
    drops: list[Row] = []
    for row in candidates:
        found = evidence.get(row["session_id"], [])
        action = rules.contamination.evidence if is_strong(found) else rules.contamination.by_name
        if found and action == "drop":
            drops.append(drop(row, "0:contamination", "session", "evidence", "; ".join(found), ""))
        elif row["weight"] == 0:
            reason = row["weight_reason"]
            drops.append(drop(row, "1:hindsight", "outcome", row["outcome"], reason, "weight 0"))
        else:
            kept.append(row)
    cap = rules.max_pairs_per_session
    if cap is None:
        return kept, drops
    stays: list[Row] = []
    rank: Counter[str] = Counter()
    for row in sorted(kept, key=_precedence):
        rank[row["session_id"]] += 1
        if rank[row["session_id"]] <= cap:
            stays.append(row)
        else:
            number = str(rank[row["session_id"]])
            drops.append(drop(row, "2:session_cap", "session_id", "rank", number, f"<= {cap}"))
    return stays, drops


def drop(row: Row, step: str, field: str, stat: str, value: str, bound: str) -> Row:
    """Return a row of the table ``drops``.

    Args:
        row: has ``state_id``, and ``pair_id`` where it is a pair; another has its state for a name.
        step: ``NUMBER:OPERATOR``, with ``:TABLE`` behind it where several tables have the row.
        field: what was looked at.
        stat: its statistic.
        value: what it was.
        bound: what it broke.
    """
    return {
        "pair_id": row.get("pair_id") or row["state_id"],
        "state_id": row["state_id"],
        "step": step,
        "op": step.split(":")[1],
        "field": field,
        "stat": stat,
        "value": value,
        "bound": bound,
    }


def _precedence(row: Row) -> tuple[bool, float, float, str]:
    digest = hashlib.blake2b(str(row["pair_id"]).encode(), digest_size=8).hexdigest()
    return row["tier"] != "gold", -row["weight"], -row["margin"], digest


_TABLES = ("states", "messages", "chains", "toolsets")


def pairs_derivation(lake: Lake, day: str, rules: PreferenceRules) -> Derivation:
    """Return what a day's ``votes`` and ``pairs`` are made from: every teacher's replies too.

    Raises:
        InputError: a list of benchmarks cannot be read.
    """
    return Derivation(
        "votes",
        {"day": day},
        [
            *((table, {"day": day}) for table in _TABLES),
            *(("replies", part) for part in lake.partitions("replies", day=day)),
        ],
        {"pairs": PAIRS_VERSION, "converter": CONVERTER_VERSION, "rules": rules_id(rules)},
    )


def rules_id(rules: PreferenceRules) -> str:
    """Return a hash over the rules and the lists of benchmarks, wherever these lie.

    Raises:
        InputError: a list of benchmarks cannot be read.
    """
    digest = hashlib.blake2b(digest_size=6)
    files = [bundled_benchmarks(), *map(Path, rules.contamination.files)]
    nowhere = rules.contamination.model_copy(update={"files": []})
    digest.update(rules.model_copy(update={"contamination": nowhere}).model_dump_json().encode())
    for file in files:
        digest.update(b"\0" + (file.read_bytes() if file.is_file() else b""))
    return digest.hexdigest()


SCHEMA_VERSION = 2


#: The student of a pair whose rejected side is what the agent did in the trace.
RECORDED = "recorded"


def pair_row(
    state: TraceState,
    outcome: Vote,
    tools: Toolset,
    cost: int,
    *,
    weights: Hindsight | None = None,
) -> dict[str, Any]:
    """Return the row of the table ``pairs`` for a vote that makes a pair, without its prompt.

    Prompts are the bulk of a row: :func:`prompt_of` makes them for those that are written.

    Args:
        state: the state.
        outcome: its vote.
        tools: the tools of its session.
        cost: billed cost of all replies to the state, picodollars.
        weights: by what became of the agent's action; the recipe's defaults when not given.
    """
    chosen = outcome.winner_action
    if chosen is None:
        raise ValueError(f"state {state.state_id}: the vote has no winner")
    place = Place(state.cwd, home_of(state.cwd))
    became, weight, why = hindsight(state, weights or Hindsight())
    sides = [one_style(chosen, tools)], [one_style(state.action, tools)]
    return {
        "pair_id": pair_id(state.state_id, chosen, place),
        "state_id": state.state_id,
        "session_id": state.session_id,
        "project": state.project,
        "chosen": sides[0],
        "rejected": sides[1],
        "tier": outcome.tier,
        "n_teachers": outcome.n_usable,
        "n_agree": outcome.n_agree,
        "n_families": outcome.n_families,
        "winner_level": outcome.winner_level.label,
        "student_level": outcome.student_level.label,
        "agreement": outcome.n_agree / outcome.n_families,
        "chosen_models": sorted({reply.model for reply in outcome.members}),
        "chosen_families": sorted({reply.family for reply in outcome.members}),
        "rejected_model": state.model,
        "tool_chosen": first_tool(chosen),
        "tool_rejected": first_tool(state.action),
        "turn": state.turn,
        "error_turn": state.error_kind is not None,
        "mutating": outcome.mutating,
        "simulated": any(reply.simulated for reply in outcome.voters),
        "cost_picodollars": cost,
        "schema_version": SCHEMA_VERSION,
        "margin": outcome.margin,
        "entropy": outcome.entropy,
        "chosen_teachers": sorted(reply.teacher for reply in outcome.members),
        "length_ratio": len(json.dumps(sides[0])) / len(json.dumps(sides[1])),
        "outcome": became,
        "weight": weight,
        "weight_reason": why,
        "contamination": [],
        "student": RECORDED,
        "training_terms": loosest_terms(outcome.voters),
    }


def prompt_of(state: TraceState, tools: Toolset) -> dict[str, Any]:
    """Return what a pair's row says of its state: ``prompt`` and ``tools``."""
    talk = to_chat(state, tools=tools.tools)
    return {"prompt": talk.messages, "tools": talk.tools}


def one_style(action: Action, tools: Toolset) -> dict[str, Any]:
    """Return an action in chat form with the arguments in the order of the tool's schema.

    The order of keys says whose hand an action is of, and nothing of what it does. Both sides
    of a pair are written in one order; keys that the schema lacks follow by name.
    """
    message = action_message(action)
    schemas = {str(tool["function"]["name"]): tool["function"] for tool in tools.tools}
    for call, done in zip(action.tool_calls, message.get("tool_calls") or (), strict=True):
        properties = schemas.get(call.name, {}).get("parameters", {}).get("properties") or {}
        place = {name: number for number, name in enumerate(properties)}
        keys = sorted(call.arguments, key=lambda key: (place.get(key, len(place)), key))
        done["function"]["arguments"] = {key: call.arguments[key] for key in keys}
    return message


def pair_id(state_id: str, chosen: Action, place: Place) -> str:
    """Return BLAKE2b-128 of the state and the canonical chosen action, hexadecimal."""
    text = f"{state_id}\n{canonical(chosen, place)}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def first_tool(action: Action) -> str:
    """Return the name of the first tool of an action, or ``text``."""
    return action.tool_calls[0].name if action.tool_calls else "text"


#: Columns of `replies` that a vote and its explanation read.
REPLY_COLUMNS = [
    "state_id",
    "family",
    "model",
    "status",
    "detail",
    "action",
    "request_hash",
    "completion_tokens",
    "cost_picodollars",
    "simulated",
    "created_at",
    "control",
    "training_terms",
    "licence",
]


def usable_replies(lake: Lake, day: str) -> dict[str, list[Reply]]:
    """Return state id to its usable replies, the newest of each teacher, sorted by teacher."""
    return usable_of(reply_rows(lake, day))


def usable_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Reply]]:
    """Return :func:`usable_replies` of rows of the table ``replies``."""
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in rows:
        if row["status"] != "ok" or row["action"] is None:
            continue
        key = (row["state_id"], row["teacher"])
        old = newest.get(key)
        if old is None or reply_age(row) > reply_age(old):
            newest[key] = row
    found: dict[str, list[Reply]] = {}
    for (state_id, _), row in sorted(newest.items()):
        found.setdefault(state_id, []).append(Reply.from_row(row))
    return found


@dataclass
class Answers:
    """All replies to a state: how many, their billed cost, and those that cannot vote."""

    count: int = 0
    cost: int = 0
    unusable: list[str] = field(default_factory=list)


def answers_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, Answers]:
    """Return state id to what all its replies were, from rows of the table ``replies``."""
    found: dict[str, Answers] = {}
    for row in sorted(rows, key=lambda row: (row["state_id"], row["teacher"], reply_age(row))):
        mine = found.setdefault(row["state_id"], Answers())
        mine.count += 1
        mine.cost += row["cost_picodollars"] or 0
        if row["status"] != "ok" or row["action"] is None:
            why = row["detail"] or "no reason is recorded"
            mine.unusable.append(f"{row['teacher']}: {row['status']}: {why}")
    return found


def cost_of_states(lake: Lake, day: str) -> dict[str, int]:
    """Return state id to the billed cost of all its replies, usable or not, in picodollars."""
    return {state_id: told.cost for state_id, told in answers_of(reply_rows(lake, day)).items()}


def reply_rows(lake: Lake, day: str) -> list[dict[str, Any]]:
    """Return a day's rows of the table ``replies``."""
    return lake.rows("replies", days=[day], columns=REPLY_COLUMNS)


def reply_age(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return what orders the replies of a teacher to a state; the greatest is the newest."""
    return str(row["created_at"] or ""), str(row["request_hash"])


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
    by_day, stamps = {}, FileStamps(lake)
    for day in wanted:
        with recorded(lake, pairs_derivation(lake, day, rules), stamps):
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
