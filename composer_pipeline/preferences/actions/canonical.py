"""Actions without what does not matter: defaults, cosmetics, spelling of paths.

Belongs here: the canonical form of a tool call and of an action. Does not belong here: its
arguments (``preferences.actions.canonical_arguments``), how close two forms are
(``preferences.actions.levels``), what a call changes (``preferences.actions.mutation``) and how
shell lines are read (``preferences.actions.shell.lines``).
"""

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.preferences.actions.canonical_arguments import canonical_args
from composer_pipeline.preferences.actions.shell.lines import Place
from composer_pipeline.preferences.actions.text_kinds import whole_text
from composer_pipeline.preferences.actions.tool_classes import (
    class_of,
    tool_name,
)


@dataclass(frozen=True)
class CanonicalCall:
    """A tool call with its canonical arguments and form (JSON with sorted keys)."""

    call: ToolCall
    name: str
    kind: str
    args: dict[str, Any]
    form: str


@dataclass(frozen=True)
class CanonicalAction:
    """An action read once: its calls, and the form of all of it."""

    action: Action
    calls: tuple[CanonicalCall, ...]
    form: str


def read_call(call: ToolCall, place: Place) -> CanonicalCall:
    """Return a call with its canonical arguments and form."""
    name = tool_name(call.name)
    args = canonical_args(call, place)
    return CanonicalCall(call, name, class_of(name), args, _dump([name, args]))


def read_action(action: Action, place: Place) -> CanonicalAction:
    """Return an action with its calls read once; the form of calls is a multiset."""
    if not action.tool_calls:
        return CanonicalAction(action, (), _dump({"text": whole_text(action.text).strip()}))
    calls = tuple(read_call(call, place) for call in action.tool_calls)
    if len(calls) == 1:
        return CanonicalAction(action, calls, _dump([calls[0].form]))
    return CanonicalAction(action, calls, _dump(sorted(call.form for call in calls)))


def canonical(action: Action, place: Place) -> str:
    """Return the canonical form of an action: its calls as a multiset, or its text."""
    return read_action(action, place).form


_ENCODER = msgspec.json.Encoder(order="sorted", enc_hook=str)


def _dump(value: Any) -> str:
    try:
        return _ENCODER.encode(value).decode()
    except UnicodeEncodeError:  # a lone surrogate, which recorded text can hold
        return json.dumps(
            value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str
        )
