"""Why a state became a pair, or why it did not: every reply, its level, its cost.

The vote is taken again from the replies, so that an explanation is of the current code.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from composer_pipeline.actions import Action, ToolCall, chat_calls
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.money import to_usd
from composer_pipeline.preferences.actions.canonical import Level
from composer_pipeline.preferences.actions.levels import ActionContext, Semantic, level
from composer_pipeline.preferences.eligibility import (
    Reply,
    is_usable,
    read_replies,
    reply_age,
    usable_replies,
)
from composer_pipeline.preferences.vote import Vote, context_of, vote
from composer_pipeline.preferences.vote_rows import (
    CONFIRMED,
    REASONS,
    level_of,
    reason_of,
    vote_figures,
)
from composer_pipeline.states.load import failure_chains, load_state
from composer_pipeline.states.state import TraceState

Row = dict[str, Any]
Rows = list[Row]

_TIERS = {
    "gold": "gold: they agree on the effect (L1 or finer), the agent is not within L2",
    "silver": "silver: they agree on the target (L2), or the agent shares only their target",
    "style": "style: they agree, and the agent did the same on the same target",
    "none": "no tier",
}


def explain(lake: Lake, any_id: str) -> dict[str, Any]:
    """Return all that is known of one pair or state.

    Args:
        lake: reads ``states``, ``replies``, ``pairs``, ``drops`` and what follows them.
        any_id: a pair's or a state's id, or an unambiguous beginning.

    Returns:
        JSON-able facts: ``reason`` is a key of ``vote_rows.REASONS`` and ``why`` its sentence,
        ``agent`` and ``chosen`` are actions, ``teachers`` has one entry per reply (``usable``
        false with ``status`` and ``detail``; else its ``action``, ``family``, ``cluster``
        counted from 1 or ``None`` if it has no vote, ``level_to_agent`` and
        ``level_to_winner`` with a reason each, ``cost_usd``), ``fate`` what each later stage
        did with the pair. Of a pair of the agent against itself ``reason`` is its source.

    Raises:
        InputError: no pair or state has this id, or several do.
    """
    pair_id, state_id = _find(lake, any_id)
    state = load_state(lake, state_id)
    failures = failure_chains(lake, [state_id]).get(state_id, [])
    return Explainer(lake, state.day).of(state, pair_id, failures)


class Explainer:
    """Explains the states of one day, whose tables are read once."""

    def __init__(self, lake: Lake, day: str) -> None:
        self._replies, self._drops = defaultdict[str, Rows](list), defaultdict[str, Rows](list)
        for row in read_replies(lake, day):
            self._replies[row["state_id"]].append(row)
        for row in lake.rows("drops", days=[day]):
            self._drops[row["pair_id"]].append(row)
        self._votes = {row["state_id"]: row for row in lake.rows("votes", days=[day])}
        self._pairs = {
            row["pair_id"]: row for row in lake.rows("pairs", days=[day], columns=_PAIR_COLUMNS)
        }
        self._pair_ids = defaultdict[str, set[str]](set)
        for row in (*self._pairs.values(), *chain.from_iterable(self._drops.values())):
            self._pair_ids[row["state_id"]].add(row["pair_id"])
        normalized = lake.rows("normalized_pairs", days=[day], columns=["pair_id"])
        self._normalized = {row["pair_id"] for row in normalized}
        self._splits = {row["pair_id"]: row["split"] for row in
                        lake.rows("dataset_pairs", columns=["pair_id"])}  # fmt: skip

    def pairs_of(self, state_id: str) -> list[str]:
        """Return the ids of a state's pairs, dropped ones too."""
        return sorted(self._pair_ids.get(state_id, set()) - {state_id})

    def of(
        self, state: TraceState, pair_id: str, failures: Sequence[Mapping[str, str]]
    ) -> dict[str, Any]:
        """Return what :func:`explain` does of a state of the day and one of its pairs, or ""."""
        rows = self._replies.get(state.state_id, [])
        replies = usable_replies(rows).get(state.state_id, [])
        semantic = _recorded_judgements(self._votes.get(state.state_id), replies)
        outcome = vote(state, replies, semantic=semantic)
        reason = reason_of(outcome, len(rows))
        facts = {
            "pair_id": pair_id or None,
            "state_id": state.state_id,
            **{name: getattr(state, name) for name in _OF_STATE},
            "reason": reason,
            "why": _why(outcome, reason, rows),
            "tier": outcome.tier,
            "rule": _TIERS[outcome.tier],
            "n_replies": len(rows),
            **vote_figures(outcome),
            "cost_usd": to_usd(sum(row["cost_picodollars"] or 0 for row in rows)),
            "agent": {"model": state.model, **_action_json(state.action)},
            "chosen": _action_json(outcome.winner_action) if outcome.winner_action else None,
            "teachers": _reply_entries(state, rows, replies, outcome, semantic),
            "chain": failures,
            "fate": self._fate(pair_id) if pair_id else {},
        }
        own = self._pairs.get(pair_id)
        if own is not None and own["source"] in _OWN:
            calls = (ToolCall(name, dict(given)) for name, given in chat_calls(*own["chosen"]))
            facts |= {
                "reason": own["source"],
                "why": _OWN[own["source"]].format(**own),
                "tier": own["source"],
                "chosen": _action_json(Action("", tuple(calls))),
            }
        return facts

    def _fate(self, pair_id: str) -> dict[str, str]:
        """Return stage to what it did with a pair; stages that have not run are left out."""
        fate = {}
        if row := self._pairs.get(pair_id):
            because = f" ({row['weight_reason']})" if row["weight_reason"] else ""
            fate["pairs"] = f"kept, weight {row['weight']:g}{because}"
        if pair_id in self._normalized:
            fate["normalize"] = "kept"
        if pair_id in self._splits:
            fate["dataset"] = f"kept, split {self._splits[pair_id]}"
        for row in self._drops.get(pair_id, []):
            value = f", {row['stat']} {row['value']}" if row["stat"] else ""
            bound = f" (bound {row['bound']})" if row["bound"] else ""
            fate[row["stage"]] = f"dropped by {row['op']} on {row['field']}{value}{bound}"
        return fate


