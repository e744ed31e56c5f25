"""What a Bash command line means: its canonical form, its targets, and whether it changes state."""

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from composer_pipeline.preferences.actions.shell_options import Reading, read
from composer_pipeline.preferences.actions.shell_parse import (
    Place,
    Stage,
    at_home,
    file_word,
    package_word,
    parse,
    varies,
)
from composer_pipeline.preferences.actions.shell_programs import (
    LOOKING,
    MANAGE,
    ORDERED,
    PACKAGE_RUNNERS,
    PACKAGED,
    READERS,
    SCRIPT_FIRST,
    VALUED,
    split,
    unwrap,
)

_HELP = frozenset({"--version", "-V", "--help", "-h"})
_WRITES_SQL = re.compile(
    r"\b(insert|update|delete|drop|alter|create|truncate|replace|grant|vacuum|copy|merge)\b", re.I
)
#: Scripts of a project that test, check, build or serve, not ``lint:fix``.
_SAFE_SCRIPT = re.compile(
    r"(test|tests|lint|build|dev|start|serve|check|typecheck|types|type-check|tsc|coverage|bench|e2e"
    r"|storybook|preview|watch)([:_-](?!fix|write|update).*)?"
)
_SAFE_TASK = re.compile(
    r"(?:.*:)?(test|build|check|verify|compile|package|assemble|lint|clean|classes|tasks|dependencies"
    r"|projects|help|[^:]*Tests?)"
)
#: Flags with which a test runner rewrites its snapshots, or a linter its files.
_UPDATES = frozenset({"-u", "--update", "--updateSnapshot"})
_REWRITES = frozenset({"--fix", "--write", *_UPDATES})


class Command(NamedTuple):
    """A command without wrappers, split; flags are a set with their values in it."""

    words: Sequence[str]
    subcommand: str
    operands: tuple[str, ...]
    flags: frozenset[str]

    @property
    def verb(self) -> str:
        """The second word of a nested subcommand (``list`` of ``stash list``)."""
        return self.subcommand.partition(" ")[2]


#: Returns whether a command of its program changes anything; ``None`` leaves it to the tables.
Rule = Callable[[Command], bool | None]


def writes_sql(text: str) -> bool:
    """Return True if a query changes data or tables."""
    return bool(_WRITES_SQL.search(text))


def changes_state(words: Sequence[str]) -> bool:
    """Return True if a simple command changes files, refs, packages or anything outside."""
    inner = unwrap(words)
    run = _run_by(inner)
    if run is not None:
        return bool(run) and changes_state(run)
    program, subcommand, operands, flags = split(inner)
    command = Command(inner, subcommand, operands, frozenset(flags))
    rule = RULES.get(program)
    answer = rule(command) if rule else None
    if answer is not None:
        return answer
    if program in LOOKING:
        if command.flags & {"--fix", "--unsafe-fixes"}:
            return True
        helps = not subcommand and command.flags & _HELP
        return not helps and subcommand not in LOOKING[program]
    return program not in READERS and not (inner[1:] and set(inner[1:]) <= _HELP)


def _run_by(inner: Sequence[str]) -> Sequence[str] | None:
    """Return the command that ``xargs`` or ``sudo`` runs; ``None`` for any other program."""
    rest = list(inner[1:])
    if inner[0] == "xargs":
        while rest and rest[0].startswith("-"):
            rest = rest[2:] if rest[0] in VALUED["xargs"].split() else rest[1:]
        return rest
    runs = inner[0] in ("sudo", "doas") and rest and not rest[0].startswith("-")
    return rest if runs else None


def _flag(pattern: str) -> Rule:
    """Return a rule: the command changes something only with a flag that matches."""
    return lambda c: any(re.match(pattern, flag) for flag in c.flags)


def _unless(checks: str, *, only: str = "") -> Rule:
    """Return a rule: the command or its subcommand changes something unless a flag checks."""
    quiet = frozenset(checks.split())
    return lambda c: not c.flags & quiet if only in ("", c.subcommand) else None


