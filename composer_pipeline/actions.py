"""What an agent or a teacher did at one state: text and tool calls."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema
import msgspec
import referencing

#: Prefix of a failed call's result in a chat message.
ERROR_PREFIX = "[tool error] "

#: Arguments of tools that hold the path of one file.
PATH_ARGUMENTS = ("file_path", "notebook_path", "path", "filePath", "absolute_path")
_ABOUT = (*PATH_ARGUMENTS, "command", "cmd", "pattern", "query", "url", "description")


class ToolCall(msgspec.Struct, frozen=True):
    """One tool call. ``arguments`` keeps the recorded key order."""

    name: str
    arguments: dict[str, Any]
    id: str = ""

    def summary(self) -> str:
        """Return the tool and what the call is about, in one line."""
        about = (self.arguments[key] for key in _ABOUT if key in self.arguments)
        return " ".join(f"{self.name} {next(about, '')}".split())


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

    def summary(self) -> str:
        """Return each call's tool and what it is about, in one line."""
        told = "; ".join(call.summary() for call in self.tool_calls)
        return told or " ".join(self.text.split())

    def words(self) -> str:
        """Return the action as a person reads it, like :func:`action_text`."""
        calls = [_call(call.name, call.arguments) for call in self.tool_calls]
        return "\n".join([*filter(None, [self.text]), *calls])


def action_text(messages: Sequence[Any]) -> str:
    """Return an action as a person reads it: its text, and each call on lines of its own."""
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


def chat_calls(*messages: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return (tool, arguments) of each call of messages in chat form."""
    return [
        (call["function"]["name"], call["function"]["arguments"])
        for message in messages
        for call in message.get("tool_calls") or ()
    ]


def _call(tool: str, given: Mapping[str, Any]) -> str:
    lines = [
        f"  {name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in given.items()
    ]
    return "\n".join([tool, *lines])


def apply_edits(content: str, name: str, args: Mapping[str, Any]) -> str | None:
    """Return the text after an Edit, MultiEdit or Write, or ``None`` if the call fails."""
    if name == "Write":
        text = args.get("content")
        return text if isinstance(text, str) else None
    edits = args.get("edits") if name == "MultiEdit" else [args]
    if not isinstance(edits, list) or not edits:
        return None
    for edit in edits:
        old = edit.get("old_string") if isinstance(edit, Mapping) else None
        new = edit.get("new_string") if isinstance(edit, Mapping) else None
        if not isinstance(old, str) or not isinstance(new, str) or not old or old == new:
            return None
        count = content.count(old)
        if count == 0 or (count > 1 and edit.get("replace_all") is not True):
            return None
        content = content.replace(old, new)
    return content


def validator_of(schema: Any) -> Any:
    """Return a ``jsonschema`` validator, or ``None`` for what is not a schema."""
    # It raises referencing.exceptions.Unresolvable for a reference elsewhere: nothing is fetched.
    if not isinstance(schema, Mapping):
        return None
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError:
        return None
    return kind(schema, registry=referencing.Registry())
