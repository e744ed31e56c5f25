"""What an agent or a teacher did at one state: text and tool calls.

Belongs here: the one representation of an action that every room shares, and its
JSON form as the lake stores it. Does not belong here: comparing actions
(``preferences.actions.canonical``) or turning them into chat messages (``chat.messages``).
"""

from typing import Any

import msgspec

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
