"""Whether a simple command changes files, refs, packages or anything outside.

Belongs here: the rules for each program. Does not belong here: what a command acts on
(``preferences.actions.shell.programs``) and lines of several commands
(``preferences.actions.shell.lines``). An unknown program counts as mutating: an agreement on
something that changes files has to be exact.
"""

import posixpath
import re
from collections.abc import Sequence

from composer_pipeline.preferences.actions.shell.programs import (
    LOOKING,
    PACKAGE_RUNNERS,
    READERS,
    VALUED,
    split,
    unwrap,
)

_SAFE_SCRIPTS = re.compile(
    r"(test|tests|lint|build|dev|start|serve|check|typecheck|types|type-check|tsc|coverage|bench|e2e"
    r"|storybook|preview|watch)([:_-](?!fix|write|update).*)?"
)
#: Modules of ``python -m`` that only look, test, build or serve.
_MODULES = frozenset(
    ["unittest", "doctest", "json.tool", "http.server", "py_compile", "compileall", "build",
     "timeit", "pdb", "site", "sysconfig", "tabnanny", "uvicorn"]
)  # fmt: skip
_MANAGE = frozenset(
    ["test", "check", "showmigrations", "runserver", "diffsettings", "sqlmigrate", "inspectdb",
     "help", "version"]
)  # fmt: skip
_WRITES_SQL = re.compile(
    r"\b(insert|update|delete|drop|alter|create|truncate|replace|grant|vacuum|copy|merge)\b", re.I
)
_HELP = frozenset({"--version", "-V", "--help", "-h"})
_FORMATTERS = frozenset({"black", "prettier", "isort", "gofmt", "rustfmt", "goimports", "biome"})


def writes_sql(text: str) -> bool:
    """Say whether a query changes data or tables."""
    return bool(_WRITES_SQL.search(text))


def changes_state(words: Sequence[str]) -> bool:
    """Say whether a simple command changes files, refs, packages or anything outside."""
    inner = unwrap(words)
    program = inner[0]
    if program == "xargs":
        rest = list(inner[1:])
        while rest and rest[0].startswith("-"):
            rest = rest[2:] if rest[0] in VALUED["xargs"].split() else rest[1:]
        return bool(rest) and changes_state(rest)
    if program in ("sudo", "doas") and len(inner) > 1 and not inner[1].startswith("-"):
        return changes_state(inner[1:])
    program, subcommand, operands, flags = split(inner)
    rule = _RULES.get(program)
    if rule is not None:
        answer = rule(inner, subcommand, operands, set(flags))
        if answer is not None:
            return answer
    if program in LOOKING:
        joined = set(flags)
        if joined & {"--fix", "--unsafe-fixes"} or (program == "go" and "-w" in joined):
            return True
        if program == "cargo" and subcommand == "run":
            return True
        if not subcommand and joined & _HELP:
            return False
        return subcommand not in LOOKING[program]
    if program in READERS:
        return False
    return not (set(inner[1:]) and set(inner[1:]) <= _HELP)


def _find(words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]) -> bool | None:
    if {"-delete", "-fprint", "-fprintf", "-fls"} & set(words):
        return True
    for i, word in enumerate(words):
        if word in ("-exec", "-execdir", "-ok", "-okdir"):
            inner = words[i + 1 :]
            if not inner or changes_state(inner):
                return True
    return False


def _sed(words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]) -> bool | None:
    if any(re.match(r"-[a-zA-Z]*i|--in-place", flag) for flag in flags):
        return True
    # The script itself can write: w file, s///w file, e.
    return any(re.search(r"(^|[;/}\d$])\s*[we] ?\S*\.?\w+$", word) for word in operands[:1])


def _perl(words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]) -> bool | None:
    return True


def _yq(words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]) -> bool | None:
    return any(re.match(r"-[a-zA-Z]*i|--in-?place", flag) for flag in flags)


def _sort(words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]) -> bool | None:
    return any(flag.startswith(("-o", "--output")) for flag in flags)


def _tee(words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]) -> bool | None:
    return any(not word.startswith("/dev/") for word in operands)


