"""Scripted histories: real repositories, the sessions that edited them, and the fate of each line.

The truth is bookkeeping. A script keeps, beside every commit it makes, the stripped lines of every
file in it, the files that the commit touched and renamed, and the commits it copies. Git is told
what to do and asked for the hashes of what it just made, never for contents. A line is known by its
text, so each is written once in a history; a formatter's step says what its new lines stand for.
`python -m tests.survival.histories` plays all histories and compares the books with `git show`.
"""

import json
import os
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

HORIZONS = ("commit", "1", "5", "20", "7d", "30d", "today")
WINDOW = timedelta(days=14)  # an edit is looked for in the commits of this time after it
PERSON = ("Ada Person", "ada@example.org", "+0000")
OTHER = ("Bo Other", "bo@example.org", "+0530")

Lines = frozenset[str]
Tree = Mapping[str, Lines]  # path in the repository -> the stripped lines of the file


@dataclass(frozen=True)
class Truth:
    """What became of the lines of one response."""

    lines: Lines  # stripped added lines that can be followed
    alive: Mapping[str, Lines | None]  # horizon -> lines alive; None: not known or not reached
    commit: str | None  # the hash of the commit that carries them; None: none, or several allowed
    unknown: bool = False  # nothing can be known: every horizon is None


@dataclass(frozen=True)
class History:
    """One history: where it lies, when it is looked at, and the truth."""

    name: str
    sessions: Path  # folder of session files
    repositories: tuple[Path, ...]  # to be named by the user, usually none
    now: datetime
    truth: Mapping[str, Truth]  # message id -> truth


@dataclass(frozen=True)
class Commit:
    """What the script knows of a commit it made."""

    hash: str
    parents: tuple[str, ...]
    when: datetime
    tree: Tree
    touched: frozenset[str] = frozenset()  # empty for a merge
    renames: Mapping[str, str] = field(default_factory=dict)  # old path -> new path
    copies: tuple[str, ...] = ()  # the commits that this one was made from


@dataclass(frozen=True)
class Change:
    """One call of an editing tool; of a response that has several, all are on one file."""

    tool: str
    path: str
    pairs: tuple[tuple[str, str], ...] = ()
    content: str | None = None
    everywhere: bool = False
    fails: bool = False

    def after(self, before: str) -> str:
        if self.content is not None:
            return self.content
        for old, new in self.pairs:
            assert old in before, f"{old!r} is not in {self.path}"
            before = before.replace(old, new, -1 if self.everywhere else 1)
        return before

    def input(self, file: str) -> dict[str, object]:
        if self.content is not None:
            return {"file_path": file, "content": self.content}
        edits = [{"old_string": old, "new_string": new} for old, new in self.pairs]
        if self.tool == "MultiEdit":
            return {"file_path": file, "edits": edits}
        return {"file_path": file, **edits[0], "replace_all": self.everywhere}

    def result(self, file: str, before: str | None) -> dict[str, object]:
        noted: dict[str, object] = {"filePath": file, "originalFile": before, "structuredPatch": []}
        if self.content is not None:
            kind = "create" if before is None else "update"
            return {"type": kind, "content": self.content, **noted}
        edits = [{"old_string": old, "new_string": new} for old, new in self.pairs]
        if self.tool == "MultiEdit":
            return {"edits": edits, "originalFileContents": before, "userModified": False, **noted}
        old, new = self.pairs[0]
        texts = {"oldString": old, "newString": new, "replaceAll": self.everywhere}
        return {**texts, "userModified": False, **noted}


@dataclass(frozen=True)
class Written:
    """The lines that one response wrote, in the order of the file."""

    message: str
    place: "Place"
    path: str
    when: datetime
    lines: list[str]


def followed(line: str) -> bool:
    """Whether a stripped line is long enough to be followed."""
    return len(line) >= 10 and sum(map(str.isalnum, line)) >= 6


def lines_of(text: str) -> Lines:
    """The stripped lines of a text, without empty ones."""
    return frozenset(line.strip() for line in text.split("\n")) - {""}


def patched(tree: Tree, before: Tree, after: Tree) -> dict[str, Lines]:
    """`tree` with the change from `before` to `after` applied to it."""
    result = dict(tree)
    for path in before.keys() | after.keys():
        if path not in after:
            result.pop(path, None)
        elif before.get(path) != after[path]:
            old, new = before.get(path, frozenset()), after[path]
            result[path] = (result.get(path, frozenset()) - (old - new)) | (new - old)
    return result