def _formats(c: Command) -> bool:
    # Formatters write unless they check; -w and --write always do.
    checks = {"--check", "--diff", "-l", "-d", "-c", "--list-different", "--check-only"}
    return bool(c.flags & {"-w", "--write"}) or not c.flags & checks


def _find_changes(c: Command) -> bool:
    if {"-delete", "-fprint", "-fprintf", "-fls"} & set(c.words):
        return True
    runs = ("-exec", "-execdir", "-ok", "-okdir")
    inner = [c.words[i + 1 :] for i, word in enumerate(c.words) if word in runs]
    return any(not words or changes_state(words) for words in inner)


def _sed(c: Command) -> bool:
    if any(re.match(r"-[a-zA-Z]*i|--in-place", flag) for flag in c.flags):
        return True
    # The script itself can write: w file, s///w file, e.
    return any(re.search(r"(^|[;/}\d$])\s*[we] ?\S*\.?\w+$", word) for word in c.operands[:1])


def _curl(c: Command) -> bool:
    saving = {"-d", "-F", "-T", "-O", "--data", "--data-raw", "--data-binary", "--json"}
    saving |= {"--upload-file", "--output", "--remote-name", "--form", "--data-urlencode"}
    for word, after in zip(c.words, (*c.words[1:], ""), strict=True):
        method = re.fullmatch(r"(?:-X|--request[= ]?)(\w*)", word)
        if method and (method[1] or after).upper() not in ("GET", "HEAD", "OPTIONS", ""):
            return True
        if "=" in word and word.split("=")[0] in {*saving, "-o"}:
            return True
        # -sSo FILE saves; output to /dev/null or the terminal changes nothing.
        bundle = re.fullmatch(r"-[a-zA-Z]+", word) and set(word) & set("dFToO")
        if bundle and not (word.endswith("o") and after in ("/dev/null", "-")):
            return True
    return bool(c.flags & saving)


def _git(c: Command) -> bool:
    sub, flags = c.subcommand, c.flags
    if not sub:
        return not flags & _HELP
    if any(flag.startswith("--output") for flag in flags):
        return True
    if sub in ("branch", "tag"):
        lists = {"-l", "--list", "--contains", "--merged", "--no-merged"}
        shows = lists | {"-a", "-r", "-v", "-vv", "--show-current", "--all", "--remotes",
                         "--verbose", "-n"}  # fmt: skip
        plain = {flag for flag in flags if not flag.startswith(("--sort", "--format"))}
        return bool(c.operands and not flags & lists) or not plain <= shows
    if sub in ("config", "symbolic-ref"):
        # One name is read, a name and a value are written.
        reads = {"--get", "-l", "--list", "--get-all", "--get-regexp", "--show-origin"}
        return len(c.operands) != 1 and not (sub == "config" and flags & reads)
    if sub.startswith("reflog"):
        return c.verb in ("expire", "delete")
    return sub not in LOOKING["git"]


def _package(c: Command) -> bool | None:
    if c.subcommand.startswith("run"):
        return bool(c.flags & _REWRITES) or not _SAFE_SCRIPT.fullmatch(c.verb)
    # yarn, pnpm and bun run a script without `run`.
    bare = c.words[0] in ("yarn", "pnpm", "bun") and not c.operands
    if bare and _SAFE_SCRIPT.fullmatch(c.subcommand):
        return bool(c.flags & _REWRITES)
    if c.subcommand in ("start", "test", "t") and c.words[0] != "mise":
        return bool(c.flags & _UPDATES)
    return "fix" in c.operands if c.subcommand == "audit" else None


def _make(c: Command) -> bool:
    targets = [word for word in c.operands if "=" not in word]
    safe = all(_SAFE_SCRIPT.fullmatch(word) or word in LOOKING["make"] for word in targets)
    return not c.flags & {"-n", "--dry-run"} and not safe