def _awk(words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]) -> bool | None:
    return any(re.search(r">\s*\\?[\"\w]|system\(", word) for word in words[1:])


def _curl(words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]) -> bool | None:
    saving = {"-d", "-F", "-T", "-o", "-O", "--data", "--data-raw", "--data-binary", "--json"}
    saving |= {"--upload-file", "--output", "--remote-name", "--form", "--data-urlencode"}
    for i, word in enumerate(words):
        method = re.fullmatch(r"(?:-X|--request[= ]?)(\w*)", word)
        if method:
            verb = method[1] or (words[i + 1] if i + 1 < len(words) else "")
            if verb.upper() not in ("GET", "HEAD", "OPTIONS", ""):
                return True
        if "=" in word and word.split("=")[0] in saving:
            return True
        if re.fullmatch(r"-[a-zA-Z]+", word) and set(word[1:]) & set("dFToO"):
            target = words[i + 1] if i + 1 < len(words) else ""
            if word.endswith("o") and target in ("/dev/null", "-"):
                continue
            return True
    return any(flag in saving - {"-o"} for flag in flags)


def _format(
    words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]
) -> bool | None:
    checks = {"--check", "--diff", "-l", "-d", "-c", "--list-different", "--check-only"}
    writes = flags & {"-w", "--write"}
    printing = words[0] in ("gofmt", "goimports", "prettier") and not writes
    if words[0] == "biome":
        return bool(writes or "--apply" in flags)
    return bool(writes) or not (flags & checks or printing)


def _fixing(
    words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]
) -> bool | None:
    return "--fix" in flags


def _git(words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]) -> bool | None:
    if not sub:
        return not flags & _HELP
    if any(flag.startswith("--output") for flag in flags):
        return True
    if sub in ("branch", "tag"):
        listing = {"-a", "-r", "-v", "-vv", "-l", "--list", "--show-current", "--contains"}
        listing |= {"--merged", "--no-merged", "--all", "--remotes", "--verbose", "-n"}
        lists = flags & {"-l", "--list", "--contains", "--merged", "--no-merged"}
        plain = {flag for flag in flags if not flag.startswith(("--sort", "--format"))}
        return bool(operands and not lists) or not plain <= listing
    if sub.startswith("remote"):
        return sub not in ("remote", "remote show", "remote get-url")
    if sub.startswith(("stash", "worktree", "notes", "submodule", "bisect", "lfs", "reflog")):
        verb = sub.partition(" ")[2]
        if sub.startswith("reflog"):
            return verb in ("expire", "delete")
        looks = verb in ("list", "show", "status", "log", "summary", "ls-files", "exists")
        return not (looks or (not verb and sub in ("notes", "submodule")))
    if sub == "config":
        reads = flags & {"--get", "-l", "--list", "--get-all", "--get-regexp", "--show-origin"}
        return not reads and len(operands) != 1
    if sub == "symbolic-ref":
        return len(operands) != 1
    return sub.partition(" ")[0] not in LOOKING["git"]


def _package(
    words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]
) -> bool | None:
    if sub.startswith(("run", "run-script")):
        script = sub.partition(" ")[2]
        fixes = flags & {"--fix", "--write", "-u", "--update", "--updateSnapshot"}
        return bool(fixes) or not _SAFE_SCRIPTS.fullmatch(script)
    if words[0] in ("yarn", "pnpm", "bun") and not operands and _SAFE_SCRIPTS.fullmatch(sub):
        return bool(flags & {"--fix", "--write", "-u", "--update"})
    if sub in ("start", "test", "t") and words[0] != "mise":
        return bool(flags & {"-u", "--update", "--updateSnapshot"})
    if sub == "audit":
        return "fix" in operands
    return None


def _make(words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]) -> bool | None:
    if flags & {"-n", "--dry-run"}:
        return False
    targets = [word for word in operands if "=" not in word]
    return not all(_SAFE_SCRIPTS.fullmatch(w) or w in LOOKING["make"] for w in targets)


def _uv(words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]) -> bool | None:
    if sub.startswith("pip "):
        return sub.split()[1] not in LOOKING["pip"]
    return None


