"""What the words of a simple command mean: subcommand, operands, effect.

Belongs here: tables of programs. Does not belong here: parsing a line
(``preferences.shell``). Unknown programs count as mutating: an agreement on something that
changes files has to be exact.
"""

import posixpath
import re
from collections.abc import Sequence
from itertools import pairwise


def _set(text: str, separator: str | None = None) -> frozenset[str]:
    return frozenset(text.split(separator))


#: Programs that only look, whatever their arguments.
READERS = _set(
    "[ [[ : ag awk basename bat break cat cd cmp column comm continue cut date df diff"
    " dirname du echo egrep exit expr false fd fgrep file fold gawk getconf grep head hexdump"
    " hostname id jest jobs jq less local ls lsof man md5sum mocha more mypy nl nproc od paste"
    " pgrep playwright printenv printf ps pwd pylint pyright pytest read readlink realpath"
    " return rev rg seq set sha256sum shasum shellcheck shift sleep sort stat strings tac tail"
    " test top tr tree true tsc type uname uniq uptime vitest vite wait wc which whereis"
    " whoami rspec xxd yamllint flake8 export declare unset"
)

#: Program to its first words that only look; everything else of it mutates.
LOOKING: dict[str, frozenset[str]] = {
    "git": _set("status log diff show blame grep ls-files ls-tree rev-parse rev-list describe"
        " shortlog cat-file reflog ls-remote check-ignore merge-base name-rev whatchanged"
        " version help"),
    "go": _set("test build vet list version doc env"),
    "cargo": _set("test build check clippy doc bench tree metadata nextest search run"),
    "npm": _set("test t ls list view outdated audit start why run-script run"),
    "docker": _set("ps logs images inspect build version info stats top port"),
    "kubectl": _set("get describe logs top explain version diff"),
    "pip": _set("list show freeze check download"),
    "uv": _set("tree version"),
    "poetry": _set("show check"),
    "brew": _set("list info search outdated"),
    "apt": _set("list show search"),
    "apt-cache": _set("search show policy"),
    "systemctl": _set("status is-active list-units show"),
    "terraform": _set("plan validate show output"),
    "gh": frozenset(
        ["pr view", "pr list", "pr diff", "pr checks", "pr status", "issue view", "issue list",
         "issue status", "run view", "run list", "run watch", "repo view", "auth status",
         "release view", "release list", "workflow view", "workflow list", "search code"]
    ),
    "ruff": frozenset(["check", "rule", "linter", "version"]),
    "golangci-lint": frozenset(["run", "linters", "version"]),
    "eslint": frozenset(),
    "make": _set("test tests check lint build all types typecheck help dev serve bench coverage"),
}  # fmt: skip
LOOKING["mise"] = _set("run tasks ls current doctor")
LOOKING["mix"] = _set("test compile credo dialyzer help")
LOOKING["dotnet"] = LOOKING["swift"] = _set("test build")
LOOKING["gradle"] = LOOKING["./gradlew"] = LOOKING["mvn"] = _set("test build check verify compile")
LOOKING["pnpm"] = LOOKING["yarn"] = LOOKING["bun"] = LOOKING["npm"]
LOOKING["pip3"] = LOOKING["pip"]
LOOKING["podman"] = LOOKING["docker"]

#: Two-word subcommands: program and first word.
NESTED = _set(
    "mise run|git stash|git remote|git worktree|git submodule|git bisect|git notes|"
    "git reflog|git lfs|npm run|npm run-script|pnpm run|yarn run|bun run|go mod|go tool|"
    "go work|docker compose|docker container|docker image|docker volume|docker network|"
    "uv pip|uv tool|pip config|cargo nextest|poetry run|kubectl rollout|kubectl config|"
    "terraform state|brew services",
    "|",
)
NESTED_PROGRAMS = frozenset({"gh", "aws", "gcloud", "az", "hf"})
SUBCOMMANDS = frozenset(LOOKING) - {"eslint", "make"} | NESTED_PROGRAMS | {"apt-get"}

