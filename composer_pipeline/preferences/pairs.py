"""The stage that turns states and replies of a day into the tables ``votes`` and ``pairs``.

Every state has one row in ``votes``. Each of them whose reason is ``pair`` is in ``pairs`` or,
with the rule that dropped it, in ``drops``.
"""

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat.convert import action_message, to_chat
from composer_pipeline.chat.tools import Toolset, Toolsets
from composer_pipeline.errors import InputError
from composer_pipeline.lake.provenance import Derivation, FileStamps, recorded
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.actions.canonical import Level, canonical, mutates
from composer_pipeline.preferences.actions.levels import Semantic
from composer_pipeline.preferences.actions.shell_parse import Place
from composer_pipeline.preferences.contamination import (
    Benchmarks,
    contaminated_sessions,
    is_dropped,
)
from composer_pipeline.preferences.eligibility import loosest_terms, read_replies, usable_replies
from composer_pipeline.preferences.hints import recoveries
from composer_pipeline.preferences.rules import (
    Hindsight,
    PreferenceRules,
    Rules,
    rules_of,
)
from composer_pipeline.preferences.vote import Vote, home_of, vote
from composer_pipeline.preferences.vote_rows import CONFIRMED, first_tool, vote_row
from composer_pipeline.redaction.redact import redact_json
from composer_pipeline.reports import Progress, Report, add_counts
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import TraceState
from composer_pipeline.versions import CONVERTER_VERSION, PAIRS_VERSION

#: The stage of these drops.
STAGE = "pairs"
SCHEMA_VERSION = 5
#: The student of a pair whose rejected side is the agent's action in the trace.
RECORDED = "recorded"
#: Sources of pairs whose chosen side is the agent's own.
OWN_SOURCES = frozenset({"fixup", "recovery", "hindsight"})

Row = dict[str, Any]


def hindsight(state: TraceState, weights: Hindsight) -> tuple[str, float, str]:
    """Return (outcome, weight, reason) of the agent's action, by what became of it.

    An error that follows counts only where the action is to blame for it, or nobody judged it.
    """
    for reason in ("followed_by_correction", "reverted", "caused_error", "followed_by_error"):
        if reason == "followed_by_error" and state.verdict not in (None, "mistake"):
            continue
        if getattr(state, reason):
            return "student_bad", weights.student_bad, reason
    if state.tests_passed:
        return "student_ok", weights.student_ok, "tests_passed"
    return "unknown", 1.0, ""


def select(
    candidates: Sequence[Row], evidence: dict[str, list[str]], rules: PreferenceRules
) -> tuple[list[Row], list[Row]]:
    """Return (pairs kept, rows of ``drops``); ``evidence`` of contamination is by session id.

    Of a session with more pairs than the cap, gold stays before the others, then the heavier, then
    the wider margin, then the lower hash of the pair.
    """
    kept: list[Row] = []
    drops: list[Row] = []
    for row in candidates:
        found = evidence.get(row["session_id"], [])
        if is_dropped(found, rules.contamination):
            step = _step("0:contamination", row)
            drops.append(drop(row, step, "session", "evidence", "; ".join(found), ""))
        elif row["weight"] == 0:
            reason = row["weight_reason"]
            step = _step("1:hindsight", row)
            drops.append(drop(row, step, "outcome", row["outcome"], reason, "weight 0"))
        elif row.get("contested") and rules.contested == "drop":
            step = _step("1:contested", row)
            drops.append(drop(row, step, "rejected", "survival", str(row["survival"]), "< 1"))
        else:
            kept.append(row)
    cap = rules.max_pairs_per_session
    if cap is None:
        return kept, drops
    within: list[Row] = []
    rank: Counter[str] = Counter()
    for row in sorted(kept, key=_precedence):
        rank[row["session_id"]] += 1
        number = rank[row["session_id"]]
        if number <= cap:
            within.append(row)
        else:
            step = _step("2:session_cap", row)
            drops.append(drop(row, step, "session_id", "rank", str(number), f"<= {cap}"))
    return within, drops


def _step(step: str, row: Row) -> str:
    """Name the source of a pair that no vote made."""
    source = row.get("source", "teachers")
    return step if source == "teachers" else f"{step}:{source}"