def _docker(c: Command) -> bool | None:
    if c.subcommand == "exec" and len(c.operands) > 1:
        return changes_state(c.words[list(c.words).index(c.operands[0]) + 1 :])
    return None


def _sql(c: Command) -> bool:
    # The query decides; without one a database shell waits for input.
    asked = ("-c", "-e", "--command", "--execute")
    queries = [c.words[i + 1] for i, word in enumerate(c.words[:-1]) if word in asked]
    if not any(queries[-1:]) and c.words[0] in ("sqlite3", "duckdb"):
        queries = list(c.operands[1:2])
    query = queries[-1] if queries else ""
    if not query:
        return not c.flags & {"-l", "--list", *_HELP}
    return writes_sql(query) or bool(
        re.match(r"\s*\.(read|import|restore|output|once|save|backup)", query)
    )


def _python(c: Command) -> bool | None:
    if len(c.words) > 2 and posixpath.basename(c.words[1]) == "manage.py":
        return c.words[2] not in MANAGE
    return None


def _gh(c: Command) -> bool | None:
    sends = {"-X", "--method", "-f", "-F", "--field", "--raw-field", "--input"}
    if not c.subcommand.startswith("api"):
        return None
    return "GET" not in c.flags and bool(c.flags & sends)


def _builds(c: Command) -> bool:
    # Gradle and Maven: every task has to be one that only builds or tests.
    tasks = [word for word in (c.subcommand, *c.operands) if word]
    return not (tasks and all(_SAFE_TASK.fullmatch(task) for task in tasks))


RULES: dict[str, Rule] = {
    ".": lambda c: not (c.operands and c.operands[0].endswith("bin/activate")),
    "awk": lambda c: any(re.search(r">\s*\\?[\"\w]|system\(", word) for word in c.words[1:]),
    "aws": lambda c: not re.match("ls|get|list|describe|head|tail|filter", c.verb),
    "biome": _flag("(-w|--write|--apply)$"),
    "black": _formats,
    "cargo": _unless("--check", only="fmt"),
    "curl": _curl,
    "docker": _docker,
    "eslint": _flag("--fix$"),
    "find": _find_changes,
    "gh": _gh,
    "git": _git,
    "go": lambda c: True if "-w" in c.flags else None,
    "gofmt": _flag("(-w|--write)$"),
    "gradle": _builds,
    "make": _make,
    "mix": _unless("--check-formatted", only="format"),
    "perl": lambda c: True,
    "python": _python,
    "ruff": _unless("--check --diff", only="format"),
    "sed": _sed,
    "sort": _flag("-o|--output"),
    "sqlite3": _sql,
    "tar": lambda c: not re.fullmatch(r"-?[zjJv]*t[zjJvf]*|--list", "".join(c.words[1:2])),
    "tee": lambda c: any(not word.startswith("/dev/") for word in c.operands),
    "yq": _flag("-[a-zA-Z]*i|--in-?place"),
    **dict.fromkeys(PACKAGE_RUNNERS, _package),
}
_ALIKE = {
    ".": "source", "awk": "gawk", "black": "isort rustfmt", "docker": "podman",
    "eslint": "stylelint", "gofmt": "goimports prettier", "gradle": "./gradlew mvn ./mvnw",
    "sed": "gsed", "sqlite3": "psql mysql duckdb",
}  # fmt: skip
RULES |= {other: RULES[name] for name, others in _ALIKE.items() for other in others.split()}


def target_of(
    inner: tuple[str, ...], reading: Reading | None, operands: tuple[str, ...], place: Place
) -> tuple[str, ...]:
    """Return (program, subcommand, operands…) that decide level L2, from an unwrapped command."""
    # Operands are what is acted on: scripts of sed, awk and jq are how, not what.
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
    """Return the operands without a script, and option values that are acted on."""
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
    """Return the words before an expression of ``find`` begins."""
    out: list[str] = []
    for word in words:
        if word.startswith(("-", "(", "!", "\\")):
            break
        out.append(word)
    return out


