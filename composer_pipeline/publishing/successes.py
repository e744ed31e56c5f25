"""The agent's own actions that are worth repeating, at states that no teacher decided.

Belongs here: which states these are, and how many. Does not belong here: what a trace says about
an action (``preferences.hints.succeeded``) and rows of tables (``publishing.dataset``).

They keep a model from unlearning what it did right where votes are few or wrong. Long sessions
would crowd out short ones, and sessions nobody asked about the votes; hence two limits.
"""

from collections.abc import Collection, Iterable
from itertools import groupby, islice

from composer_pipeline.preferences.hints import succeeded
from composer_pipeline.trace_states import TraceState, draw

#: Rows of one session.
PER_SESSION = 8


def own_successes(states: Iterable[TraceState], decided: Collection[str]) -> list[TraceState]:
    """Return states whose action worked, at most :data:`PER_SESSION` of each session.

    Only actions with a tool call: of a text nothing says that it was right.

    Args:
        states: all states of a day.
        decided: ids of states with a consensus.
    """
    found = [
        state
        for state in states
        if state.action.tool_calls and state.state_id not in decided and succeeded(state)
    ]
    found.sort(key=lambda state: (state.session_id, draw(state.state_id)))
    by_session = groupby(found, key=lambda state: state.session_id)
    return [state for _, own in by_session for state in islice(own, PER_SESSION)]


def at_most(state_ids: Iterable[str], limit: int) -> set[str]:
    """Return at most ``limit`` of some states, chosen by a hash of their ids."""
    return {state_id for _, state_id in sorted(map(draw, state_ids))[:limit]}