def drop(row: Row, step: str, field: str, stat: str, value: str, bound: str) -> Row:
    """Return a row of the table ``drops``: ``stat`` of ``field`` had a value beyond a bound.

    ``step`` is ``NUMBER:OPERATOR``, with ``:TABLE`` after it if several tables have the row. A row
    without ``pair_id`` is named by its state.
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


def pairs_derivation(lake: Lake, day: str, rules: PreferenceRules) -> Derivation:
    """Return what a day's ``votes`` and ``pairs`` are made from."""
    tables = ("states", "messages", "chains", "toolsets", "outcomes")
    return Derivation(
        "votes",
        {"day": day},
        [
            *((table, {"day": day}) for table in tables),
            *(("replies", part) for part in lake.partitions("replies", day=day)),
        ],
        {"pairs": PAIRS_VERSION, "converter": CONVERTER_VERSION, "rules": rules.digest()},
    )


def pair_row(
    state: TraceState, outcome: Vote, tools: Toolset, cost: int, *, weights: Hindsight | None = None
) -> dict[str, Any]:
    """Return the row of the table ``pairs`` for a vote that makes a pair, without its prompt.

    Prompts are the bulk of a row: :func:`prompt_of` makes those of the rows that are written.
    ``cost`` is that of all replies to the state, in picodollars.
    """
    winner = outcome.winner_action
    if winner is None:
        raise ValueError(f"state {state.state_id}: the vote has no winner")
    place = Place(state.cwd, home_of(state.cwd))
    return {
        **_sides(state, winner, tools, weights or Hindsight()),
        "pair_id": _pair_id(state.state_id, canonical(winner, place)),
        "source": "teachers",
        "tier": outcome.tier,
        "n_teachers": outcome.n_usable,
        "n_agree": outcome.n_agree,
        "n_families": outcome.n_families,
        "winner_level": outcome.winner_level.label,
        "student_level": outcome.student_level.label,
        "agreement": outcome.n_agree / outcome.n_families,
        "chosen_models": sorted({reply.model for reply in outcome.members}),
        "chosen_families": sorted({reply.family for reply in outcome.members}),
        "mutating": outcome.mutating,
        "simulated": any(reply.simulated for reply in outcome.voters),
        "windowed": any(reply.windowed for reply in outcome.voters),
        "cost_picodollars": cost,
        "margin": outcome.margin,
        "entropy": outcome.entropy,
        "chosen_teachers": sorted(reply.teacher for reply in outcome.members),
        "training_terms": loosest_terms(outcome.voters),
    }


def _sides(state: TraceState, better: Action, tools: Toolset, weights: Hindsight) -> Row:
    """Return the columns that every pair has, whoever made the better side."""
    result, weight, reason = hindsight(state, weights)
    chosen, rejected = [one_style(better, tools)], [one_style(state.action, tools)]
    return {
        "state_id": state.state_id,
        "session_id": state.session_id,
        "project": state.project,
        "chosen": chosen,
        "rejected": rejected,
        "rejected_model": state.model,
        "tool_chosen": first_tool(better),
        "tool_rejected": first_tool(state.action),
        "turn": state.turn,
        "error_turn": state.error_kind is not None,
        "schema_version": SCHEMA_VERSION,
        "length_ratio": len(json.dumps(chosen)) / len(json.dumps(rejected)),
        "outcome": result,
        "weight": weight,
        "weight_reason": reason,
        "contamination": [],
        "student": RECORDED,
        "kept": state.kept,
        "survival": state.survival,
        "contested": state.fate == "kept",
    }


def own_pairs(
    states: Sequence[TraceState], tools: Toolsets, *, weights: Hindsight | None = None
) -> list[Row]:
    """Return the pairs of the agent against itself, without their prompts; nobody is asked.

    *Fix-up*: an edit that caused a failure against the same edit with the session's own later fix
    folded in. *Recovery*: a call that was a mistake against the agent's own later call that worked.
    *Hindsight*: an edit against the same edit as it was committed, before the user said more.
    """
    found = []
    for state, action, about in own_fixes(states):
        sides = _sides(state, action, tools.of(state), weights or Hindsight())
        if sides["chosen"] != sides["rejected"]:
            found.append({**sides, **_NOBODY, **about, **_own(state, action, about["source"])})
    return found


