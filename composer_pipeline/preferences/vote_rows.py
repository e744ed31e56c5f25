"""One row for each state: who answered, how far apart the answers are, and what came of it.

Belongs here: the row of the table ``votes``, and the one reason for which a state became a
pair or not. Does not belong here: the vote itself (``preferences.agreement.vote``) and statistics
over rows (``preferences.quality.statistics``).

A row has *raters*: the agent first, then each teacher with a usable reply, by name. The
columns that speak of raters are aligned with them; ``levels`` has the level of each two,
(0, 1), (0, 2) … (1, 2) …, as numbers of
:class:`~composer_pipeline.preferences.actions.canonical.Level`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import msgspec

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.errors import InputError
from composer_pipeline.preferences.actions.canonical import Level, canonical, mutates
from composer_pipeline.preferences.actions.levels import Situation, level
from composer_pipeline.preferences.actions.shell_parse import Place
from composer_pipeline.preferences.eligibility import Reply
from composer_pipeline.preferences.vote import Vote, situation_of
from composer_pipeline.states.state import TraceState

AGENT = "agent"

#: Why a state did or did not become a pair, in the order in which they are decided.
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
    """Return the key of :data:`REASONS` that says what came of a vote.

    Args:
        outcome: the vote.
        n_replies: replies to the state, usable or not.
    """
    if outcome.is_pair:
        return "pair"
    if not outcome.n_usable:
        return "no_usable_reply" if n_replies else "no_reply"
    if outcome.n_families < 2:
        return "one_family" if outcome.n_families else "no_voter"
    if outcome.winner_action is None:
        sizes = sorted((len(cluster) for cluster in outcome.clusters), reverse=True)
        return "tie" if sizes[0] > 1 else "no_quorum"
    if outcome.student_level is Level.L3:
        return "same_meaning"
    if outcome.tier == "style":
        return "style"
    return "agrees_with_student" if outcome.agrees_with_student else "too_close"


def vote_figures(outcome: Vote) -> dict[str, Any]:
    """Return what a vote counted, as the table ``votes`` and ``explain`` name it."""
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


def ballot_row(
    state: TraceState,
    replies: Sequence[Reply],
    outcome: Vote,
    *,
    n_replies: int,
    unusable: Sequence[str] = (),
    cost: int = 0,
) -> dict[str, Any]:
    """Return the row of the table ``votes`` for a state.

    Args:
        state: the state.
        replies: its usable replies.
        outcome: their vote.
        n_replies: replies, usable or not.
        unusable: ``teacher: status: why`` of the others.
        cost: billed cost of all replies, picodollars.
    """
    out = {reply.teacher for reply in outcome.excluded}
    controls = {reply.teacher for reply in outcome.controls}
    raters: list[tuple[str, str, Action]] = [
        (AGENT, "", state.action),
        *(
            (r.teacher, r.family, r.action)
            for r in sorted(replies, key=lambda r: r.teacher)
            if r.teacher not in out
        ),
    ]
    situation = situation_of(state) if replies else Situation()
    labels = cluster_labels(outcome, situation)
    return {
        "state_id": state.state_id,
        "session_id": state.session_id,
        "reason": reason_of(outcome, n_replies),
        "tier": outcome.tier,
        "tool": state.action.tool_calls[0].name if state.action.tool_calls else "text",
        "n_replies": n_replies,
        **vote_figures(outcome),
        "raters": [name for name, _, _ in raters],
        "families": [family for _, family, _ in raters],
        "controls": [name in controls for name, _, _ in raters],
        "mutates": [mutates(action) for _, _, action in raters],
        "labels": [labels.get(name) for name, _, _ in raters],
        "levels": _levels(raters, situation, dict(outcome.to_student)),
        "winners": sorted(reply.teacher for reply in outcome.members),
        "unusable": [*unusable, *(f"{e.teacher}: {e.kind}: {e.detail}" for e in outcome.excluded)],
        "cost_picodollars": cost,
        "simulated": any(reply.simulated for reply in replies),
    }


def cluster_labels(outcome: Vote, situation: Situation) -> dict[str, str]:
    """Return teacher to a name of its cluster's action, for the teachers that voted.

    The name is a hash of the cluster's smallest canonical form, so that the same action has
    the same name at every state: agreement on what everybody always does is then visible as
    agreement by chance.
    """
    action_of = {reply.teacher: reply.action for reply in outcome.voters}
    labels: dict[str, str] = {}
    for cluster in outcome.clusters:
        form = min(canonical(action_of[teacher], situation.place) for teacher in cluster)
        name = hashlib.blake2b(form.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        labels |= dict.fromkeys(cluster, name)
    return labels


def level_of(row: Mapping[str, Any], first: int, second: int) -> Level:
    """Return the level of two raters of a row, by their positions."""
    size = len(row["raters"])
    low, high = sorted((first, second))
    return Level(row["levels"][low * size - low * (low + 1) // 2 + high - low - 1])


def _levels(
    raters: Sequence[tuple[str, str, Action]], situation: Situation, near: Mapping[str, Level]
) -> list[int]:
    """Return the level of each two raters; ``near`` has those that the vote found to the agent."""
    return [
        int(near[second] if not i and second in near else level(a, b, situation).level)
        for (i, (_, _, a)), (_, (second, _, b)) in combinations(enumerate(raters), 2)
    ]


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
    context = line.get("context") or {}
    if not isinstance(context, Mapping) or not all(isinstance(v, str) for v in context.values()):
        raise InputError("compare: field 'context' must map paths to text, or be null")
    place = Place(line.get("cwd") or "", line.get("home") or "")
    verdict = level(a, b, Situation(place, context))
    return {
        "level": verdict.level.label,
        "mutating": mutates(a) or mutates(b),
        "why": verdict.why,
    }


def _action(line: Mapping[str, Any], side: str) -> Action:
    if side not in line:
        raise InputError(f"compare: field {side!r} is missing")
    try:
        action = msgspec.convert(line[side], _ActionIn)
    except msgspec.ValidationError as error:
        raise InputError(f"compare: field {side!r} is not an action: {error}") from error
    calls = tuple(ToolCall(c.name, c.arguments, c.id) for c in action.tool_calls or ())
    return Action(action.text or "", calls)


class _CallIn(msgspec.Struct):
    name: str
    arguments: dict[str, Any]
    id: str = ""


class _ActionIn(msgspec.Struct):
    text: str | None = ""
    tool_calls: list[_CallIn] | None = None
