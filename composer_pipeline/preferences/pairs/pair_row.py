"""A vote that makes a pair, as a row of the table ``pairs``.

Does not belong here: which rows stay (``preferences.pairs.filters``).
"""

import hashlib
import json
from typing import Any

from composer_pipeline.actions import Action
from composer_pipeline.chat import Toolset, action_message, to_chat
from composer_pipeline.preferences.actions import Place, canonical
from composer_pipeline.preferences.agreement import Vote, home_of, loosest_terms
from composer_pipeline.preferences.pairs.filters import hindsight
from composer_pipeline.preferences.rules import Hindsight
from composer_pipeline.trace_states import TraceState

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