_OF_STATE = (
    "session_id", "day", "project", "turn", "error_kind", "verdict", "caused_error", "hint",
)  # fmt: skip
_PAIR_COLUMNS = [
    "pair_id", "state_id", "source", "chosen", "evidence", "distance", "verified_by", "weight",
    "weight_reason",
]  # fmt: skip
#: Why a pair stands that no teacher made.
_OWN = {
    "fixup": "The agent mended this edit itself {distance} states later, and the check passes in"
    " state {verified_by}; the fix is folded in. It said: {evidence}",
    "recovery": "The agent's own call {distance} states later worked in its place (state"
    " {verified_by}). It said: {evidence}",
    "hindsight": "This is the edit as it was committed, before the user said more; who changed it"
    " is not known.",
}


def _reply_entries(
    state: TraceState,
    rows: list[dict[str, Any]],
    replies: list[Reply],
    outcome: Vote,
    semantic: Semantic | None,
) -> list[dict[str, Any]]:
    """Return one entry per reply, by teacher; see :func:`explain`."""
    context = context_of(state) if replies else ActionContext()
    cluster_of = {
        teacher: number
        for number, cluster in enumerate(outcome.clusters, start=1)
        for teacher in cluster
    }
    winners = {reply.teacher for reply in outcome.members}
    controls = {reply.teacher for reply in outcome.controls}
    excluded = {out.reply.teacher: out for out in outcome.excluded}
    used = {reply.teacher: reply for reply in replies}
    newest = {
        row["teacher"]: row["request_hash"]
        for row in sorted(filter(is_usable, rows), key=reply_age)
    }

    def unusable(row: Mapping[str, Any]) -> tuple[str, str] | None:
        name = row["teacher"]
        if not is_usable(row):
            return row["status"], row["detail"] or "no reason is recorded"
        if row["request_hash"] != newest[name]:
            return "older", "a newer reply of this teacher counts"
        return (excluded[name].kind, excluded[name].detail) if name in excluded else None

    entries = []
    for row in sorted(rows, key=lambda row: (row["teacher"], str(row["created_at"] or ""))):
        name = row["teacher"]
        entry = {
            "teacher": name,
            "family": row["family"],
            "model": row["model"],
            "simulated": bool(row["simulated"]),
            "control": name in controls or bool(row["control"]),
            "cost_usd": to_usd(row["cost_picodollars"] or 0),
        }
        entries.append(entry)
        if problem := unusable(row):
            entry |= {"usable": False, "status": problem[0], "detail": problem[1]}
            continue
        action, winner = used[name].action, outcome.winner_action
        entry |= {
            "usable": True,
            "votes": name in cluster_of,
            "cluster": cluster_of.get(name),
            "wins": name in winners,
            "spokesman": outcome.winner is not None and outcome.winner.teacher == name,
            "action": _action_json(action),
            "level_to_agent": _level_json(action, state.action, context, semantic),
            "level_to_winner": _level_json(action, winner, context) if winner else None,
        }
    return entries


