r"""Whether a simple command changes files, refs, packages or anything outside.

Belongs here: :data:`RULES`, one entry a program. Does not belong here: what a command acts on
(``preferences.actions.shell.targets``) and lines of several commands
(``preferences.actions.shell.lines``). An unknown program counts as changing: an agreement on
something that changes files has to be exact.

A command is asked of its program's rule first. A rule that cannot say (``None``) leaves it to
the tables: subcommands that only look (:data:`~.programs_table.LOOKING`) and programs that do
(:data:`~.programs_table.READERS`).
"""

import posixpath
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from composer_pipeline.preferences.actions.shell.programs import split, unwrap
from composer_pipeline.preferences.actions.shell.programs_table import (
    LOOKING,
    MANAGE,
    PACKAGE_RUNNERS,
    READERS,
    VALUED,
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


#: Says whether a command of its program changes anything; ``None`` where the tables know.
Rule = Callable[[Command], bool | None]


def writes_sql(text: str) -> bool:
    """Say whether a query changes data or tables."""
    return bool(_WRITES_SQL.search(text))


def changes_state(words: Sequence[str]) -> bool:
    """Say whether a simple command changes files, refs, packages or anything outside."""
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


# -- kinds of rules ----------------------------------------------------------------


def _flag(pattern: str) -> Rule:
    """Changes something exactly with a flag that begins like this."""
    return lambda c: any(re.match(pattern, flag) for flag in c.flags)


def _unless(checks: str, *, only: str = "") -> Rule:
    """Changes something (or its subcommand ``only`` does) unless a flag says to check."""
    quiet = frozenset(checks.split())
    return lambda c: not c.flags & quiet if only in ("", c.subcommand) else None


def _formats(c: Command) -> bool:
    """Formatters write unless they check; ``-w`` and ``--write`` always do."""
    checks = {"--check", "--diff", "-l", "-d", "-c", "--list-different", "--check-only"}
    return bool(c.flags & {"-w", "--write"}) or not c.flags & checks


# -- programs that need more words ---------------------------------------------------


def _find(c: Command) -> bool:
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
        # -sSo FILE saves; what goes to nowhere or to the terminal is only looked at.
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
    """Database shells: the query decides; without one the shell waits for input."""
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
    """Gradle and Maven: every task has to be one that only builds or tests."""
    tasks = [word for word in (c.subcommand, *c.operands) if word]
    return not (tasks and all(_SAFE_TASK.fullmatch(task) for task in tasks))


#: Program to the rule that says whether a command of it changes anything.
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
    "find": _find,
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