WORDS = """
invoice basket parcel ledger voucher courier pallet stock refund coupon carrier tariff weight
depot route driver fleet cargo manifest customs broker margin payout salary vendor quota batch
lease token cursor shard replica beacon sensor probe gauge widget panel sidebar banner avatar
thumbnail caption glossary chapter footnote appendix kernel buffer socket packet frame codec stream
mixer filter relay valve anchor
""".split()  # noqa: SIM905  a list would take a line for each word

TEMPLATES = {
    ".py": (
        "{a}_{b} = load_{c}(source, {n})",
        'log.info("{a} of {b} took %s in pass {n}", {c}_seconds)',
        "register({c}Handler, {a}.{b}, retries={n})",
        "if {a}.{b} > {n}: raise Overflow({c})",
    ),
    ".ts": (
        "const {a}_{b} = await fetch_{c}({n});",
        "emit('{a}:{b}', {{ {c}: {n} }});",
        "if ({a}.{b} >= {n}) return {c};",
    ),
    ".go": (
        "{a}, err := open{c}(ctx, {b}, {n})",
        'metrics.Count("{a}.{b}", {c}, {n})',
        "defer {a}.Release{b}({c}, {n})",
    ),
    ".rs": (
        "let {a}_{b}: u64 = {c}.checked_add({n})?;",
        "{a}.push({b}::new({c}, {n}));",
        'tracing::debug!("{a} {b} {{}} {n}", {c});',
    ),
    ".sh": (
        '{a}_{b}="$(cut -c{n} {c}.txt)"',
        "cp -r {a}/{b} out/{c}-{n}",
        "retry {n} {a} --{b}={c}",
    ),
    ".md": ("The {a} of a {b} is in {c} {n}.", "- {a}, then {b} ({c}, at most {n})"),
    ".sql": ("ALTER TABLE {a} ADD {b}_{n} REFERENCES {c};", "CREATE INDEX {a}_{n} ON {b} ({c});"),
}


class Script:
    """One history in the making: a folder, a clock, agents, places, and the books."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.now = datetime(2026, 3, 2, 9, tzinfo=UTC)
        self.wait = timedelta(days=45)  # from the last step to the evaluation
        self.named: list[Path] = []
        self.agents: list[Agent] = []
        self.repos: list[Repo] = []
        self.written: list[Written] = []
        self.unknown: set[str] = set()  # messages of which nothing can be known
        self.stands_for: dict[str, Lines] = {}  # line of a formatter -> the lines it was
        self.line_number = zlib.crc32(name.encode()) % 997
        self.id_number = 0

    def advance(self, days: float = 0, minutes: float = 1) -> datetime:
        self.now += timedelta(days=days, minutes=minutes)
        return self.now

    def id(self) -> str:
        """A fresh id, the same in every run."""
        self.id_number += 1
        return str(uuid5(NAMESPACE_URL, f"{self.name}/{self.id_number}"))

    def code(self, path: str, count: int) -> list[str]:
        """Lines that nobody has written yet, in the language of the file."""
        templates = TEMPLATES[Path(path).suffix]
        return [self._line(templates) for _ in range(count)]

    def _line(self, templates: tuple[str, ...]) -> str:
        self.line_number += 1
        n, size = self.line_number, len(WORDS)
        a, b, c = (WORDS[(n * by + more) % size] for by, more in ((7, 0), (11, 3), (17, 5)))
        return templates[n % len(templates)].format(a=a, b=b, c=c, n=n)

    def agent(self, place: "Place", folder: str = "", *, originals: bool = True) -> "Agent":
        made = Agent(self, place, folder, originals)
        self.agents.append(made)
        return made

    def repository(self, name: str, *paths: str, size: int = 24) -> "Repo":
        """A new repository with one commit of the files."""
        repo = Repo(self, self.folder / name)
        repo.root.mkdir(parents=True)
        repo.git("init", "-q", "-b", "main")
        repo.git("config", "gc.auto", "0")
        for path in paths:
            repo.create(path, size)
        if paths:
            repo.commit("Begin")
        return repo

    def start(self, path: str, *more: str) -> tuple["Repo", "Agent"]:
        """A repository with this file, and a session in it."""
        repo = self.repository("project", path, *more)
        return repo, self.agent(repo)

    def clone(self, repo: "Repo", name: str, *options: str) -> "Repo":
        """A clone of the repository's main branch; the books of commits are shared."""
        clone = Repo(self, self.folder / name, repo.commits, {"main": repo.branches["main"]})
        repo.git("clone", "-q", *options, f"file://{repo.root}", str(clone.root))
        clone.files = dict(clone.tip.tree)
        return clone

    def carried(self, lines: Lines) -> Lines:
        """The lines that the lines of a file stand for."""
        return frozenset[str]().union(*(self.stands_for.get(line, {line}) for line in lines))

    def history(self) -> History:
        """Write the sessions, and close the books."""
        folder = self.folder / "sessions"
        folder.mkdir()
        for agent in (it for it in self.agents if it.records):
            text = "".join(
                json.dumps(record, ensure_ascii=False) + "\n" for record in agent.records
            )
            (folder / f"{agent.id}.jsonl").write_text(text, encoding="utf-8")
        now = self.now + self.wait
        truth = {it.message: truth_of(self, it, now) for it in self.written if it.lines}
        return History(self.name, folder, tuple(self.named), now, truth)


