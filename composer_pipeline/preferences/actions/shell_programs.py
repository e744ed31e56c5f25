"""Tables of programs, and the words of a command: wrappers, subcommand, operands, flags."""

import posixpath
import re
from collections.abc import Sequence


def _set(text: str, separator: str | None = None) -> frozenset[str]:
    return frozenset(text.split(separator))


def _verbs(groups: str, verbs: str) -> frozenset[str]:
    return frozenset(f"{group} {verb}" for group in groups.split() for verb in verbs.split())


#: Programs that only look, whatever their arguments.
READERS = _set(
    ": [ [[ actionlint ag alias arch astro ava awk bandit basename bat bats break build cat cd"
    " cloc cmp codespell column comm compileall continue ctest cut date declare delta depcheck df"
    " diff dig dirname dmesg doctest du echo egrep env exa exit export expr eza false fd fgrep"
    " file flake8 flask fold free fzf gawk getconf grep groups gunicorn hadolint head hexdump"
    " hexyl history host hostname http-server http.server id ifconfig jest jobs journalctl jq"
    " json.tool knip ldd less live-server local locale look ls lsb_release lscpu lsof madge man"
    " md5sum mocha more mypy netstat next nl nm nox nproc nslookup nuxt objdump od otool paste pdb"
    " pgrep phpunit ping pip-audit playwright printenv printf ps pstree pwd py_compile pylint pyre"
    " pyright pytest pytype radon read readelf readlink realpath return rev rg rspec safety scc"
    " seq set sha256sum shasum shellcheck shift shopt site size-limit sleep sort ss stat strings"
    " svelte-check sysconfig tabnanny tac tail tap test tflint timeit tokei top tox tr traceroute"
    " tree true tsc tsc-watch tty ty type typeset ulimit umask uname uniq unittest unset uptime"
    " uvicorn vite vitest vue-tsc vulture wait wc webpack-dev-server whereis which whoami xxd"
    " yamllint zcat zgrep"
)

#: Program to its first words that only look; everything else of it mutates.
LOOKING: dict[str, frozenset[str]] = {
    "git": _set("status log diff show blame grep ls-files ls-tree rev-parse rev-list describe"
        " shortlog cat-file reflog ls-remote check-ignore merge-base name-rev whatchanged"
        " version help for-each-ref show-ref diff-tree diff-index diff-files count-objects cherry"
        " range-diff var fsck check-attr archive ls-remote notes submodule remote")
        | _verbs("remote", "show get-url")
        | _verbs("stash worktree notes submodule bisect lfs",
                 "list show status log summary ls-files exists"),
    "go": _set("test build vet list version doc env"),
    "cargo": _set("test build check clippy doc bench tree metadata nextest search"),
    "npm": _set("test t tst ls list view info show outdated audit start why ping whoami search"
        " explain doctor fund pack"),
    "docker": _set("ps logs images inspect build version info stats top port history diff search"
        " events")
        | _verbs("compose", "ps logs config images top ls version build port events")
        | _verbs("container image volume network system buildx context",
                 "ls list inspect logs top stats df history build show ps info diff"),
    "kubectl": frozenset(["get", "describe", "logs", "top", "explain", "version", "diff",
        "api-resources", "cluster-info", "rollout status", "rollout history", "config view",
        "config current-context", "config get-contexts"]),
    "pip": _set("list show freeze check download"),
    "uv": _set("tree version") | _verbs("pip", "list show freeze check download"),
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
    "make": _set("test tests check lint build all types typecheck help dev serve bench coverage"),
    "mise": _set("run tasks ls current doctor"),
    "mix": _set("test compile credo dialyzer help"),
    "dotnet": _set("test build"),
    "swift": _set("test build"),
    "deno": _set("test lint check info bench"),
    "bazel": _set("test build query info cquery"),
    "rake": _set("test spec"),
    "rails": _set("test server routes"),
    "alembic": _set("current history heads show check branches"),
    "helm": _set("list template lint status get show history"),
    "bundle": _set("check list show outdated"),
    "composer": _set("show validate outdated"),
    "hatch": _set("build test version"),
    "pdm": _set("build test version"),
}  # fmt: skip
LOOKING["pnpm"] = LOOKING["yarn"] = LOOKING["bun"] = LOOKING["npm"]
LOOKING["pip3"] = LOOKING["pip"]
LOOKING["podman"] = LOOKING["docker"]

#: Commands of Django's ``manage.py`` that only look, test or serve.
MANAGE = _set("test check showmigrations runserver diffsettings sqlmigrate inspectdb help version")

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
SUBCOMMANDS = frozenset(LOOKING) - {"make"} | NESTED_PROGRAMS | {"apt-get"}

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
    "gtimeout": "-s -k",
    "mypy": "--config-file -p -m --python-version",
    "ruff": "--select --ignore --config",
    "kubectl": "-n --namespace -l -o --context -f",
}

RUNNERS = frozenset(
    {"uv run", "poetry run", "pnpm exec", "bundle exec", "npm exec", "pnpm dlx", "yarn dlx"}
)
LOCAL_BIN = re.compile(r"^(\./)?(node_modules/\.bin|\.?venv/bin)/")
PACKAGED = frozenset({"npm", "pnpm", "yarn", "bun", "pip", "pip3", "uv", "poetry", "go", "cargo"})
PYTHON = re.compile(r"python[\d.]*")
#: Programs that run the command in their operands.
WRAPPERS = _set("time nohup command exec stdbuf npx bunx nice timeout gtimeout env")
SCRIPT_FIRST = frozenset({"sed", "awk", "gawk", "jq", "perl"})
#: Programs whose ``run NAME`` runs a script of the project.
PACKAGE_RUNNERS = frozenset({"npm", "pnpm", "yarn", "bun", "mise"})
ORDERED = frozenset(
    {"cp", "mv", "ln", "diff", "cmp", "rsync", "scp", "git mv", "docker run", "docker exec",
     "docker compose run", "docker compose exec", "git diff", "git rebase", "git push", "git pull",
     "aws s3 cp", "aws s3 mv", "aws s3 sync", "gsutil cp", "docker cp", "kubectl cp",
     "git branch", "comm"}
)  # fmt: skip


def unwrap(words: Sequence[str]) -> tuple[str, ...]:
    """Return the command that a wrapper such as ``timeout 60``, ``npx`` or ``uv run`` runs."""
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
    """Return what one wrapper runs, or ``None`` if the first word is not a wrapper."""
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
            # What follows are operands, but a flag for another program is a flag.
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
