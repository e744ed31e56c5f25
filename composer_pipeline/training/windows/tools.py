"""Tool schemas under a budget.

Belongs here: shortening schemas. Does not belong here: shortening messages
(``training.windows.policy``).
"""

import json
from collections.abc import Sequence
from typing import Any

from composer_pipeline.training.windows.messages import Message, calls_of
from composer_pipeline.training.windows.texts import Texts


def offered_tools(
    texts: Texts, tools: Sequence[Any], messages: Sequence[Message], budget: int
) -> list[Any]:
    """Return all tools as fully as the budget allows; a budget of 0 is none.

    Whole schemas, then argument names and types, then names alone, then as many as fit: those
    used last in ``messages`` first, so that nothing depends on the action to come.

    Args:
        texts: counts tokens.
        tools: schemas in chat form.
        messages: plain messages of the prompt.
        budget: tokens of all schemas together.
    """
    if budget == 0:
        return []
    for offer in (
        [_whole(t) for t in tools],
        [_slim(t) for t in tools],
        [_slim(t, bare=True) for t in tools],
    ):
        if sum(texts.count(json.dumps(tool)) for tool in offer) <= budget:
            return offer
    used = {name: at for at, message in enumerate(messages) for name, _ in calls_of(message)}
    order = sorted(tools, key=lambda tool: -used.get(_name(tool), -1))
    kept: set[str] = set()
    for tool in order:
        budget -= texts.count(json.dumps(_slim(tool, bare=True)))
        if budget < 0:
            break
        kept.add(_name(tool))
    return [_slim(tool, bare=True) for tool in tools if _name(tool) in kept]


def _name(tool: Any) -> str:
    return str(tool.get("function", tool).get("name"))


def _slim(tool: Any, *, bare: bool = False) -> Any:
    """Return a tool schema with argument names and types only, or with its name only."""
    given = {} if bare else tool.get("function", tool).get("parameters") or {}
    properties = {
        key: {"type": value.get("type", "string") if isinstance(value, dict) else "string"}
        for key, value in (given.get("properties") or {}).items()
    }
    return _whole({"name": _name(tool), "parameters": {"type": "object", "properties": properties}})


def _whole(tool: Any) -> dict[str, Any]:
    """Return a schema with every field that templates take for granted."""
    function = tool.get("function", tool)
    parameters = {"type": "object", "properties": {}, **(function.get("parameters") or {})}
    whole = {**function, "description": function.get("description") or "", "parameters": parameters}
    return {"type": "function", "function": whole}
