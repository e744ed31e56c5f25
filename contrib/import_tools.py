"""Read the tool schemas of an installed Claude Code into the lake, for states not yet asked.

Run as ``python -m contrib.import_tools PATH``. ``sdk-tools.d.ts`` is read with tree-sitter: the
subset of TypeScript that json-schema-to-typescript writes. Comments are skipped, because a file's
texts are its author's; only the shapes are taken. Anything else is an error that names the line.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import orjson

from composer_pipeline.chat.tools import (
    INSTALLED_TOOLS,
    InstalledTools,
    installed_tools,
    version_number,
)
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import Settings

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

Schema = dict[str, Any]

#: A declaration's value by its name.
Declared = Mapping[str, Any]

_PRIMITIVES: Mapping[str, Schema] = {
    "string": {"type": "string"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "object": {"type": "object"},
    "unknown": {},
    "any": {},
    "undefined": {"type": "null"},
    "true": {"type": "boolean", "enum": [True]},
    "false": {"type": "boolean", "enum": [False]},
}


class TypeScriptError(ValueError):
    """The file is not of the kind that is read here; the message names the line."""


def read_declarations(source: str) -> dict[str, Schema]:
    """Return the JSON Schema of every interface and type of a ``.d.ts`` file."""
    root = _parser().parse(source.encode("utf-8", "surrogatepass")).root_node
    if root.has_error:
        raise _refused(next(_broken(root)))
    declared: dict[str, Any] = {}
    for node in root.named_children:
        # `export` and `declare` stand around a declaration.
        if node.type in ("export_statement", "ambient_declaration"):
            node = node.named_children[-1]
        if node.type in ("interface_declaration", "type_alias_declaration"):
            # `extends` and parameters of a type come before the body, and are refused as a type.
            name, declaration, *_ = _parts(node)
            declared[_text(name)] = declaration
    return {name: _schema(node, declared, (name,)) for name, node in declared.items()}


@cache
def _parser() -> Any:
    import tree_sitter_typescript
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_typescript.language_typescript()))


def _schema(node: Any, declared: Declared, names: tuple[str, ...]) -> Schema:
    """Return the schema of a type; ``names`` is the way here, against cycles."""
    kind, text, parts = node.type, _text(node), _parts(node)
    if text in _PRIMITIVES:
        return dict(_PRIMITIVES[text])
    if kind == "literal_type":
        return _literal(parts[0])
    if kind in ("interface_body", "object_type"):
        return _object(node, declared, names)
    if kind == "type_identifier" and text in declared:
        # A type that holds itself: anything goes one level down.
        return {} if text in names else _schema(declared[text], declared, (*names, text))
    if kind == "generic_type" and _text(parts[0]) in ("Array", "ReadonlyArray"):
        parts = _parts(parts[1])
        kind = "array_type" if len(parts) == 1 else kind
    if kind not in ("union_type", "intersection_type", "parenthesized_type", "array_type",
                    "tuple_type"):  # fmt: skip
        raise _refused(node)
    if kind == "tuple_type":
        return {"type": "array", "items": _items(parts, declared, names)}
    found = [_schema(part, declared, names) for part in _flat(kind, parts)]
    if kind == "array_type":
        return {"type": "array", "items": found[0]}
    return {"allOf": found} if kind == "intersection_type" else _any_of(found)


def _object(node: Any, declared: Declared, names: tuple[str, ...]) -> Schema:
    properties: dict[str, Schema] = {}
    required: list[str] = []
    schema: Schema = {"type": "object", "properties": properties}
    for member in _parts(node):
        annotation = member.child_by_field_name("type")
        if member.type not in ("property_signature", "index_signature") or annotation is None:
            raise _refused(member)
        value = _schema(_parts(annotation)[0], declared, names)
        if member.type == "index_signature":  # [key: string]: T
            schema["additionalProperties"] = value
            continue
        key = member.child_by_field_name("name")
        name = _string(key) if key.type == "string" else _text(key)
        properties[name] = value
        if all(child.type != "?" for child in member.children):
            required.append(name)
    return schema | ({"required": required} if required else {})


def _items(parts: list[Any], declared: Declared, names: tuple[str, ...]) -> Schema:
    """A tuple is how minItems and maxItems are written; only the items are kept."""
    items: list[Schema] = []
    for part in parts:
        rest = part.type == "rest_type"
        item = _schema(_parts(part)[0] if rest else part, declared, names)
        items.append(item["items"] if rest and item.get("type") == "array" else item)
    return _any_of(items) if items else {}


def _literal(node: Any) -> Schema:
    if node.type == "string":
        return {"type": "string", "enum": [_string(node)]}
    try:
        return {"enum": [orjson.loads(_text(node))]}
    except orjson.JSONDecodeError as error:
        raise _refused(node) from error


def _flat(kind: str, parts: list[Any]) -> Iterator[Any]:
    """Yield the members of a union or intersection, which the grammar nests to the left."""
    for part in parts:
        if part.type == kind and kind in ("union_type", "intersection_type"):
            yield from _flat(kind, _parts(part))
        else:
            yield part


def _any_of(options: list[Schema]) -> Schema:
    """Join alternatives: equal ones once, literals of a kind as one enum."""
    distinct = [option for at, option in enumerate(options) if option not in options[:at]]
    if len(distinct) == 1:
        return distinct[0]
    kinds = {option.get("type") for option in distinct}
    if len(kinds) == 1 and all("enum" in o and set(o) <= {"type", "enum"} for o in distinct):
        kind = kinds.pop()
        values = [value for option in distinct for value in option["enum"]]
        return ({"type": kind} if kind else {}) | {"enum": values}
    return {"anyOf": distinct} if all(distinct) else {}


def _parts(node: Any) -> list[Any]:
    return [child for child in node.named_children if child.type != "comment"]


def _text(node: Any) -> str:
    return str(node.text.decode("utf-8", "surrogatepass"))


def _string(node: Any) -> str:
    return "".join(_text(part).removeprefix("\\") for part in node.named_children)


def _broken(node: Any) -> Iterator[Any]:
    for child in node.children:
        if child.is_error or child.is_missing:
            yield child
        yield from _broken(child)


def _refused(node: Any) -> TypeScriptError:
    what = repr(_text(node).partition("\n")[0][:40]) + " is not understood"
    what = f"{node.type!r} expected" if node.is_missing else what
    return TypeScriptError(f"line {node.start_point.row + 1}: {what}")


def read_installation(path: str | os.PathLike[str], version: str = "") -> InstalledTools:
    """Read the tools of an installed Claude Code or Claude Agent SDK."""
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


def keep(lake: Lake, tools: InstalledTools) -> None:
    """Store a set in the lake; one of the same version is replaced."""
    known = {kept.version: kept for kept in installed_tools(lake)} | {tools.version: tools}
    ordered = [known[version] for version in sorted(known, key=version_number)]
    lake.put_bytes(INSTALLED_TOOLS, msgspec.json.encode(ordered))


def main(arguments: Sequence[str] | None = None) -> int:
    """Import an installation and print its version and tools; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m contrib.import_tools")
    parser.add_argument("path", help=f"the npm package's folder, or its {DECLARATIONS}")
    parser.add_argument("--version", default="", help="of Claude Code, without a package.json")
    parser.add_argument("--lake", default=Settings.from_env().lake)
    given = parser.parse_args(arguments)
    try:
        tools = read_installation(given.path, given.version)
        keep(Lake(given.lake), tools)
    except ComposerError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps({"version": tools.version, "tools": sorted(tools.parameters)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
