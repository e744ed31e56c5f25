"""Bash command lines as sequences of simple commands: canonical form, target, effect.

Belongs here: parsing with tree-sitter-bash, what only changes the display, which words of
a command are its subcommand and its operands, and which commands change files or state.
Does not belong here: other tools (``preferences.canonical``).

A line is a flat list of stages in source order, each with the connector before it. Loops,
conditions and subshells are one stage with their normalised text; the commands inside them
still count when the line is judged as mutating. A line that the grammar cannot read becomes
one stage of its shlex words, judged as mutating.
"""

import posixpath
import re
import shlex
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from composer_pipeline.preferences.commands import changes_state, operands_of

_CONNECTORS = frozenset({"&&", "||", ";", "|", "|&", "&", "\n"})
_GROUPS = frozenset({"program", "list", "pipeline"})
_HEREDOC_PARTS = frozenset(
    {"heredoc_start", "heredoc_body", "heredoc_end", "file_redirect", "herestring_redirect"}
)
_EXPANSIONS = frozenset(
    {"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"}
)
_LITERAL = re.compile(r"[*?\[\]{}$`]")


@dataclass(frozen=True)
class Stage:
    """One command: words after expansion of quotes, the redirections, the environment.

    ``connector`` is what joins it to the stage before. ``literal`` is false when a word
    holds a substitution or an expansion. ``compound`` is the kind of a loop or subshell.
    """

    words: tuple[str, ...]
    connector: str = ""
    env: tuple[str, ...] = ()
    redirects: tuple[str, ...] = ()
    literal: bool = True
    negated: bool = False
    compound: str = ""


@dataclass(frozen=True)
class Line:
    """A parsed command line and every simple command inside it, at any depth."""

    stages: tuple[Stage, ...]
    every: tuple[Stage, ...]
    parsed: bool = True


@dataclass(frozen=True)
class Place:
    """Where paths are resolved: the working directory and the home folder."""

    cwd: str = ""
    home: str = ""

    def path(self, text: str) -> str:
        """Return a POSIX path, relative to the working directory where it is below it."""
        if self.home and (text == "~" or text.startswith("~/")):
            text = self.home + text[1:]
        if not text:
            return "."
        if self.cwd and not text.startswith("/"):
            text = posixpath.join(self.cwd, text)
        text = posixpath.normpath(text)
        if self.cwd:
            cwd = posixpath.normpath(self.cwd)
            if text == cwd:
                return "."
            text = text.removeprefix(cwd.rstrip("/") + "/")
        return text


@cache
def _parser() -> Any:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


@lru_cache(maxsize=4096)
def parse(command: str) -> Line:
    """Parse a command line; never raises."""
    text = command.replace("\r\n", "\n").strip()
    tree = _parser().parse(text.encode("utf-8", "surrogatepass"))
    if tree.root_node.has_error:
        try:
            words = tuple(shlex.split(text, comments=True))
        except ValueError:
            words = tuple(text.split())
        stage = Stage(words, literal=False)
        return Line((stage,), (stage,), parsed=False)
    reader = _Reader()
    reader.walk(tree.root_node)
    return Line(tuple(reader.stages), tuple(reader.every))


@lru_cache(maxsize=4096)
def effective(command: str, place: Place) -> tuple[Stage, ...]:
    """Return the stages without what changes only the display, words resolved.

    A leading ``cd`` to the working directory goes; from the end go ``| head``, ``| tail``
    that count lines, ``|| true``, ``; echo`` without a substitution or redirection, and
    the last command's ``2>&1`` when nothing reads it.
    """
    line = parse(command)
    stages = list(line.stages)
    while len(stages) > 1 and stages[1].connector == "&&" and _is_cd_to(stages[0], place):
        stages = [replace(stages[1], connector=""), *stages[2:]]
    while len(stages) > 1 and _trims(stages[-1]):
        stages.pop()
    if stages and stages[-1].redirects == ("2>&1",):
        stages[-1] = replace(stages[-1], redirects=())
    return tuple(_resolved(stage, place) for stage in stages)


def canonical_line(command: str, place: Place) -> list[Any]:
    """Return a JSON-able form that is equal for equal effects."""
    out: list[Any] = []
    for stage in effective(command, place):
        words, flags = list(stage.words), []
        if stage.words and stage.words[0] in _COMMUTING:
            flags = sorted(w for w in words[1:] if re.fullmatch(r"-[A-Za-z]+|--[a-z-]+", w))
            flags = sorted({f"-{c}" for w in flags if w[1] != "-" for c in w[1:]}) + [
                w for w in flags if w[1] == "-"
            ]
            words = [w for w in words if w == words[0] or not _is_flag(w)]
        out.append(
            [
                stage.connector if stage.connector != "\n" else ";",
                [*words[:1], *flags, *words[1:]],
                list(stage.env),
                list(stage.redirects),
                stage.negated,
            ]
        )
    return out