def own_fixes(states: Sequence[TraceState]) -> Iterator[tuple[TraceState, Action, Row]]:
    """Yield states with the better action that their session shows, and the columns of why."""
    failed = {
        state.state_id: state.culprit_call
        for state in states
        if state.verdict == "mistake" and state.culprit_call is not None
    }
    better = recoveries(states, failed)
    by_id = {state.state_id: state for state in states}
    for state in states:
        if state.fixed_action is not None:
            error = by_id.get(state.caused_error or "")
            action = Action.from_json(state.fixed_action)
            about: Row = {
                "source": "fixup",
                "evidence": error.verdict_evidence if error else None,
                "distance": state.fix_distance,
                "verified_by": state.fix_verified_by,
            }
        elif (recovery := better.get(state.state_id)) and not _UNREAD.search(state.hint or ""):
            action = _replaced(state.action, failed[state.state_id], recovery.call)
            about = {
                "source": "recovery",
                "evidence": state.verdict_evidence,
                "distance": recovery.distance,
                "verified_by": recovery.state_id,
            }
        elif state.committed_action is not None:
            # By the rules of now: the lake may have been redacted by others.
            action = Action.from_json(redact_json(state.committed_action.encode())[0].decode())
            about = {"source": "hindsight", "evidence": None, "distance": None, "verified_by": None}
        else:
            continue
        yield state, action, about


#: What no other edit avoids: the file had to be read first.
_UNREAD = re.compile(r"has not been read|modified since read")

#: The columns of a vote that nobody held.
_NOBODY: Row = {
    "n_teachers": 0, "n_agree": 0, "n_families": 0, "agreement": 0.0, "winner_level": None,
    "student_level": None, "margin": 0.0, "entropy": 0.0, "simulated": False, "windowed": False,
    "cost_picodollars": 0, "chosen_families": [], "chosen_teachers": [], "training_terms": None,
}  # fmt: skip


def _pair_id(*parts: str) -> str:
    pair = "\n".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(pair, digest_size=16).hexdigest()


def _own(state: TraceState, action: Action, source: str) -> Row:
    place = Place(state.cwd, home_of(state.cwd))
    return {
        "pair_id": _pair_id(state.state_id, source, canonical(action, place)),
        "tier": source,
        "chosen_models": [state.model] if state.model else [],
        "mutating": mutates(action) or mutates(state.action),
    }


def _replaced(action: Action, index: int, call: ToolCall) -> Action:
    """Return an action with one call replaced; the id stays, and so does the text."""
    calls = list(action.tool_calls)
    index = index if 0 <= index < len(calls) else 0
    calls[index] = ToolCall(call.name, call.arguments, calls[index].id)
    return Action(action.text, tuple(calls))


def prompt_of(state: TraceState, tools: Toolset) -> dict[str, Any]:
    """Return ``prompt`` and ``tools`` of a pair's row."""
    chat = to_chat(state, tools=tools.tools)
    return {"prompt": chat.messages, "tools": chat.tools}


def one_style(action: Action, tools: Toolset) -> dict[str, Any]:
    """Return an action in chat form with the arguments in the order of the tool's schema.

    The order of keys would give away whose action it is; keys that the schema lacks are sorted.
    """
    message = action_message(action)
    schemas = {str(tool["function"]["name"]): tool["function"] for tool in tools.tools}
    for call, written in zip(action.tool_calls, message.get("tool_calls") or (), strict=True):
        properties = schemas.get(call.name, {}).get("parameters", {}).get("properties") or {}
        position = {name: number for number, name in enumerate(properties)}
        keys = sorted(call.arguments, key=lambda key: (position.get(key, len(position)), key))
        written["function"]["arguments"] = {key: call.arguments[key] for key in keys}
    return message


@dataclass(frozen=True)
class PairFigures(Report):
    """The counts of a day, or of several together.

    ``voted`` are the states with at least two families, ``consensus`` those with a winner,
    ``confirmed`` those whose winner agrees with the agent. ``by_source`` counts pairs of teachers,
    fix-ups and recoveries, ``by_tool`` pairs by the chosen tool, ``by_reason`` states by the
    outcome of their vote (``vote_rows.REASONS``), ``drops`` the pairs that a rule of the recipe
    left out.
    """

    states: int = 0
    voted: int = 0
    consensus: int = 0
    confirmed: int = 0
    pairs: int = 0
    by_tier: dict[str, int] = field(default_factory=dict)
    by_source: dict[str, int] = field(default_factory=dict)
    by_tool: dict[str, int] = field(default_factory=dict)
    by_reason: dict[str, int] = field(default_factory=dict)
    drops: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PairsReport(PairFigures):
    """The sum over the days, and each day's own figures."""

    by_day: dict[str, PairFigures] = field(default_factory=dict)


