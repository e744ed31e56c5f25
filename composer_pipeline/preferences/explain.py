"""Why a state became a pair, or why it did not: every reply, its level, its cost.

Belongs here: collecting an explanation from the lake (:func:`explain`). Does not belong here:
how it looks on a terminal (``cli.views.pair``). The vote is taken again from the
replies, so that an explanation is of what the code decides now.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from composer_pipeline.actions import Action
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.money import to_usd
from composer_pipeline.preferences.actions.canonical import Level
from composer_pipeline.preferences.actions.levels import Semantic, Situation, level
from composer_pipeline.preferences.eligibility import Reply
from composer_pipeline.preferences.pairs import REPLY_COLUMNS, reply_age, usable_of
from composer_pipeline.preferences.vote import Vote, situation_of, vote
from composer_pipeline.preferences.vote_rows import (
    CONFIRMED,
    REASONS,
    level_of,
    reason_of,
    vote_figures,
)
from composer_pipeline.states.load import load_state
from composer_pipeline.states.state import TraceState


def replies_told(
    state: TraceState,
    rows: list[dict[str, Any]],
    replies: list[Reply],
    outcome: Vote,
    semantic: Semantic | None,
) -> list[dict[str, Any]]:
    """Return one entry a reply, by teacher; see :func:`~.explain.explain`."""
    situation = situation_of(state) if replies else Situation()
    cluster_of = {
        teacher: number
        for number, cluster in enumerate(outcome.clusters, start=1)
        for teacher in cluster
    }
    winners = {reply.teacher for reply in outcome.members}
    controls = {reply.teacher for reply in outcome.controls}
    excluded = {reply.teacher: reply for reply in outcome.excluded}
    used = {reply.teacher: reply for reply in replies}
    newest = {
        row["teacher"]: row["request_hash"]
        for row in sorted(rows, key=reply_age)
        if row["status"] == "ok" and row["action"] is not None
    }
    found = []
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
        reply = used.get(name)
        if row["status"] != "ok" or row["action"] is None or reply is None:
            detail = row["detail"] or "no reason is recorded"
            found.append({**entry, "usable": False, "status": row["status"], "detail": detail})
            continue
        if row["request_hash"] != newest[name]:
            older = "a newer reply of this teacher counts"
            found.append({**entry, "usable": False, "status": "older", "detail": older})
            continue
        if name in excluded:
            kept_out = {"status": excluded[name].kind, "detail": excluded[name].detail}
            found.append({**entry, "usable": False, **kept_out})
            continue
        entry |= {
            "usable": True,
            "votes": name in cluster_of,
            "cluster": cluster_of.get(name),
            "wins": name in winners,
            "spokesman": outcome.winner is not None and outcome.winner.teacher == name,
            "action": action_json(reply.action),
            "level_to_agent": _verdict(reply.action, state.action, situation, semantic),
            "level_to_winner": (
                _verdict(reply.action, outcome.winner_action, situation)
                if outcome.winner_action
                else None
            ),
        }
        found.append(entry)
    return found


def action_json(action: Action) -> dict[str, Any]:
    """Return an action as JSON-able facts."""
    calls = [{"name": call.name, "arguments": call.arguments} for call in action.tool_calls]
    return {"text": action.text, "tool_calls": calls}


def recorded_verdicts(lake: Lake, state: TraceState, replies: Sequence[Reply]) -> Semantic | None:
    """Return the judge's verdicts as the row of ``votes`` has them; nobody is asked again."""
    rows = [
        row for row in lake.rows("votes", days=[state.day]) if row["state_id"] == state.state_id
    ]
    same = {
        name
        for row in rows
        for place, name in enumerate(row["raters"])
        if place and level_of(row, 0, place) is Level.L3
    }
    forms = {reply.action.to_json() for reply in replies if reply.teacher in same}
    return (lambda a, b: bool({a.to_json(), b.to_json()} & forms)) if forms else None


