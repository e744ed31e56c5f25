"""What the trace alone says about a state: is its question worth asking?

Belongs here: features that cost nothing (what followed, what the action is), the value that
orders states, and the rules for states that are not asked. Does not belong here: which
teacher is asked next (``replay.selection.curtailed``).

A state is worth more where the trace shows that the action went wrong: there a better action
is likely, and with it a preference pair. The weights order states; they are no probabilities
and nobody fitted them.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from composer_pipeline.actions import ToolCall
from composer_pipeline.replay.teachers import SkipRule
from composer_pipeline.trace_states import TraceState

#: What each feature adds to a state's value.
WEIGHTS: Mapping[str, float] = {
    "corrected": 4.0,
    "reverted": 4.0,
    "failed": 3.0,
    "tests_failed": 3.0,
    "interrupted": 2.0,
    "repeated": 2.0,
    "edits": 1.0,
}
#: Features that say that the action went wrong; no rule skips such a state.
TROUBLE = frozenset({"corrected", "reverted", "failed", "tests_failed", "interrupted"})

_TODO_TOOLS = frozenset({"TodoWrite", "TaskCreate", "TaskUpdate"})
_EDIT_TOOLS = frozenset({"Edit", "MultiEdit", "Write", "NotebookEdit"})
#: A text of at most so many characters that asks nothing is a confirmation.
_CONFIRMATION_CHARS = 200
#: How far back a call counts as a repetition, in messages.
_REPEAT_WINDOW = 40


def features(state: TraceState) -> frozenset[str]:
    """Return the names of a state's features; see :data:`WEIGHTS`."""
    kind = state.error_kind or ""
    found = {
        "corrected": bool(state.followed_by_correction)
        or kind in ("user_rejection", "user_correction"),
        "reverted": bool(state.reverted),
        "failed": bool(state.followed_by_error) or bool(kind),
        "tests_failed": state.tests_passed is False or kind == "failing_tests",
        "interrupted": bool(state.interrupted),
        "repeated": _repeats(state),
        "edits": any(call.name in _EDIT_TOOLS for call in state.action.tool_calls),
    }
    return frozenset(name for name, holds in found.items() if holds)


def value(found: Iterable[str]) -> float:
    """Return what asking about a state with these features is worth; higher is earlier."""
    return sum(WEIGHTS[name] for name in found)


def skips(states: Sequence[TraceState], rules: Iterable[SkipRule]) -> dict[str, SkipRule]:
    """Return the states that the rules leave out, with the rule.

    Args:
        states: in the order in which near-duplicates count: the first is kept.
        rules: ``todo``: only to-do lists. ``named_read``: the first Read of a file that the
            user's last words name. ``confirmation``: a short text that asks nothing.
            ``near_duplicate``: equal action and equal last message, numbers and ids aside.

    Returns:
        ``state_id`` -> rule. A state whose action went wrong is never in it.
    """
    wanted = frozenset(rules)
    if not wanted:  # and no message of a large lake is read for it
        return {}
    found: dict[str, SkipRule] = {}
    seen: set[bytes] = set()
    for state in states:
        rule = _rule(state, wanted)
        if rule is None and "near_duplicate" in wanted:
            digest = _tail(state)
            rule = "near_duplicate" if digest in seen else None
            seen.add(digest)
        if rule is not None and not features(state) & TROUBLE:
            found[state.state_id] = rule
    return found


def _rule(state: TraceState, wanted: frozenset[SkipRule]) -> SkipRule | None:
    calls = state.action.tool_calls
    if not calls:
        text = state.action.text
        short = len(text) <= _CONFIRMATION_CHARS and "?" not in text
        return "confirmation" if "confirmation" in wanted and short else None
    if "todo" in wanted and all(call.name in _TODO_TOOLS for call in calls):
        return "todo"
    if "named_read" in wanted and len(calls) == 1 and _reads_a_named_file(state, calls[0]):
        return "named_read"
    return None


def _reads_a_named_file(state: TraceState, call: ToolCall) -> bool:
    path = call.arguments.get("file_path")
    if call.name != "Read" or not isinstance(path, str) or not path:
        return False
    name = path.rsplit("/", 1)[-1]
    for message in reversed(state.messages):
        for block in _blocks(message):
            if block.get("type") == "tool_use":
                given = block.get("input")
                if isinstance(given, dict) and given.get("file_path") == path:
                    return False
        if message.get("role") == "user" and (text := _human_text(message)):
            return name in text
    return False


def _repeats(state: TraceState) -> bool:
    """Say whether a call was made before, with equal arguments."""
    mine = {(call.name, orjson.dumps(call.arguments)) for call in state.action.tool_calls}
    if not mine:
        return False
    names = {name for name, _ in mine}
    for message in state.messages[-_REPEAT_WINDOW:]:
        for block in _blocks(message):
            if block.get("type") != "tool_use" or block.get("name") not in names:
                continue
            if (block["name"], orjson.dumps(block.get("input"))) in mine:
                return True
    return False


def _tail(state: TraceState) -> bytes:
    """Hash the action and the last message, so that equal situations collide."""
    calls = [(call.name, call.arguments) for call in state.action.tool_calls]
    last = [
        {k: v for k, v in block.items() if k not in ("id", "tool_use_id")}
        for message in state.messages[-1:]
        for block in _blocks(message)
    ]
    text = orjson.dumps([state.action.text if not calls else "", calls, last])
    # Times, line numbers and process ids differ between situations that are the same.
    digits = bytes.maketrans(b"0123456789", b"0000000000")
    return hashlib.blake2b(text.translate(digits), digest_size=16).digest()


def _human_text(message: Mapping[str, Any]) -> str:
    return "\n".join(
        str(block.get("text", "")) for block in _blocks(message) if block.get("type") == "text"
    )


def _blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content or [] if isinstance(block, dict)]
