"""Bash command lines as flat lists of stages, read with tree-sitter-bash.

A loop, condition or subshell is one stage whose words are its tokens; the commands inside it still
count when the line is judged as mutating. A line that the grammar rejects becomes shlex tokens.
"""

import posixpath
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

_EXPANDED = re.compile(r'[*?\[\]$`\\"]')
_BRACES = re.compile(r"[{}]")
_ACTIVE = re.compile(r"(?<!\\)(?:\\\\)*[$`]")
_HOME = re.compile(r'(?:~|\$HOME|"\$HOME"|\$\{HOME\}|"\$\{HOME\}")(?=/|$)')
_GLOB_FIRST = re.compile(r"\./[*?\[{]")
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b"}


@dataclass(frozen=True)
class Place:
    """Where paths are resolved: the working directory and the home folder."""

    cwd: str = ""
    home: str = ""
    base: str = ""  #: what results are relative to; a ``cd`` inside a line moves only ``cwd``

    def path(self, text: str) -> str:
        """Return a normalized POSIX path, relative if it is below the working directory."""
        if text.startswith("~") and self.home and (text == "~" or text.startswith("~/")):
            text = self.home + text[1:]
        if not text:
            return "."
        if not self.cwd:
            return posixpath.normpath(text)
        if not text.startswith("/"):
            text = f"{self.cwd}/{text}"
        text = posixpath.normpath(text)
        base = posixpath.normpath(self.base or self.cwd)
        if text == base:
            return "."
        return text.removeprefix(base.rstrip("/") + "/")

    def inside(self, folder: str) -> "Place":
        """Return the place after ``cd folder``; results stay relative to the same folder."""
        folder = at_home(folder, self)
        if not folder.startswith("/"):
            folder = f"{self.cwd}/{folder}"
        return Place(posixpath.normpath(folder), self.home, self.base or self.cwd)


def literal(text: str, *, start: bool = True) -> str:
    """Encode text in which nothing is expanded; a tilde means home only at the ``start``."""
    out = _EXPANDED.sub(r"\\\g<0>", text)
    if "{" in out and ("," in out or ".." in out):
        out = _BRACES.sub(r"\\\g<0>", out)
    return "\\" + out if start and out.startswith("~") else out


def unescaped(text: str, *, start: bool = True) -> str:
    r"""Encode an unquoted word: ``\x`` is a literal x, a line continuation disappears."""
    if "\\" not in text:
        return text
    parts = re.split(r"\\(.)", text, flags=re.DOTALL)
    out = ""
    for i, part in enumerate(parts):
        if i % 2 == 0:
            out += part
        elif part != "\n":
            out += literal(part, start=start and not out)
    return out


def double_quoted(text: str, *, start: bool = True) -> str:
    """Encode text between double quotes that contains no expansion."""
    if "\\" in text:
        text = re.sub(r'\\([$`"\\])', r"\1", text.replace("\\\n", ""))
    return literal(text, start=start)


def ansi_c(text: str, *, start: bool = True) -> str:
    """Encode ``$'…'``; a word with other than simple escapes stays as written."""
    inner = text[2:-1]
    if re.search(r"\\[^ntr\\'\"ab]", inner):
        return text
    return literal(re.sub(r"\\(.)", lambda m: _ANSI[m[1]], inner), start=start)


def varies(word: str) -> bool:
    """Return True if a word contains an expansion or a substitution."""
    return ("$" in word or "`" in word) and bool(_ACTIVE.search(word))


def at_home(word: str, place: Place) -> str:
    """Expand the home folder at the beginning of a word, as the shell does."""
    if word[:1] in ("~", "$", '"') and place.home:
        return _HOME.sub(place.home.replace("\\", r"\\"), word, count=1)
    return word


def file_word(word: str, place: Place, *, slash: bool = False) -> str:
    """Resolve a word that names a file if its value is known; ``slash`` keeps a final slash."""
    word = at_home(word, place)
    if varies(word) or _GLOB_FIRST.match(word) or word == "-":
        return word
    path, colons, node = word.partition("::")
    ending = "/" if slash and path.endswith("/") and len(path) > 1 else ""
    return place.path(path) + ending + colons + node


