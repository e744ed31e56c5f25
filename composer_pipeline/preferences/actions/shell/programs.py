"""What the words of a simple command mean: wrappers off, program, subcommand, operands, flags.

Belongs here: reading a command with the tables (``preferences.actions.shell.programs_table``).
Does not belong here: parsing a line (``preferences.actions.shell.parse``), what a command acts on
(``preferences.actions.shell.targets``) and effects (``preferences.actions.shell.effects``).
"""

import posixpath
import re
from collections.abc import Sequence

from composer_pipeline.preferences.actions.shell.programs_table import (
    LOCAL_BIN,
    NESTED,
    NESTED_PROGRAMS,
    PYTHON,
    RUNNERS,
    SUBCOMMANDS,
    VALUED,
    WRAPPERS,
)


def unwrap(words: Sequence[str]) -> tuple[str, ...]:
    """Return the command that a wrapper such as ``timeout 60`` or ``npx`` runs.

    ``python -m pytest`` is ``pytest``, ``uv run`` and ``poetry run`` run what follows.
    """
    words = tuple(words)
    while words:
        rest = _wrapped(words)
        if rest is None:
            program = "python" if PYTHON.fullmatch(posixpath.basename(words[0])) else words[0]
            return (LOCAL_BIN.sub("", program), *words[1:])
        if not rest:
            return words
        words = rest
    return words


def _wrapped(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return what one wrapper runs, ``None`` where the first word is none."""
    name, rest = posixpath.basename(words[0]), words[1:]
    if " ".join(words[:2]) in RUNNERS:
        return words[2:]
    if PYTHON.fullmatch(name):
        return words[2:] if len(words) > 2 and words[1] == "-m" else None
    if name not in WRAPPERS:
        return None
    valued = VALUED.get(name, "").split()
    while rest and (rest[0].startswith("-") or (name == "env" and "=" in rest[0])):
        rest = rest[2:] if rest[0] in valued else rest[1:]
    # The first operand of timeout is its duration.
    return rest[1:] if name.endswith("timeout") else rest


def split(words: Sequence[str]) -> tuple[str, str, tuple[str, ...], tuple[str, ...]]:
    """Return (program, subcommand, operands, flags) of an unwrapped command."""
    program = words[0]
    valued = set(VALUED.get(program, "").split())
    operands: list[str] = []
    flags: list[str] = []
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word == "--":
            # What follows belongs to the operands, but a flag for another program is a flag.
            for later in rest:
                (flags if later.startswith("-") else operands).append(later)
            break
        if word.startswith("-") and len(word) > 1 and not re.fullmatch(r"-\d+", word):
            flags.append(word)
            if word in valued and rest:
                flags.append(rest.pop(0))
        elif re.fullmatch(r"-\d+", word):
            flags.append(word)
        else:
            operands.append(word)
    subcommand = ""
    if program in SUBCOMMANDS and operands:
        subcommand = operands.pop(0)
        nested = program in NESTED_PROGRAMS or f"{program} {subcommand}" in NESTED
        if nested and operands:
            subcommand += f" {operands.pop(0)}"
    return program, subcommand, tuple(operands), tuple(flags)