class Agent:
    """One session: the records of its file."""

    def __init__(self, script: Script, place: "Place", folder: str, originals: bool) -> None:
        self.script, self.place, self.originals = script, place, originals
        self.cwd = place.root / folder
        self.id = script.id()
        self.records: list[dict[str, Any]] = []

    def record(self, kind: str, message: dict[str, object], **more: object) -> None:
        stamp = self.script.now.strftime("%Y-%m-%dT%H:%M:%S.000Z")
        line = {
            "parentUuid": self.records[-1]["uuid"] if self.records else None,
            "isSidechain": False,
            "userType": "external",
            "cwd": str(self.cwd),
            "sessionId": self.id,
            "version": "2.1.0",
            "gitBranch": self.place.branch,
            "type": kind,
            "message": message,
            "uuid": self.script.id(),
            "timestamp": stamp,
        }
        self.records.append(line | more)

    def response(self, calls: list[tuple[str, dict[str, object]]]) -> tuple[str, list[str]]:
        """Record a response with these calls; its message id, and the ids of the calls."""
        if not self.records:
            self.record("user", {"role": "user", "content": "Please do the next step."})
            self.script.advance()
        ids = ["toolu_" + self.script.id().replace("-", "")[:24] for _ in calls]
        blocks = [
            {"type": "tool_use", "id": id_, "name": name, "input": arguments}
            for id_, (name, arguments) in zip(ids, calls, strict=True)
        ]
        message: dict[str, object] = {
            "id": "msg_" + self.script.id().replace("-", "")[:24],
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5",
            "content": blocks,
            "usage": {"input_tokens": 10, "output_tokens": 10},
        }
        self.record("assistant", message)
        return str(message["id"]), ids

    def result(self, call: str, text: str, noted: object, error: bool = False) -> None:
        block: dict[str, object] = {"tool_use_id": call, "type": "tool_result", "content": text}
        if error:
            block |= {"is_error": True}
        self.record("user", {"role": "user", "content": [block]}, toolUseResult=noted)

    def bash(self, command: str, output: str) -> None:
        _, (call,) = self.response([("Bash", {"command": command})])
        noted = {"stdout": output, "stderr": "", "interrupted": False}
        self.result(call, output, noted)


