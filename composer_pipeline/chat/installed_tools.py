"""Tool schemas taken from a user's own installation of Claude Code.

Belongs here: finding ``sdk-tools.d.ts``, its version, which tool an interface is, keeping
what was read in the lake, and choosing the set for a session. Does not belong here: reading
TypeScript (``chat.typescript``) and which tools are offered (``chat.tools``).

Only names, types, enums and which arguments are required are taken. The file's comments
are its author's text: they are neither stored nor sent.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from composer_pipeline.chat.typescript import TypeScriptError, read_declarations
from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake

DECLARATIONS = "sdk-tools.d.ts"
_INDEX = "tool_schemas/index.json"

#: Interfaces whose tool is not their name without ``Input``.
_TOOLS: Mapping[str, tuple[str, ...]] = {
    "FileRead": ("Read",),
    "FileEdit": ("Edit",),
    "FileMultiEdit": ("MultiEdit",),
    "FileWrite": ("Write",),
    "Agent": ("Agent", "Task"),
    "Mcp": (),  # the shape of no tool in particular
}


class InstalledTools(msgspec.Struct, frozen=True):
    """Parameters of the tools of one version: tool name -> JSON Schema of an object."""

    version: str
    parameters: dict[str, dict[str, Any]]

    @property
    def source(self) -> str:
        """The name under which replies record where their schemas came from."""
        return f"installed@{self.version}"


def read_installation(path: str | os.PathLike[str], version: str = "") -> InstalledTools:
    """Read the tools of an installed Claude Code or Claude Agent SDK.

    Args:
        path: ``sdk-tools.d.ts``, or the folder of the npm package that has it.
        version: of Claude Code, such as ``2.1.329``; from ``package.json`` when empty.

    Raises:
        InputError: no such file, one that cannot be read, one without tools, or a version
            that cannot be told.
    """
    given = Path(path).expanduser()
    file = given / DECLARATIONS if given.is_dir() else given
    if not file.is_file():
        raise InputError(f"{given} is no {DECLARATIONS} and no package folder that has one")
    try:
        declared = read_declarations(file.read_text(encoding="utf-8"))
    except (TypeScriptError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is no {DECLARATIONS} that can be read: {error}") from error
    parameters: dict[str, dict[str, Any]] = {}
    for name, schema in sorted(declared.items()):
        stem = name.removesuffix("Input")
        if stem == name or schema.get("type") != "object":
            continue
        for tool in _TOOLS.get(stem, (stem,)):
            parameters[tool] = schema
    if not parameters:
        raise InputError(f"{file} declares no tool input")
    return InstalledTools(_version(file, version), parameters)


def keep(lake: Lake, tools: InstalledTools) -> None:
    """Store a set in the lake; one of the same version is replaced.

    Raises:
        StorageError: the lake is not writable.
    """
    known = {kept.version: kept for kept in kept_sets(lake)} | {tools.version: tools}
    ordered = [known[version] for version in sorted(known, key=_number)]
    lake.put_bytes(_INDEX, msgspec.json.encode(ordered))


def kept_sets(lake: Lake) -> list[InstalledTools]:
    """Return the sets of a lake, oldest version first.

    Raises:
        InputError: the file that keeps them is damaged.
    """
    if not lake.exists(_INDEX):
        return []
    try:
        return msgspec.json.decode(lake.get_bytes(_INDEX), type=list[InstalledTools])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{_INDEX} of lake {lake.url} is damaged: {error}") from error


def nearest(sets: list[InstalledTools], version: str | None) -> InstalledTools | None:
    """Return the set for a session's version: the latest not above it, else the earliest."""
    if not sets:
        return None
    ordered = sorted(sets, key=lambda kept: _number(kept.version))
    if not version:
        return ordered[-1]
    below = [kept for kept in ordered if _number(kept.version) <= _number(version)]
    return below[-1] if below else ordered[0]


def _version(file: Path, given: str) -> str:
    if given:
        return given
    package = file.parent / "package.json"
    if not package.is_file():
        raise InputError(f"the version of {file} is not known; name it with --version")
    try:
        data = json.loads(package.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{package} is no JSON") from error
    version = data.get("version") if isinstance(data, dict) else None
    if not isinstance(version, str) or not _number(version):
        raise InputError(f"{package} has no version; name it with --version")
    if data.get("name") == "@anthropic-ai/claude-agent-sdk":
        # Release 0.3.n of the SDK carries release 2.1.n of Claude Code.
        return "2.1." + version.rsplit(".", 1)[-1]
    return version


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
