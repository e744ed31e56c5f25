"""Which tools a teacher is offered.

Session files rarely record the tools. A recorded set (``prompt_snapshot``) always wins.
Otherwise a session is offered the tools it used and its agent's :data:`CORE`; agreement with an
agent is only possible on tools that the teacher has.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

import msgspec
import orjson

from composer_pipeline.chat.tool_registry import CORE, REGISTRY, REGISTRY_VERSION
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.state import TraceState, Unseen


class InstalledTools(msgspec.Struct, frozen=True):
    """Parameters of the tools of one version: tool name -> JSON Schema of an object."""

    version: str
    parameters: dict[str, dict[str, Any]]

    @property
    def source(self) -> str:
        """The name by which replies record where their schemas came from."""
        return f"installed@{self.version}"


def version_number(version: str) -> tuple[int, ...]:
    """Return a version's numbers, by which versions are ordered."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


#: The file of a lake that ``contrib/import_tools.py`` writes.
INSTALLED_TOOLS = "tool_schemas/index.json"


def installed_tools(lake: Lake) -> list[InstalledTools]:
    """Return the sets of a lake, oldest version first."""
    if not lake.exists(INSTALLED_TOOLS):
        return []
    try:
        return msgspec.json.decode(lake.get_bytes(INSTALLED_TOOLS), type=list[InstalledTools])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{INSTALLED_TOOLS} of lake {lake.url} is damaged: {error}") from error


def nearest(sets: list[InstalledTools], version: str | None) -> InstalledTools | None:
    """Return the set for a session's version: the latest not above it, else the earliest."""
    ordered = sorted(sets, key=lambda kept: version_number(kept.version))
    if version:
        mine = version_number(version)
        below = [kept for kept in ordered if version_number(kept.version) <= mine]
        ordered = below or ordered[:1]
    return ordered[-1] if ordered else None


#: Uses after which a key that was always present counts as required.
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
    agent: str = "claude-code",
    observed: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    recorded: Sequence[Any] | None = None,
    installed: InstalledTools | None = None,
) -> Toolset:
    """Return the tools to offer, sorted by name, and the source of their schemas."""
    if tools := [tool for tool in map(_openai_form, recorded or ()) if tool]:
        return Toolset(tools, "recorded")
    sources: Counter[str] = Counter()
    registry = REGISTRY.get(agent, {})
    for name in sorted({*names, *CORE.get(agent, ())}):
        entry = registry.get(name)
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
    required = [key for key in keys if all(key in use for use in uses)]
    if required and len(uses) >= MIN_USES_FOR_REQUIRED:
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


def session_tools(
    states: Sequence[TraceState], installed: Sequence[InstalledTools] = ()
) -> dict[str, Toolset]:
    """Choose the tools of each session, the same for all its states, which must all be given."""
    # Equal tools keep the start of every request equal, which the provider's prompt cache needs.
    names: dict[str, set[str]] = {}
    inputs: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    recorded: dict[str, list[Any]] = {}
    versions: dict[str, str] = {}
    agents = {state.session_id: state.agent for state in states}
    unseen = Unseen()
    for state in states:
        session = state.session_id
        if version := state.version:
            versions.setdefault(session, version)
        used = names.setdefault(session, set())
        known = inputs.setdefault(session, {})
        if state.tools:
            recorded.setdefault(session, state.tools)
        for call in state.action.tool_calls:
            used.add(call.name)
            known.setdefault(call.name, []).append(call.arguments)
        for content in (message.get("content") for message in unseen.of(state)):
            for block in content if isinstance(content, list) else []:
                if isinstance(block, dict) and block.get("type") == "tool_use":
                    used.add(str(block.get("name", "")))
    return {
        session: tool_schemas(
            {name for name in used if name},
            agent=agents[session],
            observed=inputs[session],
            recorded=recorded.get(session),
            installed=nearest(
                list(installed) if agents[session] == "claude-code" else [], versions.get(session)
            ),
        )
        for session, used in names.items()
    }