class Place:
    """A folder whose files agents and people edit."""

    branch = ""

    def __init__(self, script: Script, root: Path) -> None:
        self.script, self.root = script, root
        self.files: dict[str, Lines] = {}  # the working tree
        self.dirty: set[str] = set()

    def text(self, path: str) -> str:
        """The text of a file, with plain line ends."""
        return (self.root / path).read_bytes().decode().replace("\r\n", "\n")

    def put(self, path: str, text: str) -> None:
        """Write a file, with the line ends that it has."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and b"\r\n" in file.read_bytes():
            text = text.replace("\n", "\r\n")
        file.write_bytes(text.encode())
        self.files[path] = lines_of(text)
        self.dirty.add(path)

    def create(self, path: str, size: int = 24) -> None:
        first, *rest = self.script.code(path, size)
        self.put(path, "".join(line + "\n" for line in (first, *("    " + it for it in rest))))

    # What agents do.

    def respond(self, agent: Agent, *changes: Change) -> Written:
        """A response with these calls, carried out."""
        path = changes[0].path
        file = str(self.root / path)
        message, ids = agent.response([(it.tool, it.input(file)) for it in changes])
        when, added = self.script.now, list[str]()
        for change, call in zip(changes, ids, strict=True):
            assert change.path == path
            if change.fails:
                error = "String to replace not found in file."
                agent.result(call, error, f"Error: {error}", error=True)
                continue
            before = self.text(path) if (self.root / path).exists() else None
            after = change.after(before or "")
            self.put(path, after)
            new = lines_of(after) - lines_of(before or "")
            added += [line.strip() for line in after.split("\n") if line.strip() in new]
            noted = change.result(file, before) if agent.originals else {"filePath": file}
            agent.result(call, "ok", noted)
        lines = [line for line in dict.fromkeys(added) if followed(line)]
        self.script.written.append(Written(message, self, path, when, lines))
        self.script.advance()
        return self.script.written[-1]

    def edit(
        self, agent: Agent, path: str, old: str, new: str, everywhere: bool = False
    ) -> Written:
        change = Change("Edit", path, ((old, new),), everywhere=everywhere)
        return self.respond(agent, change)

    def write(self, agent: Agent, path: str, text: str) -> Written:
        return self.respond(agent, Change("Write", path, content=text))

    def insertion(self, path: str, count: int, at: int) -> tuple[str, str]:
        """The old and new string of an edit that adds new lines after line `at`."""
        anchor = self.text(path).split("\n")[at - 1]
        indent = anchor[: len(anchor) - len(anchor.lstrip())]
        fresh = [indent + line for line in self.script.code(path, count)]
        return anchor, "\n".join([anchor, *fresh])

    def insert(self, agent: Agent, path: str, count: int = 3, at: int = 8) -> Written:
        """A response with one Edit that adds new lines after line `at`."""
        return self.edit(agent, path, *self.insertion(path, count, at))

    def insert_twice(self, agent: Agent, path: str, at: int = 4, and_at: int = 18) -> Written:
        """A response with one MultiEdit that adds two lines in each of two places."""
        pairs = (self.insertion(path, 2, at), self.insertion(path, 2, and_at))
        return self.respond(agent, Change("MultiEdit", path, pairs))

    # What people and formatters do.

    def human_edit(self, path: str, old: str, new: str) -> None:
        text = self.text(path)
        assert old in text, f"{old!r} is not in {path}"
        self.put(path, text.replace(old, new))
        self.script.advance()

    def human_rewrite(self, path: str, *lines: str) -> None:
        for line in lines:
            self.human_edit(path, line, self.script.code(path, 1)[0])

    def human_drop(self, path: str, *lines: str) -> None:
        kept = [line for line in self.text(path).split("\n") if line.strip() not in lines]
        self.put(path, "\n".join(kept))
        self.script.advance()

    def human_add(self, path: str, count: int = 1, at: int | None = None) -> None:
        """A person adds lines, at the end unless told where."""
        at = at or self.text(path).count("\n")
        self.human_edit(path, *self.insertion(path, count, at))

    def reformat(self, path: str, old: str, new: str) -> None:
        """A formatter writes the same code differently."""
        was = self.script.carried(lines_of(old))
        for line in filter(followed, lines_of(new)):
            self.script.stands_for[line] = was
        self.human_edit(path, old, new)

    def reindent(self, path: str) -> None:
        """A formatter turns four spaces into two."""
        self.put(path, self.text(path).replace("    ", "  "))
        self.script.advance()


class Repo(Place):
    """A repository, clone or worktree; clones share `commits`, worktrees `branches` as well."""

    def __init__(
        self,
        script: Script,
        root: Path,
        commits: dict[str, Commit] | None = None,
        branches: dict[str, str] | None = None,
        branch: str = "main",
    ) -> None:
        super().__init__(script, root)
        self.commits = {} if commits is None else commits
        self.branches = {} if branches is None else branches  # the tips; a deleted one stays
        self.branch = branch
        self.renames: dict[str, str] = {}
        self.stashed: list[tuple[Tree, Tree, set[str]]] = []
        script.repos.append(self)

    def git(self, *arguments: str, who: tuple[str, str, str] = PERSON, stdin: str = "") -> str:
        """Run git here, at the script's time."""
        name, mail, zone = who
        date = f"{int(self.script.now.timestamp())} {zone}"
        env = {"PATH": os.environ["PATH"], "HOME": str(self.script.folder), "LC_ALL": "C.UTF-8"}
        env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_EDITOR": "true"}
        for role in ("AUTHOR", "COMMITTER"):
            env |= {f"GIT_{role}_NAME": name, f"GIT_{role}_EMAIL": mail, f"GIT_{role}_DATE": date}
        where = self.root if self.root.exists() else self.script.folder
        done = subprocess.run(
            ["git", *arguments], cwd=where, env=env, input=stdin.encode(), capture_output=True
        )
        if done.returncode:
            command = " ".join(arguments)
            raise RuntimeError(f"{self.script.name}: git {command}: {done.stderr.decode()}")
        return done.stdout.decode(errors="replace")

    # The books.

    @property
    def tip(self) -> Commit:
        return self.commits[self.branches[self.branch]]

    def ancestors(self, of: str) -> set[str]:
        found, waiting = set[str](), [of]
        while waiting:
            at = waiting.pop()
            if at not in found:
                found.add(at)
                waiting += self.commits[at].parents
        return found

    def base(self, other: str) -> Commit:
        """The newest commit that this branch and another have in common."""
        common = self.ancestors(self.tip.hash) & self.ancestors(other)
        return [it for it in self.commits.values() if it.hash in common][-1]

    def only_in(self, branch: str, than: str) -> list[Commit]:
        """The commits of a branch that another lacks, oldest first."""
        more = self.ancestors(self.branches[branch]) - self.ancestors(self.branches[than])
        return [it for it in self.commits.values() if it.hash in more]

    def book(
        self,
        tree: Tree,
        parents: tuple[str, ...],
        touched: Iterable[str] = (),
        renames: Mapping[str, str] | None = None,
        copies: tuple[str, ...] = (),
        hash_: str | None = None,
    ) -> Commit:
        """Note the commit that git has just made."""
        at = hash_ or self.git("rev-parse", "HEAD").strip()
        made = Commit(
            at,
            parents,
            self.script.now,
            dict(tree),
            frozenset(touched),
            dict(renames or {}),
            copies,
        )
        self.commits[at] = made
        self.branches[self.branch] = at
        if not self.dirty:
            self.files = dict(tree)
        return made

    # Commits.

    def commit(
        self,
        message: str,
        *,
        by: Agent | None = None,
        who: tuple[str, str, str] = PERSON,
        paths: tuple[str, ...] = (),
        hunks: str = "",
        left_out: Iterable[str] = (),
    ) -> Commit:
        """Commit all changes, or those of some paths, or (`git add -p`) some hunks of one path.

        Answers to the question whether to stage each hunk are in `hunks`; `left_out` are the lines
        that stay out of the commit by them.
        """
        if hunks:
            self.git("add", "-p", *self.dirty, stdin="\n".join(hunks) + "\n")
        else:
            self.git("add", "-A", "--", *(paths or (".",)))
        output = self.git("commit", "-m", message, who=who)
        if by:
            by.bash(f"git add -A && git commit -m {json.dumps(message)}", output)
        touched = self.dirty & set(paths) if paths else set(self.dirty)
        tree = dict(self.files)
        if paths:
            tree = {**self.tip.tree, **{path: self.files[path] for path in paths}}
        tree = {path: lines - set(left_out) for path, lines in tree.items()}
        parents = (self.branches[self.branch],) if self.branch in self.branches else ()
        if not hunks:
            self.dirty -= touched
        made = self.book(tree, parents, touched, self.renames)
        self.renames = {}
        self.script.advance()
        return made

    def amend(self) -> Commit:
        self.git("add", "-A")
        self.git("commit", "--amend", "--no-edit", "--date", f"@{int(self.script.now.timestamp())}")
        old = self.commits.pop(self.branches[self.branch])
        touched, self.dirty = old.touched | self.dirty, set()
        made = self.book(self.files, old.parents, touched, {**old.renames, **self.renames})
        self.renames = {}
        self.script.advance()
        return made

    def work(self, path: str, times: int = 1, who: tuple[str, str, str] = PERSON) -> None:
        """Commits that add a line each at the end of a file."""
        for _ in range(times):
            self.human_add(path)
            self.commit(f"Work on {path}", who=who)

    def lose(self, path: str, *lines: str, who: tuple[str, str, str] = PERSON) -> None:
        self.human_drop(path, *lines)
        self.commit(f"Remove from {path}", who=who)

    def rename(self, old: str, new: str) -> None:
        (self.root / new).parent.mkdir(parents=True, exist_ok=True)
        self.git("mv", old, new)
        self.files[new] = self.files.pop(old)
        self.renames[old] = new
        self.dirty |= {old, new}
        self.script.advance()

    def delete(self, path: str) -> None:
        self.git("rm", "-q", path)
        del self.files[path]
        self.dirty.add(path)

    def discard(self, path: str) -> None:
        self.git("checkout", "-q", "--", path)
        self.files[path] = self.tip.tree[path]
        self.dirty.discard(path)
        self.script.advance()

    def stash(self) -> None:
        self.git("stash", "-q")
        self.stashed.append((self.tip.tree, self.files, self.dirty))
        self.files, self.dirty = dict(self.tip.tree), set()
        self.script.advance()

    def pop(self) -> None:
        self.git("stash", "pop", "-q")
        base, files, self.dirty = self.stashed.pop()
        self.files = patched(self.files, base, files)
        self.script.advance()

    # Branches.

    def switch(self, branch: str, *, new: bool = False) -> None:
        """Another branch, or a new one that begins here."""
        assert new or not self.dirty
        self.git("switch", "-q", *(["-c"] if new else []), branch)
        if new:
            self.branches[branch] = self.branches[self.branch]
        self.branch = branch
        if not new:
            self.files = dict(self.tip.tree)

    def detach(self) -> None:
        self.git("checkout", "-q", "--detach")
        self.branches["HEAD"] = self.branches[self.branch]
        self.branch = "HEAD"

    def drop_branch(self, branch: str) -> None:
        self.git("branch", "-q", "-D", branch)

    def merge(self, other: str, *, who: tuple[str, str, str] = PERSON, hash_: str = "") -> None:
        """`git merge` of a branch or a hash; a fast-forward where it can be."""
        theirs = self.commits[hash_ or self.branches[other]]
        base = self.base(theirs.hash)
        self.git("merge", "-q", "--no-edit", hash_ or other, who=who)
        if base.hash == self.tip.hash:
            self.branches[self.branch] = theirs.hash
            self.files = dict(theirs.tree)
        else:
            tree = patched(self.tip.tree, base.tree, theirs.tree)
            self.book(tree, (self.tip.hash, theirs.hash))
        self.script.advance()

    def pull(self, other: "Repo") -> None:
        """Fetch the main branch of another clone, and merge it."""
        self.git("fetch", "-q", str(other.root), "main")
        self.merge("", hash_=other.branches["main"])

    def squash(self, branch: str) -> Commit:
        """`git merge --squash`, and a commit."""
        originals = self.only_in(branch, self.branch)
        theirs = self.commits[self.branches[branch]]
        tree = patched(self.tip.tree, self.base(theirs.hash).tree, theirs.tree)
        self.git("merge", "-q", "--squash", branch)
        self.git("commit", "-q", "-m", f"All of {branch} in one")
        touched = frozenset[str]().union(*(it.touched for it in originals))
        hashes = tuple(it.hash for it in originals)
        made = self.book(tree, (self.tip.hash,), touched, copies=hashes)
        self.script.advance()
        return made

    def copied(self, original: Commit, hash_: str | None = None, back: bool = False) -> Commit:
        """Note a commit that makes the change of another again, or takes it back."""
        before, after = self.commits[original.parents[0]].tree, original.tree
        before, after = (after, before) if back else (before, after)
        tree = patched(self.tip.tree, before, after)
        copies = () if back else (original.hash,)
        parents = (self.tip.hash,)
        return self.book(tree, parents, original.touched, original.renames, copies, hash_)

    def rebase(self, onto: str) -> None:
        originals = self.only_in(self.branch, onto)
        self.git("rebase", "-q", onto)
        hashes = self.git("rev-list", "--reverse", f"{onto}..HEAD").split()
        self.branches[self.branch] = self.branches[onto]
        self.files = dict(self.tip.tree)
        for original, hash_ in zip(originals, hashes, strict=True):
            self.copied(original, hash_)
        self.script.advance()

    def cherry_pick(self, original: Commit) -> Commit:
        self.git("cherry-pick", original.hash)
        made = self.copied(original)
        self.script.advance()
        return made

    def revert(self, original: Commit) -> Commit:
        self.git("revert", "--no-edit", original.hash)
        made = self.copied(original, back=True)
        self.script.advance()
        return made

    # Whole folders.

    def worktree(self, root: Path, branch: str) -> "Repo":
        """`git worktree add` with a new branch."""
        self.git("worktree", "add", "-q", "-b", branch, str(root))
        made = Repo(self.script, root, self.commits, self.branches, branch)
        self.branches[branch] = self.branches[self.branch]
        made.files = dict(made.tip.tree)
        return made

    def remove_worktree(self, worktree: "Repo") -> None:
        self.git("worktree", "remove", str(worktree.root))

    def remove(self) -> None:
        shutil.rmtree(self.root)

    def move(self, name: str) -> None:
        new = self.script.folder / name
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(self.root, new)
        self.root = new


