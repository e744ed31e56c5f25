"""Options and operands of known commands, read with a small grammar of each command.

A command with an option that its grammar does not know keeps its order: whether the next word is
that option's value is not known.
"""

import re
from dataclasses import dataclass
from functools import cache

from composer_pipeline.preferences.actions.shell_options_table import (
    ALIASES,
    GLOBAL_ANYWHERE,
    GLOBAL_VALUED,
    GRAMMARS,
    SUBCOMMANDS,
)

_COUNT = re.compile(r"-(\d+)")


@dataclass(frozen=True)
class Grammar:
    """How a command reads its words."""

    kind: str  #: what the operands are: paths, pattern or script (then paths), packages or text
    names: dict[str, str]  #: option as written (``-r``, ``--recursive``) to its canonical name
    #: Canonical name to ``""`` (no value), ``":"`` (value), ``"?"`` (attached value only) or
    #: ``"@"`` (a value that is acted on, like an operand).
    arity: dict[str, str]
    groups: dict[str, str]  #: canonical name to its group, in which the last option wins
    count: str  #: what ``-5`` means, or an empty string
    unordered: bool  #: operands commute
    stop: bool  #: options end at the first operand
    dash: bool  #: options are words with one dash (``go``)
    here: bool  #: without operands the command acts on the working directory
    tail: bool  #: words after ``--`` belong to another program


@dataclass(frozen=True)
class Reading:
    """A command read by its grammar: options in canonical order, operands as written."""

    program: str
    subcommand: str
    before: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    operands: tuple[str, ...]
    tail: tuple[str, ...]
    grammar: Grammar


def read(words: tuple[str, ...]) -> Reading | None:
    """Read an unwrapped command; ``None`` if no grammar fits all of its words."""
    program = words[0]
    subcommand, rest = "", words[1:]
    before: tuple[str, ...] = ()
    if program in SUBCOMMANDS and not (
        program in GRAMMARS and f"{program} {' '.join(rest[:1])}" not in GRAMMARS
    ):
        split = _subcommand(program, rest)
        if split is None:
            return None
        before, subcommand, rest = split
    elif program == "tar" and rest and re.fullmatch(r"[a-zA-Z]*f|[a-eg-zA-Z]+", rest[0]):
        rest = (f"-{rest[0]}", *rest[1:])
    grammar = grammar_of(f"{program} {subcommand}" if subcommand else program)
    if grammar is None:
        return None
    taken = _take(rest, grammar)
    if taken is None:
        return None
    options, operands, tail = taken
    return Reading(program, subcommand, before, options, operands, tail, grammar)


def _subcommand(
    program: str, rest: tuple[str, ...]
) -> tuple[tuple[str, ...], str, tuple[str, ...]] | None:
    """Return (options of the program itself, canonical subcommand, words after it)."""
    depth = 0
    while depth < len(rest) and rest[depth].startswith("-"):
        # Options of the program itself stay where they are.
        depth += 2 if f"{program} {rest[depth]}" in GLOBAL_VALUED else 1
    before, rest = rest[:depth], rest[depth:]
    if not rest:
        return None
    subcommand, rest = rest[0], rest[1:]
    name = f"{program} {subcommand}"
    if rest and f"{name} {rest[0]}" in ALIASES:
        subcommand, rest = ALIASES[f"{name} {rest[0]}"], rest[1:]
    elif name in ALIASES:
        subcommand = ALIASES[name]
    elif rest and f"{name} {rest[0]}" in GRAMMARS:
        subcommand, rest = f"{subcommand} {rest[0]}", rest[1:]
    elif name == "git stash" and (not rest or rest[0].startswith("-")):
        subcommand = "stash push"
    if before and program in GLOBAL_ANYWHERE:
        before, rest = (), (*before, *rest)
    return before, subcommand, rest


@cache
def grammar_of(command: str) -> Grammar | None:
    """Return the grammar of ``program`` or ``program subcommand``."""
    text = GRAMMARS.get(command)
    return None if text is None else _grammar(text)


