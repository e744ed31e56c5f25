"""Two actions given as JSON, compared: the door of ``compare`` for programs.

Belongs here: reading the two actions and what surrounds them. Does not belong here: the levels
(``preferences.actions.levels``).
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.errors import InputError
from composer_pipeline.preferences.actions import Place, Situation, level, mutates


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
