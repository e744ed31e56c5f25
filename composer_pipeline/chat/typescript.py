"""The subset of TypeScript that json-schema-to-typescript writes, back as JSON Schema.

Belongs here: tokens, types and interfaces of a generated ``.d.ts`` file. Does not belong
here: which tools there are and where the file comes from (``chat.installed_tools``).

Read: primitives, literals, unions, arrays, tuples, object types with optional members and
index signatures, parentheses, and names of other declarations of the file. Comments are
skipped: a file's texts are its author's, only the shapes are taken. Anything else is an
error that names the line.
"""

import re
from collections.abc import Mapping
from typing import Any

import orjson

Schema = dict[str, Any]

_TOKEN = re.compile(
    r"(?P<space>\s+|//[^\n]*|/\*.*?\*/)"
    r'|(?P<text>"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\')'
    r"|(?P<number>-?\d+(?:\.\d+)?)"
    r"|(?P<name>[A-Za-z_$][\w$]*)"
    r"|(?P<mark>\.\.\.|=>|[{}\[\]()|&:;,?=<>])",
    re.DOTALL,
)
_PRIMITIVES: Mapping[str, Schema] = {
    "string": {"type": "string"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "object": {"type": "object"},
    "unknown": {},
    "any": {},
    "undefined": {"type": "null"},
}


class TypeScriptError(ValueError):
    """The file is not of the kind that is read here; the message names the line."""


def read_declarations(source: str) -> dict[str, Schema]:
    """Return the JSON Schema of every exported interface and type of a ``.d.ts`` file.

    Args:
        source: the text of the file.

    Returns:
        name -> schema, with references between declarations resolved in place.

    Raises:
        TypeScriptError: something else than the subset, or a name that is not declared.
    """
    tokens = _tokens(source)
    starts: dict[str, int] = {}
    for position, (kind, text, _) in enumerate(tokens):
        if kind == "name" and text in ("interface", "type") and _is_declaration(tokens, position):
            starts[tokens[position + 1][1]] = position + 2
    return {name: _Reader(tokens, starts, (name,)).declaration(at) for name, at in starts.items()}


def _tokens(source: str) -> list[tuple[str, str, int]]:
    found: list[tuple[str, str, int]] = []
    position, line = 0, 1
    while position < len(source):
        match = _TOKEN.match(source, position)
        if match is None:
            raise TypeScriptError(f"line {line}: {source[position]!r} is not understood")
        text = match.group()
        if match.lastgroup != "space":
            found.append((str(match.lastgroup), text, line))
        line += text.count("\n")
        position = match.end()
    return found


def _is_declaration(tokens: list[tuple[str, str, int]], position: int) -> bool:
    """Say whether ``interface`` or ``type`` here starts a declaration, not a member."""
    before = tokens[position - 1][1] if position else ""
    after = tokens[position + 1] if position + 1 < len(tokens) else ("", "", 0)
    return before in ("", "export", "declare", "}", ";") and after[0] == "name"


class _Reader:
    """Recursive descent over one declaration; ``names`` is the way here, against cycles."""

    def __init__(
        self, tokens: list[tuple[str, str, int]], starts: dict[str, int], names: tuple[str, ...]
    ) -> None:
        self.tokens, self.starts, self.names = tokens, starts, names
        self.at = 0

    def declaration(self, start: int) -> Schema:
        self.at = start
        if self._take("="):
            return self._union()
        return self._object()

    def _union(self) -> Schema:
        self._take("|")
        options = [self._intersection()]
        while self._take("|"):
            options.append(self._intersection())
        return _any_of(options)

    def _intersection(self) -> Schema:
        parts = [self._postfix()]
        while self._take("&"):
            parts.append(self._postfix())
        return parts[0] if len(parts) == 1 else {"allOf": parts}

    def _postfix(self) -> Schema:
        schema = self._primary()
        while self._peek() == "[" and self.tokens[self.at + 1][1] == "]":
            self.at += 2
            schema = {"type": "array", "items": schema}
        return schema

    def _primary(self) -> Schema:
        kind, text, line = self._next()
        if text == "(":
            inner = self._union()
            self._expect(")")
            return inner
        if text == "{":
            self.at -= 1
            return self._object()
        if text == "[":
            return self._tuple()
        if kind == "text":
            return {"type": "string", "enum": [_string(text)]}
        if kind == "number":
            return {"enum": [orjson.loads(text)]}
        if text in ("true", "false"):
            return {"type": "boolean", "enum": [text == "true"]}
        if text in _PRIMITIVES:
            return dict(_PRIMITIVES[text])
        if text in ("Array", "ReadonlyArray") and self._take("<"):
            items = self._union()
            self._expect(">")
            return {"type": "array", "items": items}
        if kind == "name" and text in self.starts:
            if text in self.names:
                return {}  # a type that holds itself: anything goes one level down
            inner_reader = _Reader(self.tokens, self.starts, (*self.names, text))
            return inner_reader.declaration(self.starts[text])
        raise TypeScriptError(f"line {line}: {text!r} is not understood")

    def _object(self) -> Schema:
        self._expect("{")
        properties: dict[str, Schema] = {}
        required: list[str] = []
        schema: Schema = {"type": "object", "properties": properties}
        while not self._take("}"):
            if self._take("["):  # an index signature: [key: string]: T
                self._next()
                self._expect(":")
                self._union()
                self._expect("]")
                self._expect(":")
                schema["additionalProperties"] = self._union()
            else:
                kind, text, line = self._next()
                if kind not in ("name", "text", "number"):
                    raise TypeScriptError(f"line {line}: {text!r} is no member's name")
                name = _string(text) if kind == "text" else text
                optional = self._take("?")
                self._expect(":")
                properties[name] = self._union()
                if not optional:
                    required.append(name)
            ended = self._take(";") or self._take(",")
            if not ended and self._peek() != "}":
                self._expect(";")
        if required:
            schema["required"] = required
        return schema

    def _tuple(self) -> Schema:
        """A tuple is how minItems and maxItems are written; only the items are kept."""
        items: list[Schema] = []
        while not self._take("]"):
            rest = self._take("...")
            item = self._union()
            items.append(item["items"] if rest and item.get("type") == "array" else item)
            self._take(",")
        return {"type": "array", "items": _any_of(items) if items else {}}

    def _peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def _next(self) -> tuple[str, str, int]:
        if self.at >= len(self.tokens):
            line = self.tokens[-1][2] if self.tokens else 1
            raise TypeScriptError(f"line {line}: the file ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def _take(self, text: str) -> bool:
        # A quoted text never equals a mark: it keeps its quotes.
        if self._peek() == text:
            self.at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        _, found, line = self._next()
        if found != text:
            raise TypeScriptError(f"line {line}: {text!r} expected, not {found!r}")


def _any_of(options: list[Schema]) -> Schema:
    """Join alternatives: equal ones once, literals of a kind as one enum."""
    distinct: list[Schema] = []
    for option in options:
        if option not in distinct:
            distinct.append(option)
    if len(distinct) == 1:
        return distinct[0]
    kinds = {option.get("type") for option in distinct}
    if len(kinds) == 1 and all(set(option) <= {"type", "enum"} for option in distinct):
        values = [value for option in distinct for value in option.get("enum", [])]
        if all("enum" in option for option in distinct):
            kind = kinds.pop()
            return ({"type": kind} if kind else {}) | {"enum": values}
    if any(not option for option in distinct):
        return {}
    return {"anyOf": distinct}


def _string(text: str) -> str:
    inner = text[1:-1]
    return re.sub(r"\\(.)", r"\1", inner)