def _action_json(action: Action) -> dict[str, Any]:
    calls = [{"name": call.name, "arguments": call.arguments} for call in action.tool_calls]
    return {"text": action.text, "tool_calls": calls}


def _level_json(
    a: Action, b: Action, context: ActionContext, semantic: Semantic | None = None
) -> dict[str, str]:
    found = level(a, b, context, semantic=semantic)
    return {"level": found.level.label, "why": found.why}


def _recorded_judgements(
    row: Mapping[str, Any] | None, replies: Sequence[Reply]
) -> Semantic | None:
    """Return the judge's decisions from a row of ``votes``; nobody is asked again."""
    raters = row["raters"] if row else []
    same = {
        name
        for position, name in enumerate(raters)
        if row and position and level_of(row, 0, position) is Level.L3
    }
    forms = {reply.action.to_json() for reply in replies if reply.teacher in same}
    return (lambda a, b: bool({a.to_json(), b.to_json()} & forms)) if forms else None


def _why(outcome: Vote, reason: str, rows: list[dict[str, Any]]) -> str:
    """Return one sentence that says why a state became a pair or not."""
    text = REASONS[reason]
    if reason in ("pair", "too_close", *CONFIRMED):
        members = ", ".join(sorted(reply.teacher for reply in outcome.members))
        near = outcome.student_level
        text = (
            f"{text}: {outcome.n_agree} of {outcome.n_families} families ({members}) within"
            f" {outcome.winner_level.label}, the agent at"
            f" {'no level' if near is Level.NONE else near.label}"
        )
    elif reason in ("no_quorum", "tie"):
        sizes = ", ".join(str(len(cluster)) for cluster in outcome.clusters)
        text = f"{text}: {outcome.n_families} families in groups of {sizes}"
    elif reason == "one_family":
        text = f"{text}: {outcome.voters[0].family}"
    bad = Counter(row["status"] for row in rows if row["status"] != "ok")
    if bad:
        counts = ", ".join(f"{n} {status}" for status, n in sorted(bad.items()))
        text += f" (of {len(rows)} replies, {counts})"
    return text[0].upper() + text[1:] + "."


def _find(lake: Lake, any_id: str) -> tuple[str, str]:
    """Return (pair id or empty, state id)."""
    sql = """
        WITH made AS (
          SELECT DISTINCT pair_id, state_id FROM (
            SELECT pair_id, state_id FROM pairs
            UNION ALL SELECT pair_id, state_id FROM drops WHERE stage = 'pairs'))
        SELECT pair_id, state_id FROM made WHERE starts_with(pair_id, ?)
        UNION ALL
        SELECT coalesce(made.pair_id, ''), states.state_id
        FROM states LEFT JOIN made USING (state_id) WHERE starts_with(states.state_id, ?)
        LIMIT 2
    """
    found = lake.query(sql, [any_id, any_id]) if any_id else []
    if not found:
        raise InputError(f"lake {lake.url} has no pair or state {any_id!r}")
    if len(found) > 1:
        raise InputError(f"id {any_id!r} is ambiguous: several pairs or states begin with it")
    return str(found[0][0]), str(found[0][1])