def package_word(word: str, place: Place) -> str:
    """Resolve a word that is a path only if it looks like one (``npm install ./x``)."""
    word = at_home(word, place)
    if varies(word):
        return word
    if word.startswith("/"):
        path = place.path(word)
        return path if path.startswith("/") else f"./{path}"
    if word.startswith("./") and "..." not in word:
        return "./" + place.path(word)
    return word


@dataclass(frozen=True)
class Stage:
    """One command: encoded words, redirections in canonical spelling, environment."""

    words: tuple[str, ...]
    connector: str = ""  #: joins it to the previous stage
    env: tuple[str, ...] = ()
    redirects: tuple[str, ...] = ()
    negated: bool = False
    compound: str = ""  #: kind of a loop or subshell, whose words are its tokens
    background: bool = False  #: a final ``&``


@dataclass(frozen=True)
class Line:
    """A parsed command line and every simple command inside it, at any depth."""

    stages: tuple[Stage, ...]
    every: tuple[Stage, ...]
    parsed: bool = True


#: The beginning of an assignment; an element of an array has a subscript.
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=")


def opened(operator: str, target: str) -> tuple[str, ...]:
    """Return a redirection into or from a file in canonical spelling."""
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
    """Return a redirection of one stream into another in canonical spelling."""
    return text[1:] if text.startswith("1>") else text


def ordered(redirects: list[str]) -> tuple[str, ...]:
    """Put inputs before outputs; the order of the outputs matters."""
    if len(redirects) < 2:
        return tuple(redirects)
    return tuple(sorted(redirects, key=lambda r: not r.startswith("<")))


EXPANSIONS = frozenset(
    {"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"}
)


def substitution(text: str) -> str:
    """Write backticks as ``$(…)`` if nothing inside is escaped."""
    if text[0] == "`" and "\\" not in text:
        text = f"$({text[1:-1]})"
    return f"$({text[2:-1].strip()})" if text.startswith("$(") else text


def short_name(text: str) -> str:
    """Write ``${X}`` as ``$X``; safe only inside quotes, where nothing follows the name."""
    return re.sub(r"^\$\{(\w+)\}$", r"$\1", text)


def heredoc(node: Any, source: bytes) -> str:
    """Return the body after ``<<$`` if the shell expands it, after ``<<'`` otherwise."""
    start = next((text_of(c) for c in node.children if c.type == "heredoc_start"), "")
    body = next((c for c in node.children if c.type == "heredoc_body"), None)
    text = ""
    if body is not None:
        # The node starts at the first word of the body, without the blanks before it.
        begin = body.start_byte
        while begin and source[begin - 1 : begin] in (b" ", b"\t", b"\n"):
            begin -= 1
        begin = source.index(b"\n", begin) + 1 if b"\n" in source[begin : body.end_byte] else begin
        text = source[begin : body.end_byte].decode("utf-8", "surrogatepass")
    if any(c.type == "<<-" for c in node.children):
        text = re.sub(r"(?m)^\t+", "", text)
    expanded = not re.search(r"['\"\\]", start) and re.search(r"[$`\\]", text)
    return ("<<$" if expanded else "<<'") + text


def text_of(node: Any) -> str:
    """Return the source text of a node."""
    data: bytes = node.text or b""
    return data.decode("utf-8", "surrogatepass")


_CONNECTORS = frozenset({"&&", "||", ";", "|", "|&", "&", "\n"})
_GROUPS = frozenset({"program", "list", "pipeline"})
_HEREDOC_PARTS = frozenset(
    {"heredoc_start", "heredoc_body", "heredoc_end", "file_redirect", "herestring_redirect"}
)
_ARGUMENTS = frozenset({"word", "number", "string", "raw_string", "concatenation"})
_STATEMENTS = frozenset(
    {"command", "pipeline", "list", "redirected_statement", "declaration_command",
     "unset_command", "variable_assignment", "variable_assignments", "test_command",
     "negated_command", "if_statement", "for_statement", "while_statement", "case_statement",
     "subshell", "compound_statement", "function_definition", "c_style_for_statement"}
)  # fmt: skip
_EXPRESSIONS = frozenset({"binary_expression", "unary_expression", "negation_expression"})
_OPERATOR = re.compile(r"[;&|<>()!]+|[{}]")
_BODIES = frozenset(
    {"do_group", "compound_statement", "subshell", "if_statement", "elif_clause", "else_clause",
     "case_item", "while_statement", "program"}
)  # fmt: skip