def targets(command: str, place: Place) -> list[tuple[str, ...]]:
    """Return (program, subcommand, operands…) of each stage, for level L2."""
    found = []
    for stage in effective(command, place):
        if stage.compound:
            found.append((stage.compound, *stage.words))
        elif stage.words:
            written = [r.split(">")[-1].strip("|") for r in stage.redirects if _writes(r)]
            target = operands_of(stage.words)
            # What a printing command acts on is the file that it writes.
            if written and target[0] in ("cat", "echo", "printf"):
                target = (target[0], "", *written)
            found.append(target)
        else:
            found.append(("=", *stage.env))
    return found


def mutates(command: str) -> bool:
    """Say whether a command line changes files, refs, packages or anything outside."""
    line = parse(command)
    if not line.parsed:
        return True
    return any(
        any(_writes(redirect) for redirect in stage.redirects)
        or (bool(stage.words) and not stage.compound and changes_state(stage.words))
        for stage in line.every
    )


#: Commands whose short flags take no values and commute.
_COMMUTING = frozenset({"ls", "rm", "wc", "pwd", "tree", "cat"})


def _is_flag(word: str) -> bool:
    return bool(re.fullmatch(r"-[A-Za-z]+|--[a-z-]+", word))


def _is_cd_to(stage: Stage, place: Place) -> bool:
    return (
        len(stage.words) == 2
        and stage.words[0] == "cd"
        and stage.literal
        and not stage.redirects
        and bool(place.cwd)
        and place.path(stage.words[1]) == "."
    )


def _trims(stage: Stage) -> bool:
    words = stage.words
    if not words or stage.negated or stage.env or stage.compound:
        return False
    if stage.connector == "|" and words[0] in ("head", "tail"):
        rest = " ".join(words[1:])
        plain = re.fullmatch(r"((-n ?|-)\+?\d+|-n ?-\d+|--lines=\+?\d+)?", rest)
        return bool(plain) and not stage.redirects
    if stage.connector == "||":
        return words in (("true",), (":",)) and not stage.redirects
    if stage.connector in (";", "\n"):
        quiet = not stage.redirects and not any("$(" in w or "`" in w for w in words)
        return words[0] == "echo" and quiet
    return False


def _resolved(stage: Stage, place: Place) -> Stage:
    if not stage.words or stage.compound:
        return stage
    words = [_word(word, place) for word in stage.words[1:]]
    program = stage.words[0]
    if posixpath.dirname(program) in ("/bin", "/usr/bin", "/usr/local/bin"):
        program = posixpath.basename(program)
    elif program.startswith(("~/", "/")):
        path = place.path(program)
        program = path if path.startswith(("/", "../")) else f"./{path}"
    redirects = tuple(_redirect(text, place) for text in stage.redirects)
    return replace(stage, words=(program, *words), redirects=redirects)


def _word(word: str, place: Place) -> str:
    """Make absolute and home paths relative; leave what may not be a path as it is."""
    if place.home and word.startswith(("$HOME/", "${HOME}/")):
        word = "~/" + word.split("/", 1)[1]
    if word.startswith(("/", "~/")) or word == "~":
        ending = "/" if word.endswith("/") and len(word) > 1 else ""
        path, colon, node = word.partition("::")
        return place.path(path) + (ending if not colon else colon + node)
    if word.startswith("./") and len(word) > 2 and not _LITERAL.search(word) and "..." not in word:
        return "./" + posixpath.normpath(word).rstrip("/")
    return word


def _redirect(text: str, place: Place) -> str:
    match = re.fullmatch(r"(\d*(?:>>|>\||>|<|&>>|&>))([^&<>].*)", text, re.DOTALL)
    return f"{match[1]}{place.path(match[2])}" if match else text


def _writes(redirect: str) -> bool:
    match = re.match(r"(?:\d*|&)(?:>>|>\||>)\s*(.*)", redirect, re.DOTALL)
    return bool(match) and match is not None and not re.match(r"&\d|&-|/dev/(null|std)", match[1])