def _grammar(text: str) -> Grammar:
    names: dict[str, str] = {}
    arity: dict[str, str] = {}
    groups: dict[str, str] = {}
    kind, *tokens = text.split()
    count, switches = "", set()
    for token in tokens:
        if token.startswith("+"):
            for letter in token[1:]:
                names[f"-{letter}"] = f"-{letter}"
                arity[f"-{letter}"] = ""
        elif token.startswith("!"):
            members = token[1:].split(",")
            groups.update({_dashed(m): _dashed(members[0]) for m in members})
        elif token.startswith("#"):
            count = token[1:]
        elif token.startswith("-"):
            takes = token[-1] if token[-1] in ":?@" else ""
            written = token.removesuffix(takes).split("/") if takes else token.split("/")
            for name in written:
                names[name] = written[0]
            arity[written[0]] = takes
        else:
            switches.add(token)
    return Grammar(
        kind=kind, names=names, arity=arity,
        groups={names.get(k, k): v for k, v in groups.items()}, count=count,
        unordered="unordered" in switches, stop="stop" in switches, dash="dash" in switches,
        here="here" in switches, tail="tail" in switches,
    )  # fmt: skip


def _dashed(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name}"


def _take(
    rest: tuple[str, ...], grammar: Grammar
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...], tuple[str, ...]] | None:
    """Return (options, operands, ``--`` and the words after it)."""
    options: list[tuple[str, str]] = []
    operands: list[str] = []
    at, end = 0, len(rest)
    while at < end:
        word = rest[at]
        at += 1
        if word[:1] != "-" or word == "-":
            operands.append(word)
            if grammar.stop:
                operands.extend(rest[at:])
                break
            continue
        if word == "--":
            return _sorted(options, grammar), tuple(operands), rest[at - 1 :]
        read = _options_of(word, rest, at, grammar)
        if read is None:
            return None
        found, at = read
        options.extend(found)
    return _sorted(options, grammar), tuple(operands), ()


#: Options of one word, and the position after the values that they took.
_Options = tuple[list[tuple[str, str]], int]


def _options_of(word: str, rest: tuple[str, ...], at: int, grammar: Grammar) -> _Options | None:
    if (name := grammar.names.get(word)) is not None:
        if grammar.arity[name] not in (":", "@"):
            return [(name, "")], at
        return ([(name, rest[at])], at + 1) if at < len(rest) else None
    if word.startswith("--") or grammar.dash:
        return _long_option(word, rest, at, grammar)
    if grammar.count and (match := _COUNT.fullmatch(word)):
        return [(grammar.count, match[1])], at
    return _bundle(word[1:], rest, at, grammar)


def _long_option(word: str, rest: tuple[str, ...], at: int, grammar: Grammar) -> _Options | None:
    """Read ``--name``, ``--name=value`` and, where one dash is enough, ``-name value``."""
    names, arity = grammar.names, grammar.arity
    flag, equals, value = word.partition("=")
    flag = flag[1:] if grammar.dash and flag.startswith("--") else flag
    if grammar.dash and not equals and arity.get(names.get(flag, ""), "") and at < len(rest):
        equals, value, at = "=", rest[at], at + 1
    name = names.get(flag)
    if name is None or (not equals and arity[name]) or (equals and not arity[name]):
        return None
    return [(name, value)], at


def _bundle(letters: str, rest: tuple[str, ...], at: int, grammar: Grammar) -> _Options | None:
    """Read ``-rn``, ``-n5`` and ``-am message``."""
    found: list[tuple[str, str]] = []
    for i, letter in enumerate(letters):
        name = grammar.names.get(f"-{letter}")
        if name is None:
            return None
        takes = grammar.arity[name]
        if not takes:
            found.append((name, ""))
            continue
        value = letters[i + 1 :]
        if not value and takes != "?":
            if at >= len(rest):
                return None
            value, at = rest[at], at + 1
        return [*found, (name, value)], at
    return found, at


def _sorted(options: list[tuple[str, str]], grammar: Grammar) -> tuple[tuple[str, str], ...]:
    # Equal names and members of one group keep their order.
    if len(options) < 2:
        return tuple(options)
    groups = grammar.groups
    return tuple(sorted(options, key=lambda option: groups.get(option[0], option[0])))
