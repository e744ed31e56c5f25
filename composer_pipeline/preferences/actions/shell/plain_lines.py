"""Plain lines of Bash: words, quotes without expansions, connectors and redirections.

Belongs here: the stages of a line, and reading plain lines without a grammar. Does not
belong here: every other line (``preferences.actions.shell.parse``, which gives the same stages).
"""

import re
from dataclasses import dataclass

from composer_pipeline.preferences.actions.shell.words import literal


@dataclass(frozen=True)
class Stage:
    """One command: encoded words, redirections in one spelling, environment.

    ``connector`` is what joins it to the stage before. ``compound`` is the kind of a loop or
    subshell, whose words are its tokens. ``background`` is a final ``&``.
    """

    words: tuple[str, ...]
    connector: str = ""
    env: tuple[str, ...] = ()
    redirects: tuple[str, ...] = ()
    negated: bool = False
    compound: str = ""
    background: bool = False


@dataclass(frozen=True)
class Line:
    """A parsed command line and every simple command inside it, at any depth."""

    stages: tuple[Stage, ...]
    every: tuple[Stage, ...]
    parsed: bool = True


_TOKEN = re.compile(
    r"(?P<blank>[ \t]+)"
    r"|(?P<connector>&&|\|\||\|&|[|;\n])"
    r"|(?P<dup>[012]?>&[012](?![^\s;|&<>]))"
    r"|(?P<into>(?:&>>|&>|[012]?>>|[012]?>\||[012]?>|0?<)(?![<>(&|]))[ \t]*"
    r"|(?P<word>(?:[^\s'\"\\$`{}#&|;<>()~!]|(?<=[^\s;|&<>])[#~]|~(?=/|[\s;|&]|$)"
    r"|'[^']*'|\"[^\"$`\\]*\")+|\{\}(?=[\s;]|$))"
)
_PIECE = re.compile(r"'[^']*'|\"[^\"]*\"|[^'\"]+")
#: The beginning of an assignment; an element of an array has a subscript.
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=")
#: Words that open a construct when they stand first.
_OPENING = frozenset(
    ["if", "then", "else", "elif", "fi", "for", "while", "until", "case", "select", "function",
     "time", "coproc", "do", "done", "esac", "[[", "[", "{", "}", "{}", "!", "export", "declare",
     "local", "readonly", "typeset", "unset", "unsetenv", "let"]
)  # fmt: skip


def read_plain(text: str) -> Line | None:  # noqa: C901  the fast path: one loop over tokens
    """Read a line of words, quotes without expansions, connectors and redirections.

    Gives what :func:`read_tree` gives, several times faster. ``None`` for any other line.
    """
    stages: list[Stage] = []
    words: list[str] = []
    env: list[str] = []
    redirects: list[str] = []
    connector, pending, position, glued = "", "", 0, False
    for match in _TOKEN.finditer(text):
        if match.start() != position:
            return None
        position = match.end()
        kind = match.lastgroup
        if kind == "blank":
            glued = False
            continue
        piece = match[0]
        if kind == "word":
            if glued:
                return None
            glued = True
            quoted = "'" in piece or '"' in piece
            if pending:
                redirects.extend(opened(pending, _pieces(piece) if quoted else piece))
                pending = ""
                continue
            if not words:
                if piece in _OPENING:
                    return None
                if ASSIGNMENT.match(piece):
                    name, _, value = piece.partition("=")
                    env.append(f"{name}={_pieces(value)}")
                    if "[" in name or name.endswith("+"):
                        return None
                    continue
            words.append(_pieces(piece) if quoted else piece)
            continue
        glued = False
        if pending:
            return None
        if kind == "dup":
            redirects.append(duplicated(piece))
        elif kind == "into":
            if words and words[-1].isdigit() and text[match.start() - 1] not in " \t":
                return None
            pending = piece.rstrip()
        elif words or env or redirects:
            if not words:
                return None
            stages.append(Stage(tuple(words), connector, tuple(env), ordered(redirects)))
            words, env, redirects, connector = [], [], [], ";" if piece == "\n" else piece
        elif piece != "\n" or not stages:
            return None
    if position != len(text) or pending:
        return None
    if words:
        stages.append(Stage(tuple(words), connector, tuple(env), ordered(redirects)))
    elif env or redirects or connector not in ("", ";"):
        return None
    found = tuple(stages)
    return Line(found, found) if found else None


def _pieces(token: str) -> str:
    out = ""
    for piece in _PIECE.findall(token):
        out += literal(piece[1:-1], start=not out) if piece[0] in "'\"" else piece
    return out


def opened(operator: str, target: str) -> tuple[str, ...]:
    """Return a redirection into or from a file in its one spelling."""
    operator = operator.replace(">|", ">")
    target = f"\\{target}" if target.startswith("&") else target
    if operator in ("&>", ">&"):
        return (f">{target}", "2>&1")
    if operator == "&>>":
        return (f">>{target}", "2>&1")
    if operator[0] == "1" or operator == "0<":
        operator = operator[1:]
    return (operator + target,)


def duplicated(text: str) -> str:
    """Return a redirection of one stream into another in its one spelling."""
    return text[1:] if text.startswith("1>") else text


def ordered(redirects: list[str]) -> tuple[str, ...]:
    """Put what is read before what is written; the order of the written ones counts."""
    if len(redirects) < 2:
        return tuple(redirects)
    return tuple(sorted(redirects, key=lambda r: not r.startswith("<")))