@lru_cache(maxsize=4096)
def parse(command: str) -> Line:
    """Parse a command line; never raises."""
    return _read_tree(command.replace("\r\n", "\n").strip())


@cache
def _parser() -> Any:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


_HEREDOC_FIRST = re.compile(
    r"(<<-?[ \t]*(?:'\w+'|\"\w+\"|\w+))((?:[ \t]+\d?>{1,2}[ \t]*&?[^\s|;&<>]+)+)"
)


def _read_tree(text: str) -> Line:
    source = text.encode("utf-8", "surrogatepass")
    tree = _parser().parse(source)
    if tree.root_node.has_error and "<<" in text:
        # The grammar fails on redirections between a heredoc's start and a pipe.
        source = _HEREDOC_FIRST.sub(r"\2 \1", text, count=1).encode("utf-8", "surrogatepass")
        tree = _parser().parse(source)
    if tree.root_node.has_error:
        stage = Stage(_tokens_of(text), compound="unparsed")
        return Line((stage,), (stage,), parsed=False)
    reader = _Reader(source)
    reader.walk(tree.root_node)
    return Line(tuple(reader.stages), tuple(reader.every))


def _tokens_of(text: str) -> tuple[str, ...]:
    """Split with quotes and operators kept; text that shlex rejects is one token."""
    lexer = shlex.shlex(text, posix=False, punctuation_chars=True)
    lexer.whitespace = " \t"
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return tuple(lexer)
    except ValueError:
        return (text,)