def _gh(words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]) -> bool | None:
    if sub.startswith("api"):
        if any(f in ("GET",) for f in flags):
            return False
        sends = {"-X", "--method", "-f", "-F", "--field", "--raw-field", "--input"}
        return bool(flags & sends)
    return None


def _aws(words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]) -> bool | None:
    verb = sub.partition(" ")[2]
    return not verb.startswith(("ls", "get", "list", "describe", "head", "tail", "filter"))


def _docker(
    words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]
) -> bool | None:
    if sub.startswith("compose"):
        return sub.partition(" ")[2] not in (
            "ps", "logs", "config", "images", "top", "ls", "version", "build", "port", "events",
        )  # fmt: skip
    group, _, verb = sub.partition(" ")
    if group in ("container", "image", "volume", "network", "system", "buildx", "context"):
        return verb not in ("ls", "list", "inspect", "logs", "top", "stats", "df", "history",
                            "build", "show", "ps", "info", "diff")  # fmt: skip
    if group == "exec" and len(operands) > 1:
        at = list(words).index(operands[0]) + 1
        return changes_state(words[at:])
    return None


def _sql(words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]) -> bool | None:
    program = words[0]
    query = ""
    for i, word in enumerate(words[:-1]):
        if word in ("-c", "-e", "--command", "--execute"):
            query = words[i + 1]
    if not query and program in ("sqlite3", "duckdb") and len(operands) > 1:
        query = operands[1]
    if not query:
        return not flags & {"-l", "--list", *_HELP}
    return writes_sql(query) or (
        query.lstrip().startswith(".")
        and bool(re.match(r"\s*\.(read|import|restore|output|once|save|backup)", query))
    )


def _python(
    words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]
) -> bool | None:
    if len(words) > 2 and posixpath.basename(words[1]) == "manage.py":
        return words[2] not in _MANAGE
    return None


def _module(
    words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]
) -> bool | None:
    return False


def _tar(words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]) -> bool | None:
    return not (len(words) > 1 and re.fullmatch(r"-?[zjJv]*t[zjJvf]*|--list", words[1]))


def _env(words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]) -> bool | None:
    # With a command it is a wrapper and does not come here.
    return False


def _source(
    words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]
) -> bool | None:
    return not (operands and operands[0].endswith("bin/activate"))


def _mix(words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]) -> bool | None:
    return "--check-formatted" not in flags if sub == "format" else None


def _cargo(words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]) -> bool | None:
    return "--check" not in flags if sub == "fmt" else None


def _ruff(words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]) -> bool | None:
    if sub == "format":
        return not flags & {"--check", "--diff"}
    return None


def _build_tool(
    words: Sequence[str], sub: str, operands: Sequence[str], flags: set[str]
) -> bool | None:
    """Gradle and Maven: every task has to be one that only builds or tests."""
    tasks = [word.rsplit(":", 1)[-1] for word in (sub, *operands) if word]
    safe = {"test", "build", "check", "verify", "compile", "package", "assemble", "lint", "clean",
            "classes", "tasks", "dependencies", "projects", "help"}  # fmt: skip
    return not (tasks and all(t in safe or t.endswith(("Test", "Tests")) for t in tasks))


_RULES = {
    "find": _find, "sed": _sed, "gsed": _sed, "perl": _perl, "yq": _yq, "sort": _sort,
    "tee": _tee, "awk": _awk, "gawk": _awk, "curl": _curl, "eslint": _fixing,
    "stylelint": _fixing, "git": _git, "make": _make, "uv": _uv, "gh": _gh, "aws": _aws,
    "docker": _docker, "podman": _docker, "psql": _sql, "sqlite3": _sql, "mysql": _sql,
    "duckdb": _sql, "python": _python, "source": _source, ".": _source, "mix": _mix,
    "tar": _tar, "env": _env,
    "cargo": _cargo, "ruff": _ruff, "gradle": _build_tool, "./gradlew": _build_tool,
    "mvn": _build_tool, "./mvnw": _build_tool,
    **dict.fromkeys(_FORMATTERS, _format),
    **dict.fromkeys(PACKAGE_RUNNERS, _package),
    **dict.fromkeys(_MODULES, _module),
}  # fmt: skip