def build_pairs(
    lake: Lake,
    *,
    days: Iterable[str] | None = None,
    rules: Rules = None,
    judge: Semantic | None = None,
    progress: Progress | None = None,
) -> PairsReport:
    """Vote on every state of some days and write ``votes``, ``pairs`` and ``drops``.

    Where no vote makes a pair, the agent may make one against itself (:func:`own_pairs`), which
    needs no teacher and no money.

    The same states, replies and rules give the same bytes. A day without pairs gets an
    empty partition, so that a second run leaves nothing stale.

    Args:
        lake: the lake.
        days: ``YYYY-MM-DD``; all days with states when ``None``.
        rules: the preference recipe; its defaults when not given.
        judge: the paid judge of meaning that the recipe names (``open_judge``). It is asked
            only where a pair would be made.
        progress: called after each state of a day.

    Raises:
        InputError: a list of benchmarks cannot be read, or the recipe names a judge and none
            is given.
        BudgetExhausted: the judge's budget is spent; nothing of the day is written.
        StorageError: the lake is not writable.
    """
    rules = rules_of(rules)
    if rules.semantic_judge and judge is None:
        raise InputError("the preference recipe names a semantic_judge; pairs need it opened")
    benchmarks = Benchmarks.of_rules(rules)
    by_day, stamps = {}, FileStamps(lake)
    for day in lake.chosen_days("states", days):
        with recorded(lake, pairs_derivation(lake, day, rules), stamps):
            by_day[day] = _build_day(lake, day, rules, benchmarks, judge, progress)
    parts = by_day.values()
    counts = ("states", "voted", "consensus", "confirmed", "pairs")
    groups = ("by_tier", "by_source", "by_tool", "by_reason", "drops")
    totals: dict[str, Any] = {
        **{name: sum(getattr(part, name) for part in parts) for name in counts},
        **{name: add_counts(getattr(part, name) for part in parts) for name in groups},
    }
    return PairsReport(**totals, by_day=by_day)


def _build_day(
    lake: Lake,
    day: str,
    rules: PreferenceRules,
    benchmarks: Benchmarks,
    judge: Semantic | None,
    progress: Progress | None,
) -> PairFigures:
    states = {state.state_id: state for state in load_states(lake, days=[day])}
    rows = read_replies(lake, day)
    usable = usable_replies(rows)
    rows_of: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        rows_of[row["state_id"]].append(row)
    tools = Toolsets(lake, list(states.values()))
    votes: list[Row] = []
    candidates: list[Row] = []
    for done, state in enumerate(states.values(), start=1):
        replies = usable.get(state.state_id, [])
        outcome = vote(state, replies)
        if judge and outcome.is_pair and outcome.student_level is Level.L4:
            outcome = vote(state, replies, semantic=judge)
        votes.append(voted := vote_row(state, rows_of[state.state_id], replies, outcome))
        if outcome.is_pair:
            cost = voted["cost_picodollars"]
            candidates.append(
                pair_row(state, outcome, tools.of(state), cost, weights=rules.hindsight)
            )
        if progress:
            progress(f"pairs {day}", done, len(states))
    voted_pairs = {row["state_id"] for row in candidates}
    ours = states.values() if rules.own_pairs else ()
    for _, session in groupby(ours, key=lambda state: state.session_id):
        own = own_pairs(list(session), tools, weights=rules.hindsight)
        candidates += [row for row in own if row["state_id"] not in voted_pairs]
    evidence = contaminated_sessions(states.values(), benchmarks)
    for row in (*votes, *candidates):
        row["contamination"] = evidence.get(row["session_id"], [])
    kept, drops = select(candidates, evidence, rules)
    kept.sort(key=lambda row: str(row["pair_id"]))
    drops.sort(key=lambda row: (row["pair_id"], row["step"]))
    lake.write("votes", sorted(votes, key=lambda row: str(row["state_id"])), day=day)
    if drops or day in lake.days("drops", stage=STAGE):
        lake.write("drops", drops, stage=STAGE, day=day)
    lake.writer("pairs", day=day).write_rows(
        row | prompt_of(state, tools.of(state))
        for row in kept
        for state in [states[row["state_id"]]]
    )
    return PairFigures(
        states=len(states),
        voted=sum(row["n_families"] >= 2 for row in votes),
        consensus=sum(row["n_agree"] > 0 for row in votes),
        confirmed=sum(row["reason"] in CONFIRMED for row in votes),
        pairs=len(kept),
        by_tier=_count(row["tier"] for row in kept),
        by_source=_count(row["source"] for row in kept),
        by_tool=_count(row["tool_chosen"] for row in kept),
        by_reason=_count(row["reason"] for row in votes),
        drops=_count(row["op"] for row in drops),
    )


def _count(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