class _Reader:
    """Collects stages from a syntax tree."""

    def __init__(self, source: bytes) -> None:
        self.stages: list[Stage] = []
        self.every: list[Stage] = []
        self._source = source
        self._connector = ""

    def walk(self, node: Any) -> None:
        kind = node.type
        if kind in _GROUPS:
            self._group(node)
        elif kind in _VISITS:
            _VISITS[kind](self, node)
        elif node.is_named and kind != "comment":
            self._push(Stage(tuple(self._tokens(node)), compound=kind))
            self._inside(node)

    def _redirected(self, node: Any) -> None:
        body = node.child_by_field_name("body")
        start = len(self.stages)
        if body is not None:
            self.walk(body)
        if len(self.stages) == start:
            self._push(Stage(()))
        self._amend(self._redirects(node))
        self._unseen(node)
        for child in node.children:
            if child.type.endswith("_redirect"):
                self._inside(child)
            if child.type == "heredoc_redirect":
                self._after_heredoc(child)

    def _negated(self, node: Any) -> None:
        start = len(self.stages)
        self.walk(node.children[-1])
        if len(self.stages) > start:
            self.stages[start] = replace(self.stages[start], negated=True)

    def _command(self, node: Any) -> None:
        self._push(self._simple(node))
        self._inside(node)

    def _assigned(self, node: Any) -> None:
        found = [node] if node.type == "variable_assignment" else node.named_children
        values = tuple(self._assignment(n) for n in found)
        named = all(ASSIGNMENT.match(value) for value in values)
        self._push(Stage((), env=values) if named else Stage(values))
        self._inside(node)

    def _declared(self, node: Any) -> None:
        words = [
            self._assignment(c) if c.type == "variable_assignment" else self._word(c)
            for c in node.children
        ]
        self._push(Stage(tuple(words)))
        self._inside(node)

    def _tested(self, node: Any) -> None:
        words = self._tokens(node)
        single = words[:1] == ["["] and words[-1:] == ["]"]
        self._push(Stage(("test", *(words[1:-1] if single else words))))
        self._inside(node)

    def _group(self, node: Any) -> None:
        for child in node.children:
            if child.type in _CONNECTORS:
                if child.type != "\n" or not self._connector:
                    self._connector = ";" if child.type == "\n" else child.type
            elif child.type != "comment":
                if self.stages and not self._connector:
                    self._connector = ";"
                self.walk(child)
        if node.type == "program" and self._connector == "&" and self.stages:
            self.stages[-1] = replace(self.stages[-1], background=True)

    def _after_heredoc(self, node: Any) -> None:
        """Walk what follows ``<<EOF`` on its line, which the grammar nests in it."""
        for child in node.children:
            if child.type in _CONNECTORS:
                self._connector = child.type
            elif child.is_named and child.type not in _HEREDOC_PARTS | _ARGUMENTS:
                if child.type == "pipeline":
                    self._connector = "|"
                self.walk(child)

    def _unseen(self, node: Any) -> None:
        """Add words that the grammar puts into a redirection, and a ``-`` that it drops."""
        last = self.stages[-1]
        words, env = list(last.words), list(last.env)
        position = node.start_byte
        for child in node.children:
            words += self._source[position : child.start_byte].decode("utf-8", "replace").split()
            position = child.end_byte
            self._add_words(_after_target(child), words, env)
            if child.type == "heredoc_redirect":
                self._add_words(child.children_by_field_name("argument"), words, env)
                for inner in child.children:
                    self._add_words(_after_target(inner), words, env)
        if len(words) > len(last.words) or len(env) > len(last.env):
            self.stages[-1] = replace(last, words=tuple(words), env=tuple(env))
            self.every.append(self.stages[-1])

    def _add_words(self, nodes: list[Any], words: list[str], env: list[str]) -> None:
        """Add words after a redirection's target; before the program they may be assignments."""
        for node in nodes:
            if not words and ASSIGNMENT.match(text := text_of(node)):
                # The grammar has a plain word here: its value is read as an assignment's.
                env += _read_tree(text).stages[0].env
            else:
                words.append(self._word(node))

    def _push(self, stage: Stage) -> None:
        stage = replace(stage, connector=self._connector)
        self._connector = ""
        self.stages.append(stage)
        self.every.append(stage)

    def _amend(self, redirects: tuple[str, ...]) -> None:
        """Attach redirections, which bind to the last command of a list."""
        last = self.stages[-1]
        changed = replace(last, redirects=ordered([*last.redirects, *redirects]))
        self.stages[-1] = changed
        # Nested commands may follow in ``every``; order does not matter there.
        self.every.append(changed)

    def _inside(self, node: Any) -> None:
        """Collect the commands of substitutions, loops and subshells for judging."""
        for child in node.children:
            if child.type == "command":
                self.every.append(self._simple(child))
            elif child.type == "redirected_statement":
                self.every.append(Stage((), redirects=self._redirects(child)))
            if child.child_count:
                self._inside(child)

    def _simple(self, node: Any) -> Stage:
        words: list[str] = []
        env: list[str] = []
        redirects: list[str] = []
        for child in node.children:
            if child.type == "variable_assignment":
                # The grammar also takes a first word such as --x=1 for an assignment.
                named = ASSIGNMENT.match(text_of(child)) is not None
                (env if named else words).append(self._assignment(child))
            elif child.type.endswith("_redirect"):
                redirects.extend(self._redirect(child))
                self._add_words(_after_target(child), words, env)
            elif child.is_named:
                words.append(self._word(child))
            elif child.type not in ("\n", ";"):
                words.append(text_of(child))
        return Stage(tuple(words), env=tuple(env), redirects=ordered(redirects))

    def _assignment(self, node: Any) -> str:
        value = node.child_by_field_name("value")
        if value is None or value.type == "array":
            return text_of(node)
        name = self._source[node.start_byte : value.start_byte].decode("utf-8", "surrogatepass")
        return name + self._word(value)

    def _word(self, node: Any, *, start: bool = True) -> str:
        kind = node.type
        if kind == "command_name" and node.children:
            return self._word(node.children[0], start=start)
        if kind in ("word", "number", "special_character", "variable_name", "extglob_pattern"):
            return unescaped(text_of(node), start=start)
        if kind == "raw_string":
            return literal(text_of(node)[1:-1], start=start)
        if kind == "string":
            return self._string(node, start=start)
        if kind == "ansi_c_string":
            return ansi_c(text_of(node), start=start)
        if kind == "concatenation":
            return self._concatenation(node, start=start)
        if kind == "command_substitution":
            return substitution(text_of(node))
        return text_of(node)

    def _concatenation(self, node: Any, *, start: bool) -> str:
        text = text_of(node)
        # Quotes inside braces decide whether they expand; such a word stays as it is.
        if re.search(r"\{[^}]*['\"\\]", text):
            return text
        out, position = "", node.start_byte
        for child in node.children:
            if child.start_byte != position:
                return text
            position = child.end_byte
            out += self._word(child, start=start and not out)
        return out if position == node.end_byte else text

    def _string(self, node: Any, *, start: bool) -> str:
        begin, end = node.start_byte + 1, node.end_byte - 1
        if self._source[node.start_byte : begin] != b'"':
            return text_of(node)
        out = ""
        for child in node.children:
            if child.type in EXPANSIONS:
                out += self._plain(begin, child.start_byte, start=start and not out)
                out += f'"{short_name(self._word(child))}"'
                begin = child.end_byte
        return out + self._plain(begin, end, start=start and not out)

    def _plain(self, begin: int, end: int, *, start: bool) -> str:
        text = self._source[begin:end].decode("utf-8", "surrogatepass")
        return double_quoted(text, start=start)

    def _redirects(self, node: Any) -> tuple[str, ...]:
        """Return the redirections of a statement, including those after a heredoc's start."""
        found: list[str] = []
        for child in node.children:
            if child.type.endswith("_redirect"):
                found.extend(self._redirect(child))
                if child.type == "heredoc_redirect":
                    found.extend(self._redirects(child))
        return tuple(found)

    def _redirect(self, node: Any) -> tuple[str, ...]:
        if node.type == "heredoc_redirect":
            return (heredoc(node, self._source),)
        operator, target = "", ""
        named = [c for c in node.children if c.is_named and c.type != "file_descriptor"]
        if named:
            target = self._word(named[0])
        for child in node.children:
            if not child.is_named or child.type == "file_descriptor":
                operator += text_of(child)
        if node.type == "herestring_redirect":
            return (operator + target,)
        if operator.endswith("&") and (target.isdigit() or target == "-" or operator[0] == "<"):
            return (duplicated(operator + target),)
        if operator.endswith("&-"):
            return (duplicated(operator),)
        return opened(operator, target)

    def _tokens(self, node: Any) -> list[str]:
        """Return the tokens of a construct, one for each word, without layout."""
        out: list[str] = []
        for child in node.children:
            kind = child.type
            if kind in (";", "\n", "comment"):
                continue
            if kind.endswith("_redirect"):
                out.extend(self._redirect(child))
                out.extend(map(self._word, _after_target(child)))
                if kind == "heredoc_redirect":
                    out.extend(self._redirects(child))
                    out.extend(self._word(c) for c in child.children_by_field_name("argument"))
            elif kind == "variable_assignment":
                out.append(self._assignment(child))
            elif kind in _STATEMENTS or kind in _BODIES or kind in _EXPRESSIONS:
                out.extend(self._tokens(child))
                if node.type in _BODIES and kind in _STATEMENTS:
                    out.append(";")
            elif child.is_named:
                # A quoted operator is a word; the mark keeps it apart from the operator.
                word = self._word(child)
                out.append(f"\\{word}" if _OPERATOR.fullmatch(word) else word)
            else:
                out.append(text_of(child))
        if not node.children:
            out.append(text_of(node))
        return out


def _after_target(node: Any) -> list[Any]:
    """Return the words after a redirection's target, which the grammar puts inside it."""
    if node.type != "file_redirect":
        return []
    return [c for c in node.children if c.is_named and c.type != "file_descriptor"][1:]


#: How a node of the grammar becomes stages; any other named node is one opaque stage.
_VISITS: dict[str, Callable[[_Reader, Any], None]] = {
    "redirected_statement": _Reader._redirected,
    "negated_command": _Reader._negated,
    "command": _Reader._command,
    "variable_assignment": _Reader._assigned,
    "variable_assignments": _Reader._assigned,
    "declaration_command": _Reader._declared,
    "unset_command": _Reader._declared,
    "test_command": _Reader._tested,
}
