"""Messages as templates take them, and turns.

Belongs here: one plain form of a message, and what belongs to a turn. Does not belong here: what
a certain template needs (``training.windows.template``).
"""

import json
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]
#: The system message of a window whose prompt has none; templates invent worse ones.
SYSTEM = "You are a coding agent."


class Dropped(Exception):
    """A row cannot be trained on; the message is the reason that is counted."""


def action_message(messages: Sequence[Message]) -> Message:
    """Return the one assistant message of an action, normalised for templates.

    Raises:
        Dropped: there is not exactly one.
    """
    assistants = [message for message in messages if message.get("role") == "assistant"]
    if len(assistants) != 1:
        raise Dropped("action is not one assistant message")
    return plain_message(assistants[0])


def plain_message(message: Message) -> Message:
    """Return a message with text content and dictionary arguments.

    Raises:
        Dropped: arguments that are text are not a JSON object.
    """
    out: Message = {"role": message["role"], "content": message.get("content") or ""}
    if message.get("tool_calls"):
        out["tool_calls"] = [
            tool_call(function["name"], _object(function.get("arguments") or {}))
            for function in (call.get("function", call) for call in message["tool_calls"])
        ]
    if message["role"] == "tool":
        out["name"] = message.get("name") or ""
    return out


def tool_call(name: str, arguments: Any) -> dict[str, Any]:
    """Return one tool call in chat form."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def calls_of(message: Message) -> list[tuple[str, dict[str, Any]]]:
    """Return (name, arguments) of each call of a plain message."""
    functions = (call["function"] for call in message.get("tool_calls") or ())
    return [(function["name"], function["arguments"]) for function in functions]


def split_turns(messages: Sequence[Message]) -> tuple[Message, list[list[Message]]]:
    """Return the plain system message and turns; an assistant's results stay in its turn."""
    plain = [plain_message(message) for message in messages]
    first = 1 if plain and plain[0]["role"] == "system" else 0
    turns: list[list[Message]] = []
    for message in plain[first:]:
        if message["role"] == "tool" and turns:
            turns[-1].append(message)
        else:
            turns.append([message])
    return plain[0] if first else {"role": "system", "content": SYSTEM}, turns


def _object(arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None
    if not isinstance(arguments, dict):
        raise Dropped("tool arguments are not an object")
    return arguments
