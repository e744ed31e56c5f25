"""What a simple command acts on, which decides level L2.

Belongs here: operands as targets, in one order and spelling. Does not belong here: the stages of
a line (``preferences.actions.shell.lines``) and effects (``preferences.actions.shell.effects``).
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from composer_pipeline.preferences.actions.shell.options import Reading
from composer_pipeline.preferences.actions.shell.programs import split
from composer_pipeline.preferences.actions.shell.programs_table import (
    ORDERED,
    PACKAGED,
    SCRIPT_FIRST,
)
from composer_pipeline.preferences.actions.shell.words import Place, file_word


def target_of(
    inner: tuple[str, ...], reading: Reading | None, operands: tuple[str, ...], place: Place
) -> tuple[str, ...]:
    """Return (program, subcommand, operands…) that decide level L2.

    Operands are what is acted on: files, test selections, patterns with their place. Their
    order counts only where it means something (``cp``, ``mv``, ``ln``, ``diff``). Scripts of
    sed, awk and jq are how, not what. ``find`` acts on its folders and names.

    Args:
        inner: the unwrapped command.
        reading: the command read by its grammar, if it has one.
        operands: the resolved operands of that reading.
        place: the folder the command runs in.
    """
    program = inner[0]
    if program == "find":
        return _find(inner, place)
    if reading is None:
        subcommand, operands = _unread(inner)
        packages = program in PACKAGED
    else:
        subcommand, packages = reading.subcommand, reading.grammar.kind == "packages"
        operands = _acted_on(reading, operands)
    if program in ("grep", "rg", "egrep", "fgrep", "ag"):
        return (program, "", *operands[:1], *sorted(_plain(w, place) for w in operands[1:]))
    if program in ("curl", "wget"):
        return (program, "", *(_host(word) for word in operands))
    if program == "aws" and operands and subcommand.endswith("s3"):
        subcommand, operands = f"{subcommand} {operands[0]}", operands[1:]
    if not packages:
        operands = tuple(_plain(word, place) for word in operands)
    if program not in ORDERED and f"{program} {subcommand}" not in ORDERED:
        operands = tuple(sorted(operands))
    return (program, subcommand, *operands)


def _acted_on(reading: Reading, operands: tuple[str, ...]) -> tuple[str, ...]:
    """Return the operands without a script, with option values that are acted on too."""
    values = [v for name, v in reading.options if reading.grammar.arity.get(name) == "@"]
    if reading.program == "git" and "-C" in reading.before:
        values.insert(0, f"-C={reading.before[reading.before.index('-C') + 1]}")
    return (*values, *operands[reading.grammar.kind == "script" :])


def _unread(inner: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return (subcommand, operands) of a command without a grammar."""
    program, subcommand, operands, flags = split(inner)
    if program in SCRIPT_FIRST and not {"-e", "-f"} & set(flags):
        operands = operands[1:]
    if program in ("python", "node", "bash", "sh", "zsh", "ruby", "perl"):
        code = tuple(word for flag, word in pairwise(inner) if flag in ("-c", "-e"))
        if operands[:1] == ("manage.py",):
            # Django's script has subcommands of its own.
            return subcommand, code or operands
        operands = code or operands[:1]
    return subcommand, operands


def _find(inner: Sequence[str], place: Place) -> tuple[str, ...]:
    where = [_plain(word, place) for word in until_flag(inner[1:])] or ["."]
    names = [
        f"{flag}={value}"
        for flag, value in pairwise(inner)
        if flag in ("-name", "-iname", "-path", "-ipath", "-regex", "-type")
    ]
    return ("find", "", *sorted(where), *sorted(names))


def until_flag(words: Sequence[str]) -> list[str]:
    """Return the words before the first that begins an expression of ``find``."""
    out: list[str] = []
    for word in words:
        if word.startswith(("-", "(", "!", "\\")):
            break
        out.append(word)
    return out


def _plain(word: str, place: Place) -> str:
    """A path operand without ``./`` and the final slash, relative where it can be."""
    if "/" not in word and word[:1] not in ("~", "$", '"'):
        return word
    if "://" in word:
        return word
    return file_word(word, place)


def _host(word: str) -> str:
    match = re.match(r"(?:[a-z]+://)?([^/?#]+)", word)
    return match[1].lower() if match else word
