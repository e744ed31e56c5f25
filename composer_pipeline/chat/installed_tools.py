"""Tool schemas taken from a user's own installation of Claude Code.

Belongs here: finding ``sdk-tools.d.ts``, its version, and which tool an interface is. Does not
belong here: reading TypeScript (``chat.typescript``) and what the lake keeps
(``chat.kept_tools``).

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

DECLARATIONS = "sdk-tools.d.ts"

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


def _version(file: Path, given: str) -> str:
    if given:
        if not version_number(given):
            raise InputError(f"--version {given!r} is no version such as 2.1.329")
        return given
    package = file.parent / "package.json"
    if not package.is_file():
        raise InputError(f"the version of {file} is not known; name it with --version")
    try:
        data = json.loads(package.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{package} is no JSON") from error
    version = data.get("version") if isinstance(data, dict) else None
    if not isinstance(version, str) or not version_number(version):
        raise InputError(f"{package} has no version; name it with --version")
    if data.get("name") == "@anthropic-ai/claude-agent-sdk":
        # Release 0.3.n of the SDK carries release 2.1.n of Claude Code.
        return "2.1." + version.rsplit(".", 1)[-1]
    return version


def version_number(version: str) -> tuple[int, ...]:
    """Return a version's numbers, in which versions are ordered."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
