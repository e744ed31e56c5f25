"""Bash command lines: canonical form, target, effect.

Belongs here: what of a line only changes the display, the words of each command in one
order and spelling, and whether a line changes anything. Does not belong here: the grammar
of Bash (``preferences.actions.shell.parse``), tables of programs
(``preferences.actions.shell.programs``, ``preferences.actions.shell.options_table``) and other
tools (``preferences.actions.canonical``).
"""

import posixpath
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from composer_pipeline.preferences.actions.shell.effects import changes_state
from composer_pipeline.preferences.actions.shell.options import Reading, read
from composer_pipeline.preferences.actions.shell.parse import parse
from composer_pipeline.preferences.actions.shell.plain_lines import Line, Stage
from composer_pipeline.preferences.actions.shell.programs import unwrap
from composer_pipeline.preferences.actions.shell.targets import target_of, until_flag
from composer_pipeline.preferences.actions.shell.words import (
    Place,
    at_home,
    file_word,
    package_word,
    varies,
)

__all__ = ["Line", "Place", "Stage", "canonical_line", "effective", "mutates", "parse", "targets"]

_SYSTEM = frozenset({"/bin", "/usr/bin", "/usr/local/bin"})
_REDIRECT = re.compile(r"(\d*(?:>>|>|<)|&>>?)(?![<&>(])(.*)", re.DOTALL)
_WRITES = re.compile(r"\d*>>?(?!&|/dev/(?:null|std|tty|fd))")
_TRIMMED = re.compile(r"(?:(?:-[nc] ?|--(?:lines|bytes)=)[+-]?\d+k?|-\d+)?")
_FIND_TESTS = frozenset(
    {"-name", "-iname", "-path", "-ipath", "-type", "-maxdepth", "-mindepth", "-size", "-mtime",
     "-mmin", "-newer", "-perm", "-user", "-regex", "-iregex"}
)  # fmt: skip
_INTERPRETERS = frozenset({"python", "node", "bash", "sh", "zsh", "ruby", "perl", "php"})
_FILE_READERS = frozenset(
    {"less", "more", "bat", "md5sum", "sha256sum", "shasum", "hexdump", "xxd", "strings", "tac",
     "rev", "realpath", "readlink", "zcat", "shellcheck", "yamllint", "pylint", "mocha"}
)  # fmt: skip
_CD_JOINS = frozenset({"&&", ";"})


@dataclass(frozen=True)
class Step:
    """A stage that matters, its words as its grammar reads them, and where it runs."""

    stage: Stage
    place: Place
    prefix: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    reading: Reading | None = None
    operands: tuple[str, ...] = ()


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
        steps.append(_step(stage, place))
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
                rest = _tail(step.reading, step.place)
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


def _step(stage: Stage, place: Place) -> Step:
    if stage.redirects:
        redirects = tuple(_redirect(text, place) for text in stage.redirects)
        stage = replace(stage, redirects=redirects)
    if not stage.words or stage.compound:
        return Step(stage, place)
    words = stage.words
    if "/" in words[0]:
        words = (_program(words[0], place), *words[1:])
    inner = unwrap(words)
    prefix = words[: len(words) - len(inner)]
    if inner[0] != words[len(prefix)]:
        prefix = (*prefix, words[len(prefix)])
    if prefix and prefix[0] == "env" and all("=" in word for word in prefix[1:]):
        stage, prefix = replace(stage, env=(*stage.env, *prefix[1:])), ()
    if len(stage.env) > 1 and not any("$" in value for value in stage.env):
        stage = replace(stage, env=tuple(sorted(stage.env, key=lambda e: e.split("=")[0])))
    reading = read(inner)
    if reading is not None and reading.program == "git" and "-C" in reading.before:
        reading, place = _git_folder(reading, place)
    operands = _operands(reading, stage, place) if reading is not None else ()
    if reading is not None and reading.program == "sed":
        reading, operands = _named_script(reading, operands)
    return Step(stage, place, prefix, inner, reading, operands)


def _git_folder(reading: Reading, place: Place) -> tuple[Reading, Place]:
    """Run ``git -C folder`` there; a folder that is the working directory goes."""
    at = reading.before.index("-C")
    folder = at_home(reading.before[at + 1], place)
    if varies(folder) or not place.cwd or reading.before.count("-C") > 1:
        return reading, Place("", place.home)
    rest = (*reading.before[:at], *reading.before[at + 2 :])
    inside = place.inside(folder)
    if inside.cwd == posixpath.normpath(place.cwd):
        return replace(reading, before=rest), place
    return replace(reading, before=("-C", place.path(folder), *rest)), inside


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
        command = [*step.prefix, *_raw(step)]
    else:
        command = [*step.prefix, reading.program]
        if reading.subcommand:
            command += [*reading.before, reading.subcommand]
        command += [list(reading.options), *step.operands]
        if tail := _tail(reading, step.place):
            command.append(tail)
    return [stage.connector, command, rest] if rest else [stage.connector, command]


