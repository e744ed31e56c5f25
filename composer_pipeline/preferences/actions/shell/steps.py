"""One stage of a line, its words in one order and spelling.

Belongs here: what a grammar and a place make of a simple command. Does not belong here: what of
a whole line only changes the display (``preferences.actions.shell.lines``).
"""

import posixpath
import re
from dataclasses import dataclass, replace

from composer_pipeline.preferences.actions.shell.options import Reading, read
from composer_pipeline.preferences.actions.shell.plain_lines import Stage
from composer_pipeline.preferences.actions.shell.programs import unwrap
from composer_pipeline.preferences.actions.shell.targets import until_flag
from composer_pipeline.preferences.actions.shell.words import (
    Place,
    at_home,
    file_word,
    package_word,
    varies,
)

_SYSTEM = frozenset({"/bin", "/usr/bin", "/usr/local/bin"})


_REDIRECT = re.compile(r"(\d*(?:>>|>|<)|&>>?)(?![<&>(])(.*)", re.DOTALL)


_FIND_TESTS = frozenset(
    {"-name", "-iname", "-path", "-ipath", "-type", "-maxdepth", "-mindepth", "-size", "-mtime",
     "-mmin", "-newer", "-perm", "-user", "-regex", "-iregex"}
)  # fmt: skip


_INTERPRETERS = frozenset({"python", "node", "bash", "sh", "zsh", "ruby", "perl", "php"})


_FILE_READERS = frozenset(
    {"less", "more", "bat", "md5sum", "sha256sum", "shasum", "hexdump", "xxd", "strings", "tac",
     "rev", "realpath", "readlink", "zcat", "shellcheck", "yamllint", "pylint", "mocha"}
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A stage that matters, its words as its grammar reads them, and where it runs."""

    stage: Stage
    place: Place
    prefix: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    reading: Reading | None = None
    operands: tuple[str, ...] = ()


def step_of(stage: Stage, place: Place) -> Step:
    """Return a stage as its grammar reads it, paths resolved at a place."""
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
    operands = operands_of(reading, stage, place) if reading is not None else ()
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


def raw_words(step: Step) -> list[str]:
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


def operands_of(reading: Reading, stage: Stage, place: Place) -> tuple[str, ...]:
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


def tail_of(reading: Reading, place: Place) -> list[str]:
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
