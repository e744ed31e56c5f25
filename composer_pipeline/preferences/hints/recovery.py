"""What the agent did itself, a little later, where a call had failed.

Belongs here: which later call counts as the recovery of a failed one. Does not belong here:
what the error said (``preferences.hints.from_errors``) and what teachers would have done.

A recovery is the next call of the same path that acts on the same thing and succeeded, at most
``LATER_STATES`` responses behind the failed one. It must show that another *action* would have
worked, not that the world has changed since: the search ends at a message of the user and behind
a response that changes something, and the same call again is none. Failing tests and rejections
have no recovery: there the call was not wrong, or the user said what to do instead.
"""

import posixpath
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, product

from composer_pipeline.actions import PATH_ARGUMENTS, Action, ToolCall
from composer_pipeline.preferences.actions import Place, class_of, mutates, targets
from composer_pipeline.trace_states import Message, TraceState

#: Responses behind the failed one that are looked at.
LATER_STATES = 4
#: Errors that another call could have avoided.
AVOIDABLE = frozenset({"tool_error", "failed_edit", "exit_code", "soft_failure"})
#: Programs that say nothing about what a command line is for.
_COMMON = frozenset({"cd", "echo", "printf", "export", "set", "source", "true", "=", ""})
_REMINDER = "<system-reminder>"


def recoveries(states: Iterable[TraceState], failed_calls: Mapping[str, int]) -> dict[str, Action]:
    """Return state id to the one call that worked later, for the error turns that have one.

    Args:
        states: all states of some days, in any order.
        failed_calls: state id to the index of the failed call; -1 is the whole action.
    """
    chains: dict[str, list[TraceState]] = defaultdict(list)
    for state in states:
        chains[state.chain_id].append(state)
    found: dict[str, Action] = {}
    for chain in chains.values():
        chain.sort(key=lambda state: state.n_messages)
        for i, state in enumerate(chain):
            if state.state_id in failed_calls and state.error_kind in AVOIDABLE:
                call = _failed_call(state.action, failed_calls[state.state_id])
                better = call and _recovery(state, call, chain[i + 1 : i + 2 + LATER_STATES])
                if better:
                    # Its text may speak of the error, which the failed state had not seen.
                    found[state.state_id] = Action("", (better,))
    return found


def _failed_call(action: Action, index: int) -> ToolCall | None:
    calls = action.tool_calls
    if index == -1:
        return calls[0] if len(calls) == 1 else None
    return calls[index] if index < len(calls) else None


def _recovery(failed: TraceState, call: ToolCall, later: Sequence[TraceState]) -> ToolCall | None:
    """Return the first later call that answers to ``call``; the last state only witnesses."""
    place = Place(failed.cwd or "")
    seen = failed.n_messages
    for state, witness in pairwise(later):
        if any(_from_user(message) for message in state.messages[seen:]):
            return None
        seen = state.n_messages
        if succeeded(state):
            answered = _answered(witness.messages[seen:])
            for other in state.action.tool_calls:
                if other.id in answered and _answers_to(other, call, place):
                    return other
        if mutates(state.action):
            return None
    return None


def succeeded(state: TraceState) -> bool:
    """Say whether nothing in the trace speaks against what a state did."""
    bad = state.followed_by_error, state.followed_by_correction, state.interrupted, state.reverted
    return state.error_kind is None and not any(bad) and state.tests_passed is not False


def _from_user(message: Message) -> bool:
    """Say whether a message holds words of the user, and not only results and reminders."""
    if message["role"] != "user":
        return False
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return any(
        block["type"] != "tool_result"
        and not str(block.get("text", "")).lstrip().startswith(_REMINDER)
        for block in blocks
    )


def _answered(messages: Sequence[Message]) -> set[str]:
    blocks = (b for m in messages if not isinstance(m["content"], str) for b in m["content"])
    return {b["tool_use_id"] for b in blocks if b["type"] == "tool_result"}


def _answers_to(other: ToolCall, failed: ToolCall, place: Place) -> bool:
    """Say whether ``other`` is another attempt at what ``failed`` was for."""
    if (other.name, other.arguments) == (failed.name, failed.arguments):
        return False
    kind, wanted = class_of(other.name), class_of(failed.name)
    if "run" in (kind, wanted):
        return kind == wanted and _same_purpose(_stages(other, place), _stages(failed, place)[-1:])
    if (kind == "edit") != (wanted == "edit"):
        return False
    files, before = _files(other), _files(failed)
    if files or before:
        return bool(files & before)
    return other.name == failed.name


def _files(call: ToolCall) -> set[str]:
    """Return the base names of the files of a call: a wrong folder is a common mistake."""
    values = (call.arguments.get(key) for key in PATH_ARGUMENTS)
    return {posixpath.basename(v.rstrip("/")) for v in values if isinstance(v, str)} - {""}


def _stages(call: ToolCall, place: Place) -> list[tuple[str, ...]]:
    """Return (program, subcommand, operands…) of the stages of a command line that say much."""
    command = call.arguments.get("command")
    if not isinstance(command, str):
        return []
    return [found for found in targets(command, place) if found[0] not in _COMMON]


def _same_purpose(stages: Sequence[tuple[str, ...]], wanted: Sequence[tuple[str, ...]]) -> bool:
    """Say whether a stage does what the last one of the failed line was to do.

    That is the same program and subcommand on a common operand, or on none; or another program
    on a common file.
    """
    for (program, sub, *operands), (name, verb, *before) in product(stages, wanted):
        common = set(operands) & set(before)
        if (program, sub) == (name, verb) and (common or not operands or not before):
            return True
        if any("/" in word or "." in word.strip("./") for word in common):
            return True
    return False