# From the books to the truth.


def carrier(script: Script, repo: Repo, it: Written) -> tuple[Commit | None, bool]:
    """The commit that brings lines of the response in; else the first that touches the file."""
    touching = None
    for commit in repo.commits.values():
        if not it.when < commit.when <= it.when + WINDOW:
            continue
        path = commit.renames.get(it.path, it.path)
        new = script.carried(commit.tree.get(path, frozenset()))
        for parent in commit.parents:
            new -= script.carried(repo.commits[parent].tree.get(it.path, frozenset()))
        if new & set(it.lines):
            return commit, True
        if it.path in commit.touched and touching is None:
            touching = commit
    return touching, False


def home(repo: Repo, commit: Commit) -> tuple[Commit, str]:
    """The commit or its copy on the main branch, and the tip to follow it to."""
    main = repo.branches.get("main")
    on_main = repo.ancestors(main) if main else set()
    for one in repo.commits.values():
        if main and one.hash in on_main and commit.hash in (one.hash, *one.copies):
            return one, main
    tips = [tip for tip in repo.branches.values() if commit.hash in repo.ancestors(tip)]
    return commit, max(tips, key=lambda tip: len(repo.ancestors(tip)))


def later(repo: Repo, start: Commit, tip: str, path: str) -> list[tuple[Commit, str]]:
    """The commits after `start` that touch the file, each with the file's path in it."""
    found, reach = [], repo.ancestors(tip)
    for commit in repo.commits.values():
        after = commit.hash in reach and commit is not start
        if after and path in commit.touched and start.hash in repo.ancestors(commit.hash):
            path = commit.renames.get(path, path)
            found.append((commit, path))
    return found