def _raw(step: Step) -> list[str]:
    """The words of a command without a grammar; the shell's own expansion of the home."""
    inner, place = step.inner, step.place
    if inner[0] == "find":
        roots = until_flag(inner[1:])
        rest = _tests_sorted(inner[1 + len(roots) :])
        return ["find", *([file_word(w, place) for w in roots] or ["."]), "--", *rest]
    if inner[0] in _INTERPRETERS and len(inner) > 1 and inner[1][:1] != "-":
        return [inner[0], file_word(inner[1], place), *(at_home(w, place) for w in inner[2:])]
    if inner[0] in _FILE_READERS:
        return [w if w[:1] == "-" else file_word(w, place) for w in inner]
    if inner[0] == "cd" and len(inner) == 2:
        return ["cd", file_word(inner[1], place)]
    return [at_home(word, place) for word in inner]


def _tests_sorted(words: tuple[str, ...]) -> list[str]:
    """Sort the tests of a ``find`` expression that is nothing but tests and a last action."""
    tests: list[tuple[str, str]] = []
    at = 0
    while at + 1 < len(words) and words[at] in _FIND_TESTS:
        tests.append((words[at], words[at + 1]))
        at += 2
    rest = words[at:]
    if (len(rest) > 1 and rest[0] not in ("-exec", "-execdir")) or "-o" in rest or "-or" in rest:
        return list(words)
    return [word for test in sorted(tests) for word in test] + list(rest)


def _operands(reading: Reading, stage: Stage, place: Place) -> tuple[str, ...]:
    """Return the operands resolved by what they are, sorted where they commute."""
    kind, words = reading.grammar.kind, list(reading.operands)
    options = {name for name, _ in reading.options}
    marked = "--" in reading.tail[:1]
    if marked and not reading.grammar.tail and _tail_merges(reading):
        words.extend(reading.tail[1:])
    if kind in ("paths", "paths-slash"):
        words = [file_word(word, place, slash=kind == "paths-slash") for word in words]
    elif kind in ("pattern", "script"):
        free = 0 if options & ({"-e", "-f"} if reading.program != "jq" else set()) else 1
        words[free:] = [file_word(word, place) for word in words[free:]]
        if reading.grammar.here and len(words) == free and stage.connector not in ("|", "|&"):
            deep = reading.program == "rg" or "-r" in options
            if deep and not any(r.startswith("<") for r in stage.redirects):
                words.append(".")
    elif kind in ("packages", "refs"):
        words = [package_word(word, place) for word in words]
    else:
        words = [at_home(word, place) for word in words]
    if reading.grammar.here and kind == "paths" and not words:
        words = ["."]
    return tuple(sorted(words)) if reading.grammar.unordered else tuple(words)


def _tail_merges(reading: Reading) -> bool:
    """Say whether ``--`` may go: the words after it can be nothing but files."""
    if any(word.startswith("-") for word in reading.tail[1:]):
        return False
    if reading.program != "git":
        return True
    only_files = reading.grammar.kind.startswith("paths") and reading.subcommand in (
        "add", "rm", "mv", "restore", "commit", "clean", "blame", "stash push",
    )  # fmt: skip
    return only_files or (
        reading.subcommand in ("diff", "log", "show")
        and all("." in posixpath.basename(word)[1:] for word in reading.tail[1:])
    )


def _tail(reading: Reading, place: Place) -> list[str]:
    """Return the words after ``--`` that were not merged into the operands."""
    if not reading.tail or (not reading.grammar.tail and _tail_merges(reading)):
        return []
    if reading.program == "git":
        return ["--", *sorted(file_word(word, place) for word in reading.tail[1:])]
    return list(reading.tail)


def _named_script(reading: Reading, operands: tuple[str, ...]) -> tuple[Reading, tuple[str, ...]]:
    """Write sed's only ``-e SCRIPT`` as the first operand, as it can be written."""
    scripts = [value for name, value in reading.options if name in ("-e", "-f")]
    if len(scripts) != 1 or any(name == "-f" for name, _ in reading.options):
        return reading, operands
    options = tuple(option for option in reading.options if option[0] != "-e")
    return replace(reading, options=options), (*scripts, *operands)


def _program(word: str, place: Place) -> str:
    if posixpath.dirname(word) in _SYSTEM:
        return posixpath.basename(word)
    if varies(word) or not word.startswith(("/", "~", "$", '"', "./")):
        return word
    path = place.path(at_home(word, place))
    return path if path.startswith(("/", "../")) else f"./{path}"


def _redirect(text: str, place: Place) -> str:
    match = _REDIRECT.fullmatch(text)
    if match is None or match[2].startswith("/dev/"):
        return text
    return match[1] + file_word(match[2], place)
