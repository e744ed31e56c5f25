"""What an agent or a teacher did at one state: text and tool calls.

Belongs here: the one representation of an action that every room shares, its JSON form as the
lake stores it, and an action in words. Does not belong here: comparing actions
(``preferences.actions.canonical``) or turning them into chat messages (``chat.messages``).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

#: What the text of a failed call's result starts with, as chat message.
ERROR_PREFIX = "[tool error] "

#: Arguments of tools that hold the path of one file.
PATH_ARGUMENTS = ("file_path", "notebook_path", "path")


class ToolCall(msgspec.Struct, frozen=True):
    """One tool call. ``arguments`` keeps the recorded key order."""

    name: str
    arguments: dict[str, Any]
    id: str = ""


class Action(msgspec.Struct, frozen=True):
    """Everything that one model response did. ``text`` may be empty."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def to_json(self) -> str:
        """Return the action as compact JSON, as the lake's ``action`` columns hold it."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str | bytes) -> "Action":
        """Read :meth:`to_json`'s form.

        Raises:
            msgspec.ValidationError: the JSON is not an action.
        """
        return msgspec.json.decode(text, type=Action)

    def words(self) -> str:
        """Return the action as a person reads it, like :func:`action_text`."""
        calls = [_call(call.name, call.arguments) for call in self.tool_calls]
        return "\n".join([*filter(None, [self.text]), *calls])


def action_text(messages: Sequence[Any]) -> str:
    """Return an action as a person reads it: its text, and each call on lines of its own.

    Args:
        messages: assistant messages in chat form, or their JSON texts.
    """
    parts = []
    for message in messages:
        if isinstance(message, str):
            message = json.loads(message)
        if message.get("content"):
            parts.append(str(message["content"]))
        parts += [
            _call(call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
        ]
    return "\n".join(parts)


def _call(tool: str, given: Mapping[str, Any]) -> str:
    lines = [
        f"  {name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in given.items()
    ]
    return "\n".join([tool, *lines])
