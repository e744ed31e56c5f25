"""One row of the table ``votes`` for each state: who answered, how far apart, and the outcome.

A row has *raters*: the agent first, then each teacher with a usable reply, by name. Columns of
raters are aligned with them; ``levels`` has the level of each two, (0, 1), (0, 2) … (1, 2) …
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import msgspec

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.errors import InputError
from composer_pipeline.preferences.actions.canonical import Level, canonical, mutates
from composer_pipeline.preferences.actions.levels import ActionContext, level
from composer_pipeline.preferences.actions.shell_parse import Place
from composer_pipeline.preferences.eligibility import Reply, is_usable, reply_age
from composer_pipeline.preferences.vote import Vote, context_of
from composer_pipeline.states.state import TraceState
from composer_pipeline.teachers.value import features

AGENT = "agent"

#: Why a state did or did not become a pair, in the order in which this is decided.
REASONS: dict[str, str] = {
    "no_reply": "no teacher was asked about it",
    "no_usable_reply": "no reply to it was usable",
    "no_voter": "only controls or the agent's own family answered, and they do not vote",
    "one_family": "only one family of teachers gave a usable reply",
    "no_quorum": "no two families agreed with each other",
    "tie": "two groups of families of the same size disagreed",
    "same_meaning": "the teachers agreed, and to the paid judge the agent's action means the same",
    "style": "the teachers did the agent's action on the same target in another way",
    "agrees_with_student": "the teachers agreed with the agent",
    "too_close": "the teachers agreed only loosely, and the agent's action is of the same class",
    "pair": "the teachers agreed with each other against the agent",
}

#: The reasons of states whose teachers agree with each other and with the agent.
CONFIRMED = frozenset({"agrees_with_student", "style", "same_meaning"})


def reason_of(outcome: Vote, n_replies: int) -> str:
    """Return the key of :data:`REASONS` for a vote on a state with ``n_replies`` replies."""
    if outcome.is_pair:
        return "pair"
    if not outcome.n_usable:
        return "no_usable_reply" if n_replies else "no_reply"
    if outcome.n_families < 2:
        return "one_family" if outcome.n_families else "no_voter"
    if outcome.winner_action is None:
        return "tie" if len(outcome.clusters[0]) > 1 else "no_quorum"
    if outcome.student_level is Level.L3:
        return "same_meaning"
    if outcome.tier == "style":
        return "style"
    return "agrees_with_student" if outcome.agrees_with_student else "too_close"


def vote_figures(outcome: Vote) -> dict[str, Any]:
    """Return the counts of a vote, as the table ``votes`` and ``explain`` name them."""
    return {
        "n_usable": outcome.n_usable,
        "n_families": outcome.n_families,
        "n_agree": outcome.n_agree,
        "winner_level": outcome.winner_level.label,
        "student_level": outcome.student_level.label,
        "margin": outcome.margin,
        "entropy": outcome.entropy,
        "mutating": outcome.mutating,
    }


def vote_row(
    state: TraceState, rows: Sequence[Mapping[str, Any]], replies: Sequence[Reply], outcome: Vote
) -> dict[str, Any]:
    """Return the row of the table ``votes`` for a state.

    ``rows`` are those of the table ``replies`` for the state, ``replies`` the usable ones.
    """
    excluded = {out.reply.teacher for out in outcome.excluded}
    controls = {reply.teacher for reply in outcome.controls}
    raters: list[tuple[str, str, Action]] = [
        (AGENT, "", state.action),
        *(
            (r.teacher, r.family, r.action)
            for r in sorted(replies, key=lambda r: r.teacher)
            if r.teacher not in excluded
        ),
    ]
    context = context_of(state) if replies else ActionContext()
    labels = _cluster_labels(outcome, context)
    near = dict(outcome.to_student)
    unusable = [
        f"{row['teacher']}: {row['status']}: {row['detail'] or 'no reason is recorded'}"
        for row in sorted(rows, key=lambda row: (row["teacher"], reply_age(row)))
        if not is_usable(row)
    ]
    return {
        "state_id": state.state_id,
        "session_id": state.session_id,
        "reason": reason_of(outcome, len(rows)),
        "tier": outcome.tier,
        "tool": first_tool(state.action),
        "n_replies": len(rows),
        **vote_figures(outcome),
        "raters": [name for name, _, _ in raters],
        "families": [family for _, family, _ in raters],
        "controls": [name in controls for name, _, _ in raters],
        "mutates": [mutates(action) for _, _, action in raters],
        "labels": [labels.get(name) for name, _, _ in raters],
        # The vote has compared the agent with voters and controls already, with its judge.
        "levels": [
            int(near[name] if not i and name in near else level(a, b, context).level)
            for (i, (_, _, a)), (_, (name, _, b)) in combinations(enumerate(raters), 2)
        ],
        "winners": sorted(reply.teacher for reply in outcome.members),
        "unusable": [
            *unusable,
            *(f"{e.reply.teacher}: {e.kind}: {e.detail}" for e in outcome.excluded),
        ],
        "cost_picodollars": sum(row["cost_picodollars"] or 0 for row in rows),
        "simulated": any(reply.simulated for reply in replies),
        "windowed": any(reply.windowed for reply in replies),
        "features": sorted(features(state)),
    }


def first_tool(action: Action) -> str:
    """Return the name of the first tool of an action, or ``text``."""
    return action.tool_calls[0].name if action.tool_calls else "text"


def _cluster_labels(outcome: Vote, context: ActionContext) -> dict[str, str]:
    """Return teacher to a hash of its cluster's smallest canonical form, for the voters.

    The same action has the same label at every state, so that chance agreement shows.
    """
    action_of = {reply.teacher: reply.action for reply in outcome.voters}
    labels: dict[str, str] = {}
    for cluster in outcome.clusters:
        form = min(canonical(action_of[teacher], context.place) for teacher in cluster)
        name = hashlib.blake2b(form.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        labels |= dict.fromkeys(cluster, name)
    return labels


def level_of(row: Mapping[str, Any], first: int, second: int) -> Level:
    """Return the level of two raters of a row, by their positions."""
    size = len(row["raters"])
    low, high = sorted((first, second))
    return Level(row["levels"][low * size - low * (low + 1) // 2 + high - low - 1])


class _CallIn(msgspec.Struct):
    name: str
    arguments: dict[str, Any]
    id: str = ""


class _ActionIn(msgspec.Struct):
    text: str | None = ""
    tool_calls: list[_CallIn] | None = None


def compare(line: Mapping[str, Any]) -> dict[str, Any]:
    """Compare two actions given as JSON.

    Args:
        line: ``{a, b, cwd, home, context}``; ``a`` and ``b`` are ``{text, tool_calls:
            [{name, arguments}]}``, ``context`` maps absolute paths to known content.

    Returns:
        ``{level, mutating, why}``.

    Raises:
        InputError: a field is missing, unknown or of the wrong type.
    """
    if unknown := set(line) - {"a", "b", "cwd", "home", "context"}:
        raise InputError(f"compare: unknown field {sorted(unknown)[0]!r}")
    a, b = (_action(line, side) for side in ("a", "b"))
    for key in ("cwd", "home"):
        if not isinstance(line.get(key) or "", str):
            raise InputError(f"compare: field {key!r} must be text or null")
    known = line.get("context") or {}
    if not isinstance(known, Mapping) or not all(isinstance(v, str) for v in known.values()):
        raise InputError("compare: field 'context' must map paths to text, or be null")
    place = Place(line.get("cwd") or "", line.get("home") or "")
    found = level(a, b, ActionContext(place, known))
    return {"level": found.level.label, "mutating": mutates(a) or mutates(b), "why": found.why}


def _action(line: Mapping[str, Any], side: str) -> Action:
    if side not in line:
        raise InputError(f"compare: field {side!r} is missing")
    try:
        action = msgspec.convert(line[side], _ActionIn)
    except msgspec.ValidationError as error:
        raise InputError(f"compare: field {side!r} is not an action: {error}") from error
    calls = tuple(ToolCall(c.name, c.arguments, c.id) for c in action.tool_calls or ())
    return Action(action.text or "", calls)
