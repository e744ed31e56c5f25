"""Bash command lines: canonical form, target, effect.

Belongs here: what of a line only changes the display, and whether a line changes anything. Does
not belong here: the grammar of Bash (``preferences.actions.shell.parse``), the words of one
command (``preferences.actions.shell.steps``), tables of programs
(``preferences.actions.shell.programs_table``, ``options_table``) and other tools
(``preferences.actions.canonical``).
"""

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

from composer_pipeline.preferences.actions.shell.effects import changes_state
from composer_pipeline.preferences.actions.shell.parse import parse
from composer_pipeline.preferences.actions.shell.plain_lines import Line, Stage
from composer_pipeline.preferences.actions.shell.steps import Step, raw_words, step_of, tail_of
from composer_pipeline.preferences.actions.shell.targets import target_of
from composer_pipeline.preferences.actions.shell.words import (
    Place,
    at_home,
    varies,
)

__all__ = ["Line", "Place", "Stage", "canonical_line", "effective", "mutates", "parse", "targets"]

_WRITES = re.compile(r"\d*>>?(?!&|/dev/(?:null|std|tty|fd))")
_TRIMMED = re.compile(r"(?:(?:-[nc] ?|--(?:lines|bytes)=)[+-]?\d+k?|-\d+)?")
_CD_JOINS = frozenset({"&&", ";"})


@lru_cache(maxsize=4096)
def effective(command: str, place: Place) -> tuple[Step, ...]:
    """Return the stages without what changes only the display, words resolved.

    A leading ``cd`` to the working directory goes. So do, where no program and no file reads
    them and neither ``&&`` nor ``||`` follows: ``| head`` and ``| tail`` that count,
    ``|| true``, ``; echo`` without a substitution or redirection, and ``2>&1``.
    """
    stages = list(parse(command).stages)
    while (
        len(stages) > 1
        and stages[1].connector in _CD_JOINS
        and not stages[0].background
        and _folder_of(stages[0], place) == "."
    ):
        stages = [replace(stages[1], connector=""), *stages[2:]]
    if len(stages) > 1 or (stages and stages[0].redirects):
        stages = _untrimmed(stages)
    steps: list[Step] = []
    for at, stage in enumerate(stages):
        steps.append(step_of(stage, place))
        if stage.words and stage.words[0] in ("cd", "pushd", "popd"):
            after = stages[at + 1].connector if at + 1 < len(stages) else ""
            folder = _folder_of(stage, place)
            known = folder is not None and after in _CD_JOINS and stage.connector in ("", "&&", ";")
            place = place.inside(stage.words[1]) if known else Place("", place.home)
    return tuple(steps)


@lru_cache(maxsize=4096)
def canonical_line(command: str, place: Place) -> list[Any]:
    """Return a JSON-able form that is equal for equal effects. Callers leave it unchanged."""
    return [_form(step) for step in effective(command, place)]


def targets(command: str, place: Place) -> list[tuple[str, ...]]:
    """Return (program, subcommand, operands…) of each stage, for level L2."""
    found = []
    for step in effective(command, place):
        stage = step.stage
        if stage.compound:
            found.append((stage.compound, *stage.words))
        elif stage.words:
            operands = step.operands
            if step.reading is not None and step.reading.tail:
                rest = tail_of(step.reading, step.place)
                operands += tuple(word for word in rest if not word.startswith("-"))
            target = target_of(step.inner, step.reading, operands, step.place)
            if target[0] in ("cat", "echo", "printf"):
                # What a printing command acts on is the file that it writes.
                written = [r.lstrip("0123456789>") for r in stage.redirects if _WRITES.match(r)]
                if written:
                    target = (target[0], "", *written)
            found.append(target)
        else:
            found.append(("=", *stage.env))
    return found