#: Days and sessions whose tools are cached.
KEPT_DAYS, KEPT_SESSIONS = 16, 512


class _Pin(msgspec.Struct):
    """Tools of a session, and the states that were asked with them."""

    session_id: str
    toolset: Toolset
    state_ids: list[str]


class _Day:
    """The stored tools of one day, by state, and the last ones of each session."""

    def __init__(self, pins: list[_Pin]) -> None:
        self.pins = pins
        self.of = {state: pin.toolset for pin in pins for state in pin.state_ids}
        self.latest = {pin.session_id: pin.toolset for pin in pins}

    @classmethod
    def read(cls, lake: Lake, day: str) -> "_Day":
        """Read a day; without a partition it has no pins."""
        return cls(_read(lake, day))


class Toolsets:
    """The tools of the states of some days."""

    def __init__(self, lake: Lake, states: Sequence[TraceState]) -> None:
        self._lake = lake
        self._states: dict[tuple[str, str], list[TraceState]] = {}
        for state in states:
            self._states.setdefault((state.day, state.session_id), []).append(state)
        self._installed = installed_tools(lake)
        #: Equal toolsets are one object, so that conversions are shared and memory is bounded.
        self._same: dict[tuple[str, str], Toolset] = {}
        self._day = lru_cache(KEPT_DAYS)(partial(_Day.read, lake))
        self._chosen = lru_cache(KEPT_SESSIONS)(self._choose)

    def of(self, state: TraceState) -> Toolset:
        """Return the tools that a state was offered, or will be."""
        pinned = self._day(state.day).of.get(state.state_id)
        return pinned or self._chosen(state.day, state.session_id)

    def _choose(self, day: str, session_id: str) -> Toolset:
        mine = [state.whole for state in self._states[day, session_id]]
        chosen = session_tools(mine, self._installed)[session_id]
        latest = self._day(day).latest.get(session_id)
        if latest is not None and latest.digest == chosen.digest:
            return latest
        return self._same.setdefault((chosen.digest, chosen.source), chosen)

    def pin(self, states: Iterable[TraceState]) -> None:
        """Store the tools of these states for good; call it before teachers are asked."""
        by_day: dict[str, list[TraceState]] = {}
        for state in states:
            by_day.setdefault(state.day, []).append(state)
        self._day.cache_clear()  # another run may have added to them
        for day, mine in by_day.items():
            pins = self._day(day).pins
            if self._add(pins, [s for s in mine if s.state_id not in self._day(day).of]):
                rows = [
                    {
                        "session_id": pin.session_id,
                        "digest": pin.toolset.digest,
                        "source": pin.toolset.source,
                        "tools": pin.toolset.tools,
                        "state_ids": pin.state_ids,
                    }
                    for pin in pins
                ]
                self._lake.write("toolsets", rows, day=day)
        self._day.cache_clear()

    def _add(self, pins: list[_Pin], new: Sequence[TraceState]) -> bool:
        known = {(pin.session_id, pin.toolset.digest): pin for pin in pins}
        for state in new:
            toolset = self.of(state)
            key = (state.session_id, toolset.digest)
            if key not in known:
                known[key] = _Pin(state.session_id, toolset, [])
                pins.append(known[key])
            known[key].state_ids.append(state.state_id)
        return bool(new)


def toolsets_of_day(lake: Lake, day: str) -> dict[str, Toolset]:
    """Return digest -> tools of a day, for reading replies again."""
    return {pin.toolset.digest: pin.toolset for pin in _read(lake, day)}


def _read(lake: Lake, day: str) -> list[_Pin]:
    rows = lake.rows("toolsets", days=[day])
    return [
        _Pin(row["session_id"], Toolset(row["tools"], row["source"]), list(row["state_ids"]))
        for row in rows
    ]