def truth_of(script: Script, it: Written, now: datetime) -> Truth:
    """What became of the lines of a response, by the books alone."""
    lines, repo = frozenset(it.lines), it.place
    nothing = Truth(lines, dict.fromkeys(HORIZONS), None, unknown=True)
    if not isinstance(repo, Repo) or it.message in script.unknown:
        return nothing
    original, brought = carrier(script, repo, it)
    if original is None:
        return nothing
    start, tip = home(repo, original)
    path = original.renames.get(it.path, it.path)
    steps = [(start, path), *later(repo, start, tip, path)]
    states = [lines & script.carried(one.tree.get(at, frozenset())) for one, at in steps]
    first = lines & script.carried(original.tree.get(path, frozenset()))
    today = repo.commits[tip].tree.get(steps[-1][1], frozenset())
    alive: dict[str, Lines | None] = {
        # Lines that were staged later come with the commits after.
        "commit": first.union(*states) if brought else frozenset(),
        "today": lines & script.carried(today),
    }
    for days in (7, 30):
        limit = start.when + timedelta(days=days)
        before = sum(one.when <= limit for one, _ in steps)
        alive[f"{days}d"] = states[before - 1] if limit <= now else None
    for count in (1, 5, 20):
        alive[str(count)] = states[count] if count < len(states) else None
    return Truth(lines, alive, original.hash if brought and start is original else None)


HISTORY_STEPS: dict[str, Callable[[Script], None]] = {}


def history(steps: Callable[[Script], None]) -> Callable[[Script], None]:
    """Enter a history, by the name of its function."""
    HISTORY_STEPS[steps.__name__] = steps
    return steps


def played(name: str, folder: Path) -> Script:
    """Play one history in an empty folder."""
    script = Script(name, folder)
    HISTORY_STEPS[name](script)
    return script


def build(name: str, folder: Path) -> History:
    """Play one history in an empty folder, and write down the truth."""
    return played(name, folder).history()
