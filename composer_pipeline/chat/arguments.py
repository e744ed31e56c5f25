"""What is wrong with a call's arguments, by the schema that was offered.

Does not belong here: which schema that was (``chat.day_tools``).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import jsonschema
import referencing
import referencing.exceptions

from composer_pipeline.actions import ToolCall
from composer_pipeline.chat.builder import short_name
from composer_pipeline.schemas import validator_of


class ArgumentCheck:
    """Says what is wrong with a call's arguments, by the schema that was offered.

    Args:
        tools: tools in OpenAI form, with recorded names.
    """

    def __init__(self, tools: Iterable[Mapping[str, Any]]) -> None:
        self.names: dict[str, str] = {}
        self._validators: dict[str, Any] = {}
        for tool in tools:
            function = tool["function"]
            name = str(function["name"])
            self.names[short_name(name)] = name
            validator = validator_of(function.get("parameters"))
            if validator is not None:
                self._validators[name] = validator

    def problem(self, call: ToolCall) -> str:
        """Return why a call would be refused, without any of its values, or nothing."""
        validator = self._validators.get(call.name)
        if validator is None:
            return ""
        try:
            error = jsonschema.exceptions.best_match(validator.iter_errors(call.arguments))
        except referencing.exceptions.Unresolvable:
            return ""
        return _said(call.name, error) if error else ""


def _said(tool: str, error: jsonschema.ValidationError) -> str:
    """Describe an error by the schema, never by the value: replies may hold private text."""
    where = ".".join(str(part) for part in error.absolute_path)
    of = f"{tool}: {where}" if where else tool
    if error.validator == "required":
        missing = [key for key in error.validator_value if key not in error.instance]
        return f"{of} without {missing[0]}" if missing else f"{of} without an argument"
    if error.validator == "type":
        return f"{of} is not of type {error.validator_value}"
    return f"{of} breaks the rule {error.validator}"
