"""The subset of TypeScript that json-schema-to-typescript writes, back as JSON Schema.

Belongs here: the types and interfaces of a generated ``.d.ts`` file, read with tree-sitter.
Does not belong here: which tools there are and where the file comes from
(``chat.installed_tools``).

Read: primitives, literals, unions, arrays, tuples, object types with optional members and
index signatures, parentheses, and names of other declarations of the file. Comments are
skipped: a file's texts are its author's, only the shapes are taken. Anything else is an
error that names the line.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import orjson

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
    """Return the JSON Schema of every interface and type of a ``.d.ts`` file.

    Args:
        source: the text of the file.

    Returns:
        name -> schema, with references between declarations resolved in place.

    Raises:
        TypeScriptError: something else than the subset, or a name that is not declared.
    """
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
