"""What the words of a simple command mean: program, subcommand, what is acted on.

Belongs here: tables of programs, wrappers, the target of a command for level L2. Does not
belong here: parsing a line (``preferences.actions.shell.parse``) and effects
(``preferences.actions.shell.effects``).
"""

import posixpath
import re
from collections.abc import Sequence
from itertools import pairwise

from composer_pipeline.preferences.actions.shell.options import Reading
from composer_pipeline.preferences.actions.shell.words import Place, file_word


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
    " whoami rspec xxd yamllint flake8 export declare unset alias typeset local set shopt"
    " journalctl dmesg arch groups tty tox nox ctest phpunit ava tap bats pip-audit safety"
    " bandit hadolint actionlint tflint"
    " codespell vulture radon cloc tokei scc delta column hexyl lsb_release uptime free lscpu"
    " locale dig nslookup host ping traceroute netstat ss ifconfig exa eza fzf look"
    " uvicorn gunicorn flask next nuxt astro webpack-dev-server live-server http-server"
    " tsc-watch vue-tsc svelte-check knip madge depcheck size-limit pyre pytype ty pstree"
    " realpath readelf objdump nm ldd otool zcat zgrep unset test seq ulimit umask history"
)

#: Program to its first words that only look; everything else of it mutates.
LOOKING: dict[str, frozenset[str]] = {
    "git": _set("status log diff show blame grep ls-files ls-tree rev-parse rev-list describe"
        " shortlog cat-file reflog ls-remote check-ignore merge-base name-rev whatchanged"
        " version help for-each-ref show-ref diff-tree diff-index diff-files count-objects cherry"
        " range-diff var fsck check-attr archive ls-remote"),
    "go": _set("test build vet list version doc env"),
    "cargo": _set("test build check clippy doc bench tree metadata nextest search run"),
    "npm": _set("test t tst ls list view info show outdated audit start why ping whoami search"
        " explain doctor fund pack"),
    "docker": _set("ps logs images inspect build version info stats top port history diff search"
        " events"),
    "kubectl": frozenset(["get", "describe", "logs", "top", "explain", "version", "diff",
        "api-resources", "cluster-info", "rollout status", "rollout history", "config view",
        "config current-context", "config get-contexts"]),
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
         "release view", "release list", "workflow view", "workflow list", "search code",
         "search issues", "search prs", "search repos", "label list", "repo list", "gist view",
         "gist list", "cache list", "variable list", "secret list"]
    ),
    "ruff": frozenset(["check", "rule", "linter", "version"]),
    "golangci-lint": frozenset(["run", "linters", "version"]),
    "eslint": frozenset(),
    "make": _set("test tests check lint build all types typecheck help dev serve bench coverage"),
}  # fmt: skip
LOOKING["mise"] = _set("run tasks ls current doctor")
LOOKING["mix"] = _set("test compile credo dialyzer help")
LOOKING["dotnet"] = LOOKING["swift"] = _set("test build")
LOOKING["deno"] = _set("test lint check info bench")
LOOKING["bazel"] = _set("test build query info cquery")
LOOKING["rake"] = _set("test spec")
LOOKING["rails"] = _set("test server routes")
LOOKING["alembic"] = _set("current history heads show check branches")
LOOKING["helm"] = _set("list template lint status get show history")
LOOKING["bundle"] = _set("check list show outdated")
LOOKING["composer"] = _set("show validate outdated")
LOOKING["hatch"] = LOOKING["pdm"] = _set("build test version")
LOOKING["pnpm"] = LOOKING["yarn"] = LOOKING["bun"] = LOOKING["npm"]
LOOKING["pip3"] = LOOKING["pip"]
LOOKING["podman"] = LOOKING["docker"]

#: Two-word subcommands: program and first word.
NESTED = _set(
    "mise run|git stash|git remote|git worktree|git submodule|git bisect|git notes|"
    "git reflog|git lfs|npm run|npm run-script|pnpm run|yarn run|bun run|go mod|go tool|"
    "go work|docker container|docker image|docker volume|docker network|"
    "uv pip|uv tool|docker system|docker buildx|pip config|cargo nextest|poetry run|"
    "kubectl rollout|kubectl config|kubectl auth|docker context|docker compose|"
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

_RUNNERS = frozenset(
    {"uv run", "poetry run", "pnpm exec", "bundle exec", "npm exec", "pnpm dlx", "yarn dlx"}
)
_LOCAL_BIN = re.compile(r"^(\./)?(node_modules/\.bin|\.?venv/bin)/")
_PACKAGED = frozenset({"npm", "pnpm", "yarn", "bun", "pip", "pip3", "uv", "poetry", "go", "cargo"})
_PYTHON = re.compile(r"python[\d.]*")
_NO_VALUE_WRAPPERS = frozenset(
    {"time", "nohup", "command", "exec", "stdbuf", "npx", "bunx", "nice"}
)
_SCRIPT_FIRST = frozenset({"sed", "awk", "gawk", "jq", "perl"})
#: Programs whose ``run NAME`` runs a script of the project.
PACKAGE_RUNNERS = frozenset({"npm", "pnpm", "yarn", "bun", "mise"})
_ORDERED = frozenset(
    {"cp", "mv", "ln", "diff", "cmp", "rsync", "scp", "git mv", "docker run", "docker exec",
     "docker compose run", "docker compose exec", "git diff", "git rebase", "git push", "git pull",
     "aws s3 cp", "aws s3 mv", "aws s3 sync", "gsutil cp", "docker cp", "kubectl cp",
     "git branch", "comm"}
)  # fmt: skip


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
    flags: tuple[str, ...] = ()
    packages = False
    if reading is not None:
        subcommand, packages = reading.subcommand, reading.grammar.kind == "packages"
        values = (v for name, v in reading.options if reading.grammar.arity.get(name) == "@")
        if reading.grammar.kind == "script" and operands:
            operands = operands[1:]
        operands = (*values, *operands)
        if program == "git" and "-C" in reading.before:
            operands = (f"-C={reading.before[reading.before.index('-C') + 1]}", *operands)
    else:
        program, subcommand, operands, flags = split(inner)
        packages = program in _PACKAGED
        if program in _SCRIPT_FIRST and not any(f in ("-e", "-f") for f in flags):
            operands = operands[1:]
        if program in ("python", "node", "bash", "sh", "zsh", "ruby", "perl"):
            code = [inner[i + 1] for i, w in enumerate(inner[:-1]) if w in ("-c", "-e")]
            operands = tuple(code) or operands[: 2 if operands[:1] == ("manage.py",) else 1]
            if operands[:1] == ("manage.py",):
                operands = (*operands[:1], *split(inner)[2][1:])
    if program in ("grep", "rg", "egrep", "fgrep", "ag"):
        return (program, "", *operands[:1], *sorted(_plain(w, place) for w in operands[1:]))
    if program in ("curl", "wget"):
        return (program, "", *(_host(word) for word in operands))
    if program == "aws" and operands and subcommand.endswith("s3"):
        subcommand, operands = f"{subcommand} {operands[0]}", operands[1:]
    if not packages:
        operands = tuple(_plain(word, place) for word in operands)
    if program not in _ORDERED and f"{program} {subcommand}" not in _ORDERED:
        operands = tuple(sorted(operands))
    return (program, subcommand, *operands)


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
