"""The JSON schema of each tool that a session may be offered.

Belongs here: hand-written schemas of Claude Code's tools before anything else, and schemas
inferred from use for MCP and unknown tools. Does not belong here: which tools a session is
offered (``chat.tools``), and the hand-written schemas (``chat.tool_registry``).

Inference takes the *keys* and JSON types of observed inputs, never a value: a value may be
private.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import orjson

from composer_pipeline.chat.installed_tools import InstalledTools
from composer_pipeline.chat.tool_registry import CORE, REGISTRY, REGISTRY_VERSION

#: Uses from which a key that was always there counts as required.
MIN_USES_FOR_REQUIRED = 5


class Toolset(msgspec.Struct, frozen=True, dict=True):
    """Tools in OpenAI form with recorded names, and where their schemas came from."""

    tools: list[dict[str, Any]]
    source: str

    @cached_property
    def digest(self) -> str:
        """BLAKE2b-128 of the tools, in hexadecimal."""
        return hashlib.blake2b(orjson.dumps(self.tools), digest_size=16).hexdigest()


def tool_schemas(
    names: Iterable[str],
    *,
    observed: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    recorded: Sequence[Any] | None = None,
    installed: InstalledTools | None = None,
) -> Toolset:
    """Return the tools to offer, sorted by name, and the source of their schemas.

    Args:
        names: tools seen in use; :data:`CORE` is added.
        observed: inputs seen for each tool, for those that the registry lacks.
        recorded: tool dictionaries of the recorded request, Anthropic or OpenAI form.
            Where there are any, they are the whole answer.
        installed: parameters from the user's installation; they go before the registry's,
            whose descriptions stay.
    """
    if recorded:
        tools = [tool for tool in map(_openai_form, recorded) if tool]
        if tools:
            return Toolset(tools, "recorded")
    tools = []
    sources: Counter[str] = Counter()
    for name in sorted(set(names) | set(CORE)):
        entry = REGISTRY.get(name)
        if installed and name in installed.parameters:
            description = entry["description"] if entry else f"The tool {name}."
            entry = {"description": description, "parameters": installed.parameters[name]}
            sources[installed.source] += 1
        elif entry is None:
            entry = infer((observed or {}).get(name, ()))
            sources["inferred"] += 1
        tools.append({"type": "function", "function": {"name": name, **entry}})
    parts = [] if installed and sources[installed.source] == len(tools) else [REGISTRY_VERSION]
    if installed and sources[installed.source]:
        parts.insert(0, f"{installed.source}:{sources[installed.source]}")
    if sources["inferred"]:
        parts.append(f"inferred:{sources['inferred']}")
    return Toolset(tools, "+".join(parts))


def infer(uses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a schema from observed inputs: keys and JSON types, no values."""
    keys = sorted({key for use in uses for key in use})
    properties: dict[str, Any] = {}
    for key in keys:
        kinds = {_json_type(use[key]) for use in uses if key in use}
        properties[key] = {"type": kinds.pop()} if len(kinds) == 1 else {}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if len(uses) >= MIN_USES_FOR_REQUIRED:
        required = [key for key in keys if all(key in use for use in uses)]
        if required:
            schema["required"] = required
    return {"description": "Parameters inferred from use.", "parameters": schema}


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((str, "string"), (int, "integer"), (float, "number"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"


def _openai_form(tool: Any) -> dict[str, Any] | None:
    if not isinstance(tool, Mapping):
        return None
    function = tool.get("function")
    if isinstance(function, Mapping) and isinstance(function.get("name"), str):
        return {"type": "function", "function": dict(function)}
    if not isinstance(tool.get("name"), str):
        return None
    parameters = tool.get("input_schema") or {"type": "object", "properties": {}}
    entry = {"name": tool["name"], "description": str(tool.get("description") or "")}
    return {"type": "function", "function": {**entry, "parameters": dict(parameters)}}