#: Flags that take the next word as their value, by program.
VALUED: dict[str, str] = {
    "git": "-m -C -c -F --author --date -n -b -B --grep -S -G -L --format --pretty -u --message",
    "grep": "-e -f -m -A -B -C --include --exclude --exclude-dir",
    "rg": "-e -f -m -A -B -C -g -t -T --glob --type",
    "head": "-n -c",
    "tail": "-n -c",
    "pytest": "-k -m -n -p -o -c --maxfail --timeout --tb --cov --durations --rootdir",
    "vitest": "-t --reporter --config -c",
    "jest": "-t --testNamePattern --config -c",
    "go": "-run -count -timeout -o -tags -bench -coverprofile -ldflags",
    "cargo": "-p --package --features --bin --test --example --manifest-path -j",
    "npm": "--prefix -w --workspace",
    "make": "-j -C -f",
    "curl": "-X -H -d -o -F -u -A --data --header --request -m --max-time",
    "sed": "-e -f",
    "awk": "-F -v -f",
    "find": "",
    "docker": "-f -t -v -p -e --name --context -w -u",
    "gh": "-R --repo -L --limit -b --body -t --title -q --jq --json",
    "sort": "-k -t -o",
    "cut": "-d -f -c",
    "xargs": "-n -I -P -d -L",
    "timeout": "-s -k",
    "mypy": "--config-file -p -m --python-version",
    "ruff": "--select --ignore --config",
    "kubectl": "-n --namespace -l -o --context -f",
}

_RUNNERS = frozenset({"uv run", "poetry run", "pnpm exec", "bundle exec"})
_LOCAL_BIN = re.compile(r"^(\./)?(node_modules/\.bin|\.?venv/bin)/")
_PYTHON = re.compile(r"python[\d.]*")
_NO_VALUE_WRAPPERS = frozenset(
    {"time", "nohup", "command", "exec", "stdbuf", "npx", "bunx", "nice"}
)
_SCRIPT_FIRST = frozenset({"sed", "awk", "gawk", "jq", "perl"})
_SAFE_SCRIPTS = re.compile(
    r"(test|tests|lint|build|dev|start|serve|check|typecheck|types|type-check|coverage|bench|e2e"
    r"|storybook|preview)(:(?!fix|write|update).*)?"
)


def unwrap(words: Sequence[str]) -> tuple[str, ...]:
    """Return the command that a wrapper such as ``timeout 60`` or ``npx`` runs.

    ``python -m pytest`` is ``pytest``, ``uv run`` and ``poetry run`` run what follows.
    """
    words = tuple(words)
    while words:
        name = posixpath.basename(words[0])
        if name in _NO_VALUE_WRAPPERS:
            rest = words[1:]
            while rest and rest[0].startswith("-"):
                rest = rest[1:]
        elif name in ("timeout", "gtimeout"):
            rest = words[1:]
            while rest and rest[0].startswith("-"):
                rest = rest[2:] if rest[0] in ("-s", "-k") else rest[1:]
            rest = rest[1:]
        elif name == "env":
            rest = words[1:]
            while rest and (rest[0].startswith("-") or "=" in rest[0]):
                rest = rest[1:]
        elif " ".join(words[:2]) in _RUNNERS or (
            _PYTHON.fullmatch(name) and len(words) > 2 and words[1] == "-m"
        ):
            rest = words[2:]
        elif _PYTHON.fullmatch(name):
            return ("python", *words[1:])
        else:
            return (_LOCAL_BIN.sub("", words[0]), *words[1:])
        if not rest:
            return words
        words = rest
    return words


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
            operands.extend(rest)
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