class _Reader:
    """Collects stages from a syntax tree."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.every: list[Stage] = []
        self._connector = ""

    def walk(self, node: Any) -> None:
        if node.type in _GROUPS:
            for child in node.children:
                if child.type in _CONNECTORS:
                    self._connector = child.type
                elif child.type != "comment":
                    if self.stages and not self._connector:
                        self._connector = ";"
                    self.walk(child)
        elif node.type == "redirected_statement":
            body = node.child_by_field_name("body")
            if body is not None:
                self.walk(body)
            else:
                self._push(Stage(()))
            self._amend(_redirects(node))
            for child in node.children:
                if child.type.endswith("_redirect"):
                    self._inside(child)
                if child.type == "heredoc_redirect":
                    self._after_heredoc(child)
        elif node.type == "negated_command":
            start = len(self.stages)
            self.walk(node.children[-1])
            if len(self.stages) > start:
                self.stages[start] = replace(self.stages[start], negated=True)
        elif node.type == "command":
            self._push(_simple(node))
            self._inside(node)
        elif node.type in ("variable_assignment", "variable_assignments"):
            self._push(Stage((), env=(_squeeze(_text(node)),), literal=False))
            self._inside(node)
        elif node.type in ("declaration_command", "unset_command"):
            self._push(Stage(tuple(_squeeze(_text(node)).split(" "))))
            self._inside(node)
        elif node.type == "test_command":
            self._push(Stage(("test", _squeeze(_text(node)))))
            self._inside(node)
        elif node.is_named:
            self._push(Stage((_squeeze(_text(node)),), literal=False, compound=node.type))
            self._inside(node)

    def _after_heredoc(self, node: Any) -> None:
        """Walk what follows ``<<EOF`` on its line, which the grammar nests in it."""
        for child in node.children:
            if child.type in _CONNECTORS:
                self._connector = child.type
            elif child.is_named and child.type not in _HEREDOC_PARTS:
                if child.type == "pipeline":
                    self._connector = "|"
                self.walk(child)

    def _push(self, stage: Stage) -> None:
        stage = replace(stage, connector=self._connector)
        self._connector = ""
        self.stages.append(stage)
        self.every.append(stage)

    def _amend(self, redirects: tuple[str, ...]) -> None:
        """Attach redirections, which bind to the last command of a list."""
        last = self.stages[-1]
        changed = replace(last, redirects=last.redirects + redirects)
        self.stages[-1] = changed
        # Nested commands may follow in ``every``; order does not matter there.
        self.every.append(changed)

    def _inside(self, node: Any) -> None:
        """Collect the commands of substitutions, loops and subshells for judging."""
        for child in node.children:
            if child.type == "command":
                self.every.append(_simple(child))
            elif child.type == "redirected_statement":
                self.every.append(Stage((), redirects=_redirects(child)))
            self._inside(child)


def _simple(node: Any) -> Stage:
    words: list[str] = []
    env: list[str] = []
    redirects: list[str] = []
    literal = True
    for child in node.children:
        if child.type == "variable_assignment":
            env.append(_squeeze(_text(child)))
        elif child.type.endswith("_redirect"):
            redirects.append(_redirect_text(child))
        elif child.is_named:
            inner = child.children[0] if child.type == "command_name" and child.children else child
            word, plain = _value(inner)
            words.append(word)
            literal = literal and plain
    return Stage(tuple(words), env=tuple(env), redirects=tuple(redirects), literal=literal)


def _value(node: Any) -> tuple[str, bool]:
    """Return a word without its quotes, and whether nothing in it is expanded.

    A quoted word with a character that the shell would expand unquoted keeps a mark, so
    that ``*.py`` and ``'*.py'`` stay different.
    """
    text = _text(node)
    if node.type == "raw_string":
        inner = text[1:-1]
        return (f"'{inner}'" if _LITERAL.search(inner) else inner), True
    if node.type == "string":
        inner = text[1:-1]
        if any(child.type in _EXPANSIONS for child in node.children):
            return f'"{inner}"', False
        inner = re.sub(r'\\([$`"\\])', r"\1", inner)
        return (f"'{inner}'" if _LITERAL.search(inner) else inner), True
    if node.type == "concatenation":
        parts = [_value(child) for child in node.children if child.is_named]
        return "".join(word for word, _ in parts), all(plain for _, plain in parts)
    if node.type in ("word", "number", "special_character"):
        return re.sub(r"\\(.)", r"\1", text), True
    return _squeeze(text), False


def _redirects(node: Any) -> tuple[str, ...]:
    """Return the redirections of a statement, those after a heredoc's start included."""
    found: list[str] = []
    for child in node.children:
        if child.type.endswith("_redirect"):
            found.append(_redirect_text(child))
            if child.type == "heredoc_redirect":
                found.extend(_redirects(child))
    return tuple(found)


def _redirect_text(node: Any) -> str:
    if node.type == "heredoc_redirect":
        body = next((c for c in node.children if c.type == "heredoc_body"), None)
        return "<<" + (_text(body) if body is not None else "")
    parts = []
    for child in node.children:
        parts.append(_value(child)[0] if child.is_named else _text(child))
    return "".join(parts)


def _text(node: Any) -> str:
    data: bytes = node.text or b""
    return data.decode("utf-8", "surrogatepass")


def _squeeze(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
