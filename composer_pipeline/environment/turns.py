"""A trace as an episode takes it: turns of calls, with the results that were recorded.

Belongs here: which states of a path can be turns, and what a turn holds. Does not belong here:
finding paths in the lake (``environment.recorded``) and grading (``environment.episode``).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat import Builder, short_name
from composer_pipeline.preferences.actions import Level, Situation, level
from composer_pipeline.preferences.agreement import situation_of
from composer_pipeline.preferences.hints import succeeded
from composer_pipeline.trace_states import Message, Path, TraceState

#: The loosest level at which a call is the recorded one: an equal canonical form. What is only of
#: equal effect may have shown something else: overlapping lines, a search counted and not listed.
MATCH = Level.L0
#: The loosest level at which a call is as good as the recorded one, as in evaluation.
EQUAL = Level.L1


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One response of the trace.

    ``wanted`` are the calls that earn the turn's reward, with their names on the wire. ``results``
    are what the recorded ones returned, in the same order; it is empty where teachers agreed on
    something else than what was recorded, for nobody knows what that returns.
    """

    state_id: str
    wanted: tuple[ToolCall, ...]
    results: tuple[str, ...]
    situation: Situation


def turns_of(
    path: Path, first: int, consensus: Mapping[str, Action], student: str = ""
) -> list[Turn]:
    """Return the turns from a state on, up to where the trace cannot be followed any more.

    That is: a response without calls, a result that is missing, words of the user, a place where
    teachers agree on something else (the last turn), and an action that nobody confirms and that
    failed, or that the student itself recorded.

    Args:
        path: the whole path; its states stand in their order.
        first: index of the state to begin with.
        consensus: what teachers agreed on, by state.
        student: the model that is trained, as sessions name it; "" is none of theirs.
    """
    found: list[Turn] = []
    states = path.states[first:]
    for state, later in pairwise([*states, None]):
        assert state is not None
        turn, last = _turn(path.messages, state, consensus.get(state.state_id), student)
        if turn is not None:
            found.append(turn)
        if turn is None or last or later is None or later.n_messages != state.n_messages + 2:
            break
    return found


def _turn(
    messages: Sequence[Message], state: TraceState, agreed: Action | None, student: str
) -> tuple[Turn | None, bool]:
    """Return a state as a turn, and whether the trace ends with it."""
    situation = situation_of(state)
    recorded = _on_wire(state.action)
    if agreed is not None and level(agreed, recorded, situation).level > EQUAL:
        if not agreed.tool_calls:
            return None, True
        wanted = _on_wire(agreed).tool_calls
        turn = Turn(state_id=state.state_id, wanted=wanted, results=(), situation=situation)
        return turn, True
    if agreed is None and (not succeeded(state) or (student and state.model == student)):
        return None, True
    results, told = _results(messages[state.n_messages : state.n_messages + 2])
    if not recorded.tool_calls or len(results) != len(recorded.tool_calls):
        return None, True
    turn = Turn(
        state_id=state.state_id, wanted=recorded.tool_calls, results=results, situation=situation
    )
    return turn, told


def _on_wire(action: Action) -> Action:
    """Return an action's calls with the names that models know the tools by."""
    calls = (ToolCall(short_name(call.name), call.arguments) for call in action.tool_calls)
    return Action("", tuple(calls)) if action.tool_calls else action


def _results(behind: Sequence[Message]) -> tuple[tuple[str, ...], bool]:
    """Return what the calls of a response returned, and whether the user said something then.

    There are none where one is missing.
    """
    if [message["role"] for message in behind] != ["assistant", "user"]:
        return (), False
    builder = Builder()
    builder.assistant(_blocks(behind[0]))
    builder.user(_blocks(behind[1]))
    if builder.flags["synthetic_result"]:
        return (), False
    results = tuple(m["content"] for m in builder.messages if m["role"] == "tool")
    return results, builder.messages[-1]["role"] == "user"


def _blocks(message: Message) -> list[Any]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
