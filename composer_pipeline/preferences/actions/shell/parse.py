"""Bash lines as lists of simple commands.

Belongs here: reading a line with tree-sitter-bash, and the fallback for lines that the
grammar rejects. Does not belong here: the short cut for plain lines
(``preferences.actions.shell.plain_lines``) and what commands mean
(``preferences.actions.shell.lines``).

A line is a flat list of stages in source order, each with the connector before it. Loops,
conditions and subshells are one stage whose words are their tokens; the commands inside them
still count when the line is judged as mutating.
"""

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from composer_pipeline.preferences.actions.shell.plain_lines import (
    ASSIGNMENT,
    Line,
    Stage,
    duplicated,
    opened,
    ordered,
    read_plain,
)
from composer_pipeline.preferences.actions.shell.tree_words import (
    EXPANSIONS,
    heredoc,
    short_name,
    substitution,
    text_of,
)
from composer_pipeline.preferences.actions.shell.words import (
    ansi_c,
    double_quoted,
    literal,
    unescaped,
)

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
    text = command.replace("\r\n", "\n").strip()
    return read_plain(text) or read_tree(text)


# -- the grammar -------------------------------------------------------------------


@cache
def _parser() -> Any:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


_HEREDOC_FIRST = re.compile(
    r"(<<-?[ \t]*(?:'\w+'|\"\w+\"|\w+))((?:[ \t]+\d?>{1,2}[ \t]*&?[^\s|;&<>]+)+)"
)


def read_tree(text: str) -> Line:
    """Read a line with tree-sitter; what it rejects becomes one stage of shlex tokens."""
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
    """Split with quotes and operators kept apart; without success the text is one token."""
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
        found: list[str] = []
        position = node.start_byte
        for child in node.children:
            found += self._source[position : child.start_byte].decode("utf-8", "replace").split()
            position = child.end_byte
            found += self._behind(child)
            if child.type == "heredoc_redirect":
                found += [self._word(c) for c in child.children_by_field_name("argument")]
                for inner in child.children:
                    found += self._behind(inner)
        if found:
            last = self.stages[-1]
            self.stages[-1] = replace(last, words=(*last.words, *found))
            self.every.append(self.stages[-1])

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
                words.extend(self._behind(child))
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
        """Encode the word of a node."""
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
        """Return the redirections of a statement, those after a heredoc's start included."""
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

    def _behind(self, node: Any) -> list[str]:
        """Return the words after a redirection's target, which the grammar puts inside it."""
        if node.type != "file_redirect":
            return []
        named = [c for c in node.children if c.is_named and c.type != "file_descriptor"]
        return [self._word(child) for child in named[1:]]

    def _tokens(self, node: Any) -> list[str]:
        """Return the tokens of a construct, one for each word, layout left out."""
        out: list[str] = []
        for child in node.children:
            kind = child.type
            if kind in (";", "\n", "comment"):
                continue
            if kind.endswith("_redirect"):
                out.extend(self._redirect(child))
                out.extend(self._behind(child))
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
