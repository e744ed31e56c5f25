"""What an explanation says of every reply to a state.

Does not belong here: the state and its pair (``preferences.pairs.explain``).
"""

from collections.abc import Sequence
from typing import Any

from composer_pipeline.actions import Action
from composer_pipeline.lake import Lake
from composer_pipeline.money import to_usd
from composer_pipeline.preferences.actions import Level, Semantic, Situation, level
from composer_pipeline.preferences.agreement import Reply, Vote, level_of, situation_of
from composer_pipeline.preferences.pairs.replies import reply_age
from composer_pipeline.trace_states import TraceState


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