def _plain(word: str, place: Place) -> str:
    """Return a path operand in canonical spelling."""
    if "://" in word or ("/" not in word and word[:1] not in ("~", "$", '"')):
        return word
    return file_word(word, place)


def _host(word: str) -> str:
    match = re.match(r"(?:[a-z]+://)?([^/?#]+)", word)
    return match[1].lower() if match else word


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
    """A stage, its words as its grammar reads them, and where it runs."""

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
    """Move the place to the folder of ``git -C``; drop the option for the working directory."""
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
    """Return the words of a command without a grammar, the home folder expanded."""
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
    """Sort the tests of a ``find`` expression of tests and at most one action."""
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
    """Return the operands resolved by their kind, sorted if they commute."""
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
    """Return True if ``--`` may go: the words after it can only be files."""
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
    """Return ``--`` and the words after it, if they were not merged into the operands."""
    if not reading.tail or (not reading.grammar.tail and _tail_merges(reading)):
        return []
    if reading.program == "git":
        return ["--", *sorted(file_word(word, place) for word in reading.tail[1:])]
    return list(reading.tail)


def _named_script(reading: Reading, operands: tuple[str, ...]) -> tuple[Reading, tuple[str, ...]]:
    """Move sed's only ``-e SCRIPT`` to the first operand."""
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


_WRITES = re.compile(r"\d*>>?(?!&|/dev/(?:null|std|tty|fd))")
_TRIMMED = re.compile(r"(?:(?:-[nc] ?|--(?:lines|bytes)=)[+-]?\d+k?|-\d+)?")
_CD_JOINS = frozenset({"&&", ";"})


@lru_cache(maxsize=4096)
def effective(command: str, place: Place) -> tuple[Step, ...]:
    """Return the stages without what changes only the display, words resolved."""
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
    """Return a JSON-able form that is equal for equal effects; it is cached: do not modify it."""
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
                # A printing command acts on the file that it writes.
                written = [r.lstrip("0123456789>") for r in stage.redirects if _WRITES.match(r)]
                if written:
                    target = (target[0], "", *written)
            found.append(target)
        else:
            found.append(("=", *stage.env))
    return found


def trimmer(form: list[Any]) -> bool:
    """Return True if a stage of :func:`canonical_line` is ``| head`` or ``| tail`` by count."""
    connector, command = form[:2]
    if connector != "|" or len(form) > 2 or command[:1] not in (["head"], ["tail"]):
        return False
    return len(command) == 2 and all(
        name in ("-n", "-c") and value.lstrip("+-").isdigit() for name, value in command[1]
    )


def mutates(command: str) -> bool:
    """Return True if a command line changes files, refs, packages or anything outside."""
    line = parse(command)
    if not line.parsed:
        return True
    return any(
        any(_WRITES.match(redirect) for redirect in stage.redirects)
        or (bool(stage.words) and not stage.compound and changes_state(stage.words))
        for stage in line.every
    )


def _folder_of(stage: Stage, place: Place) -> str | None:
    """Return where a plain ``cd`` leads, relative to ``place``, or ``None``."""
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
    """Drop stages and ``2>&1`` that change only the display.

    Only where no program or file reads them and neither ``&&`` nor ``||`` follows: ``| head`` and
    ``| tail`` by count, ``|| true``, and ``; echo`` without a substitution or redirection.
    """
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
        counts = _TRIMMED.fullmatch(" ".join(words[1:])) is not None
        return words[0] in ("head", "tail") and quiet and counts
    if stage.connector == "||":
        return words in (("true",), (":",)) and not stage.redirects
    if stage.connector == ";" and words[0] == "echo":
        plain = not any("$(" in w or "`" in w or ":=" in w or "(" in w[:2] for w in words)
        return plain and (not stage.redirects or stage.redirects == (">&2",))
    return False


def _form(step: Step) -> list[Any]:
    """Return [connector, command] of a stage, and what else it has."""
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