def _verdict(
    a: Action, b: Action, situation: Situation, semantic: Semantic | None = None
) -> dict[str, str]:
    found = level(a, b, situation, semantic=semantic)
    return {"level": found.level.label, "why": found.why}


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
        ``agent`` and ``chosen`` are actions, ``teachers`` has one entry a reply (``usable``
        false with ``status`` and ``detail``; else its ``action``, ``family``, ``cluster``
        counted from 1 or ``None`` where it has no vote, ``level_to_agent`` and
        ``level_to_winner`` with a reason each, ``cost_usd``), ``fate`` what each later stage
        did with the pair.

    Raises:
        InputError: no pair or state has this id, or several do.
    """
    pair_id, state_id = _find(lake, any_id)
    state = load_state(lake, state_id)
    rows = [
        row
        for row in lake.rows("replies", days=[state.day], columns=REPLY_COLUMNS)
        if row["state_id"] == state_id
    ]
    replies = usable_of(rows).get(state_id, [])
    semantic = recorded_verdicts(lake, state, replies)
    outcome = vote(state, replies, semantic=semantic)
    reason = reason_of(outcome, len(rows))
    fate = _fate(lake, state, pair_id)
    return {
        "pair_id": pair_id or None,
        "state_id": state_id,
        "session_id": state.session_id,
        "day": state.day,
        "project": state.project,
        "turn": state.turn,
        "reason": reason,
        "why": why(outcome, reason, rows),
        "tier": outcome.tier,
        "rule": _TIERS[outcome.tier],
        "n_replies": len(rows),
        **vote_figures(outcome),
        "cost_usd": to_usd(sum(row["cost_picodollars"] or 0 for row in rows)),
        "agent": {"model": state.model, **action_json(state.action)},
        "chosen": action_json(outcome.winner_action) if outcome.winner_action else None,
        "teachers": replies_told(state, rows, replies, outcome, semantic),
        "error_kind": state.error_kind,
        "hint": state.hint,
        "fate": fate,
    }


def why(outcome: Vote, reason: str, rows: list[dict[str, Any]]) -> str:
    """Return one sentence that says why a state became a pair or not."""
    text = REASONS[reason]
    if reason in ("pair", "too_close", *CONFIRMED):
        members = ", ".join(sorted(reply.teacher for reply in outcome.members))
        text = (
            f"{text}: {outcome.n_agree} of {outcome.n_families} families ({members}) within"
            f" {outcome.winner_level.label}, the agent at {_level_name(outcome.student_level)}"
        )
    elif reason in ("no_quorum", "tie"):
        sizes = sorted((len(cluster) for cluster in outcome.clusters), reverse=True)
        text = f"{text}: {outcome.n_families} families in groups of {', '.join(map(str, sizes))}"
    elif reason == "one_family":
        text = f"{text}: {outcome.voters[0].family}"
    bad = Counter(row["status"] for row in rows if row["status"] != "ok")
    if bad:
        counts = ", ".join(f"{n} {status}" for status, n in sorted(bad.items()))
        text += f" (of {len(rows)} replies, {counts})"
    return text[0].upper() + text[1:] + "."


def _find(lake: Lake, any_id: str) -> tuple[str, str]:
    """Return (pair id or empty, state id)."""
    if not any_id:
        raise InputError(f"lake {lake.url} has no pair or state {any_id!r}")
    made = """
        SELECT DISTINCT pair_id, state_id FROM (
          SELECT pair_id, state_id FROM pairs
          UNION ALL SELECT pair_id, state_id FROM drops WHERE stage = 'pairs')
    """
    sql = f"""
        WITH made AS ({made})
        SELECT pair_id, state_id FROM made WHERE starts_with(pair_id, ?)
        UNION ALL
        SELECT coalesce(made.pair_id, ''), states.state_id
        FROM states LEFT JOIN made USING (state_id) WHERE starts_with(states.state_id, ?)
        LIMIT 2
    """
    found = lake.query(sql, [any_id, any_id])
    if not found:
        raise InputError(f"lake {lake.url} has no pair or state {any_id!r}")
    if len(found) > 1:
        raise InputError(f"id {any_id!r} is ambiguous: several pairs or states begin with it")
    return str(found[0][0]), str(found[0][1])


def _fate(lake: Lake, state: TraceState, pair_id: str) -> dict[str, str]:
    """Return stage to what it did with the pair; stages that have not run are left out."""
    if not pair_id:
        return {}
    fate: dict[str, str] = {}
    for row in lake.rows("pairs", days=[state.day], columns=["pair_id", "weight", "weight_reason"]):
        if row["pair_id"] == pair_id:
            because = f" ({row['weight_reason']})" if row["weight_reason"] else ""
            fate["pairs"] = f"kept, weight {row['weight']:g}{because}"
    tables = (("normalize", "normalized_pairs"), ("dataset", "dataset_pairs"))
    for stage, table in tables:
        days = {"days": [state.day]} if table == "normalized_pairs" else {}
        for row in lake.rows(table, columns=["pair_id"], **days):
            if row["pair_id"] == pair_id:
                fate[stage] = f"kept, split {row['split']}" if "split" in row else "kept"
    for row in lake.rows("drops", days=[state.day]):
        if row["pair_id"] == pair_id:
            number = f", {row['stat']} {row['value']}" if row["stat"] else ""
            bound = f" (bound {row['bound']})" if row["bound"] else ""
            fate[row["stage"]] = f"dropped by {row['op']} on {row['field']}{number}{bound}"
    return fate


def _level_name(found: Level) -> str:
    return "no level" if found is Level.NONE else found.label