def operands_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return (program, subcommand, operands…) that decide level L2.

    Operands are what is acted on: files, test selections, patterns with their place.
    Their order counts only where it means something (``cp``, ``mv``, ``ln``, ``diff``).
    Scripts of sed, awk and jq are how, not what. ``find`` acts on its folders and names.
    """
    inner = unwrap(words)
    program, subcommand, operands, flags = split(inner)
    if program == "find":
        where = [w.rstrip("/") or w for w in _until_flag(inner[1:])] or ["."]
        names = [
            f"{flag}={value}"
            for flag, value in pairwise(inner)
            if flag in ("-name", "-iname", "-path", "-ipath", "-regex", "-type")
        ]
        return (program, "", *sorted(where), *sorted(names))
    if program in _SCRIPT_FIRST and not any(f in ("-e", "-f") for f in flags):
        operands = operands[1:]
    if program in ("grep", "rg", "egrep", "fgrep", "ag"):
        pattern = operands[:1]
        return (program, "", *(p.strip("'") for p in pattern), *sorted(map(_plain, operands[1:])))
    if program in ("curl", "wget"):
        return (program, "", *(_host(word) for word in operands))
    if program == "git" and "-C" in flags:
        operands = (f"-C={flags[flags.index('-C') + 1]}", *operands)
    if program in ("python", "node", "bash", "sh", "zsh", "ruby", "perl"):
        code = [inner[i + 1] for i, w in enumerate(inner[:-1]) if w in ("-c", "-e")]
        operands = tuple(code) or operands[:1]
    named = [_plain(word) for word in operands]
    if program not in ("cp", "mv", "ln", "diff", "cmp", "rsync", "scp"):
        named = sorted(named)
    return (program, subcommand, *named)


def changes_state(words: Sequence[str]) -> bool:
    """Say whether a simple command changes files, refs, packages or anything outside."""
    inner = unwrap(words)
    if inner[0] == "xargs":
        rest = list(inner[1:])
        while rest and rest[0].startswith("-"):
            rest = rest[2:] if rest[0] in VALUED["xargs"].split() else rest[1:]
        return bool(rest) and changes_state(rest)
    program, subcommand, operands, flags = split(inner)
    joined = set(flags)
    if program == "find":
        return bool(
            {"-delete", "-exec", "-execdir", "-ok", "-fprint"} & set(inner)
        ) and not _find_runs_reader(inner)
    if program in ("sed", "yq", "perl"):
        return program == "perl" or any(re.match(r"-[a-zA-Z]*i|--in-place", f) for f in flags)
    if program == "sort":
        return "-o" in joined
    if program == "tee":
        return any(not word.startswith("/dev/") for word in operands)
    if program == "curl":
        return bool(
            joined & {"-d", "-F", "-T", "-o", "-O", "--data", "--data-raw", "--upload-file"}
        ) or any(v in ("POST", "PUT", "DELETE", "PATCH") for v in flags)
    if program in ("black", "prettier", "isort", "gofmt", "rustfmt", "goimports"):
        checks = {"--check", "--diff", "-l", "-d", "-c", "--list-different", "--check-only"}
        writes = joined & {"-w", "--write"}
        printing = program in ("gofmt", "goimports", "prettier") and not writes
        return bool(writes) or not (joined & checks or printing)
    if program in ("eslint", "stylelint"):
        return "--fix" in joined
    if program == "ruff" and subcommand == "format":
        return not joined & {"--check", "--diff"}
    if program == "mix" and subcommand == "format":
        return "--check-formatted" not in joined
    if program == "cargo" and subcommand == "fmt":
        return "--check" not in joined
    if program == "git":
        return _git_changes(subcommand, operands, joined)
    if program in ("npm", "pnpm", "yarn", "bun", "mise") and subcommand.startswith(
        ("run", "run-script")
    ):
        return not _SAFE_SCRIPTS.fullmatch(subcommand.partition(" ")[2])
    if program == "make":
        return not all(_SAFE_SCRIPTS.fullmatch(w) or w in LOOKING["make"] for w in operands)
    if program == "uv" and subcommand.startswith("pip "):
        return subcommand.split()[1] not in LOOKING["pip"]
    if program == "gh" and subcommand.startswith("api"):
        return bool(joined & {"-X", "--method", "-f", "-F", "--field", "--raw-field", "--input"})
    if program == "aws":
        verb = subcommand.partition(" ")[2]
        return not verb.startswith(("ls", "get", "list", "describe", "head"))
    if program in LOOKING:
        if joined & {"--fix", "--unsafe-fixes"} or (program == "go" and "-w" in joined):
            return True
        if program == "cargo" and subcommand == "run":
            return True
        if not subcommand and joined & {"--version", "-V", "--help", "-h"}:
            return False
        return subcommand not in LOOKING[program] or (program, *operands[:1]) == ("npm", "fix")
    if program in READERS:
        return False
    return not (set(inner[1:]) and set(inner[1:]) <= {"--version", "-V", "--help", "-h"})


def _git_changes(subcommand: str, operands: Sequence[str], flags: set[str]) -> bool:
    if subcommand in ("branch", "tag"):
        listing = flags <= {"-a", "-r", "-v", "-vv", "-l", "--list", "--show-current", "--contains"}
        return bool(operands and not flags & {"-l", "--list", "--contains"}) or not listing
    if subcommand.startswith("remote"):
        return subcommand not in ("remote", "remote show", "remote get-url")
    if subcommand.startswith(("stash", "worktree")):
        return subcommand.partition(" ")[2] not in ("list", "show")
    if subcommand == "config":
        return not flags & {"--get", "-l", "--list", "--get-all"} and len(operands) != 1
    return subcommand.partition(" ")[0] not in LOOKING["git"]


def _find_runs_reader(words: Sequence[str]) -> bool:
    if "-delete" in words or "-exec" not in words:
        return False
    inner = words[list(words).index("-exec") + 1 :]
    return bool(inner) and not changes_state(inner)


def _until_flag(words: Sequence[str]) -> list[str]:
    out: list[str] = []
    for word in words:
        if word.startswith(("-", "(", "!", "\\")):
            break
        out.append(word)
    return out


def _plain(word: str) -> str:
    """A path operand without ``./`` and the final slash."""
    short = word.rstrip("/") or word
    return short.removeprefix("./") or short


def _host(word: str) -> str:
    match = re.match(r"(?:[a-z]+://)?([^/?#]+)", word.strip("'\""))
    return match[1].lower() if match else word