def trimmer(form: list[Any]) -> bool:
    """Say whether a stage of :func:`canonical_line` is a ``| head`` or ``| tail`` that counts."""
    connector, command = form[:2]
    if connector != "|" or len(form) > 2 or command[:1] not in (["head"], ["tail"]):
        return False
    return len(command) == 2 and all(
        name in ("-n", "-c") and value.lstrip("+-").isdigit() for name, value in command[1]
    )


def mutates(command: str) -> bool:
    """Say whether a command line changes files, refs, packages or anything outside."""
    line = parse(command)
    if not line.parsed:
        return True
    return any(
        any(_WRITES.match(redirect) for redirect in stage.redirects)
        or (bool(stage.words) and not stage.compound and changes_state(stage.words))
        for stage in line.every
    )


# -- what only changes the display -------------------------------------------------


def _folder_of(stage: Stage, place: Place) -> str | None:
    """Return where a plain ``cd`` leads, relative to ``place``; ``None`` for anything else."""
    words = stage.words
    if len(words) != 2 or words[0] != "cd" or not place.cwd or words[1] == "-":
        return None
    if stage.redirects or stage.env or stage.negated or stage.compound:
        return None
    folder = at_home(words[1], place)
    if varies(folder) or any(c in folder for c in "*?[\\"):
        return None
    return place.path(folder)


def _untrimmed(stages: list[Stage]) -> list[Stage]:
    kept: list[Stage] = []
    following = ""
    for at in range(len(stages) - 1, -1, -1):
        stage = stages[at]
        if at and following in ("", ";") and _trims(stage):
            continue
        kept.append(stage)
        following = stage.connector
    kept.reverse()
    for at, stage in enumerate(kept):
        following = kept[at + 1].connector if at + 1 < len(kept) else ""
        redirects = stage.redirects
        if following == "|&" and "2>&1" not in redirects:
            redirects = (*redirects, "2>&1")
        elif following not in ("|", "|&") and not any(r[0] == ">" for r in redirects):
            redirects = tuple(r for r in redirects if r != "2>&1")
        connector = "|" if stage.connector == "|&" else stage.connector
        if redirects != stage.redirects or connector != stage.connector:
            kept[at] = replace(stage, redirects=redirects, connector=connector)
    return kept


def _trims(stage: Stage) -> bool:
    words = stage.words
    if not words or stage.negated or stage.env or stage.compound or stage.background:
        return False
    if stage.connector in ("|", "|&"):
        quiet = not stage.redirects or stage.redirects == ("2>&1",)
        return words[0] in ("head", "tail") and quiet and _counts(words)
    if stage.connector == "||":
        return words in (("true",), (":",)) and not stage.redirects
    if stage.connector == ";" and words[0] == "echo":
        plain = not any("$(" in w or "`" in w or ":=" in w or "(" in w[:2] for w in words)
        return plain and (not stage.redirects or stage.redirects == (">&2",))
    return False


def _counts(words: tuple[str, ...]) -> bool:
    """Say whether ``head`` or ``tail`` has nothing but a number of lines or bytes."""
    return _TRIMMED.fullmatch(" ".join(words[1:])) is not None


# -- one order, one spelling -------------------------------------------------------


def _form(step: Step) -> list[Any]:
    """Return the canonical form of a stage: connector, command, then only what is there."""
    stage, reading = step.stage, step.reading
    rest: dict[str, Any] = {}
    if stage.env:
        rest["env"] = stage.env
    if stage.redirects:
        rest["to"] = stage.redirects
    if stage.negated:
        rest["not"] = True
    if stage.background:
        rest["&"] = True
    if stage.compound:
        command: list[Any] = [stage.compound, *stage.words]
    elif not stage.words:
        command = []
    elif reading is None:
        command = [*step.prefix, *raw_words(step)]
    else:
        command = [*step.prefix, reading.program]
        if reading.subcommand:
            command += [*reading.before, reading.subcommand]
        command += [list(reading.options), *step.operands]
        if tail := tail_of(reading, step.place):
            command.append(tail)
    return [stage.connector, command, rest] if rest else [stage.connector, command]
