"""Scripted histories: real repositories, the sessions that edited them, and the fate of each line.

The truth is bookkeeping. A script keeps, beside every commit it makes, the stripped lines of every
file in it, the files that the commit touched and renamed, and the commits it copies. Git is told
what to do and asked for the hashes of what it just made, never for contents. A line is known by its
text, so each is written once in a history; a formatter's step says what its new lines stand for.
`python tests/survival/histories.py` plays all histories and compares the books with `git show`.
"""

import json
import os
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

HORIZONS = ("commit", "1", "5", "20", "30d", "today")
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
    month = start.when + timedelta(days=30)
    in_month = sum(one.when <= month for one, _ in steps)
    today = repo.commits[tip].tree.get(steps[-1][1], frozenset())
    alive: dict[str, Lines | None] = {
        # Lines that were staged later come with the commits after.
        "commit": first.union(*states) if brought else frozenset(),
        "30d": states[in_month - 1] if month <= now else None,
        "today": lines & script.carried(today),
    }
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


# Commits.


@history
def plain_commit(s: Script) -> None:
    repo, agent = s.start("src/app.py")
    repo.insert(agent, "src/app.py")
    repo.commit("Load the invoices")
    repo.work("src/app.py", 5)


@history
def commit_by_the_session(s: Script) -> None:
    repo, agent = s.start("src/app.ts")
    repo.insert(agent, "src/app.ts")
    repo.commit("Fetch the parcels", by=agent)
    repo.insert(agent, "src/app.ts", at=14)
    repo.commit("Fetch more parcels", by=agent)


@history
def commit_with_co_author(s: Script) -> None:
    repo, agent = s.start("main.go")
    repo.insert(agent, "main.go")
    repo.commit("Open the depot\n\nCo-Authored-By: Claude <noreply@anthropic.com>")
    repo.work("main.go")


@history
def commit_names_the_session(s: Script) -> None:
    repo, agent = s.start("lib.rs")
    repo.insert(agent, "lib.rs")
    repo.commit(f"Push the pallets\n\nClaude-Session: {agent.id}")
    repo.work("lib.rs")


@history
def second_commit_has_it(s: Script) -> None:
    repo, agent = s.start("a.py", "b.py")
    repo.insert(agent, "a.py")
    repo.human_add("b.py")
    repo.commit("Another file", paths=("b.py",))
    repo.commit("The edit")
    repo.work("b.py", 2)


@history
def commit_after_ten_days(s: Script) -> None:
    repo, agent = s.start("deploy.sh")
    repo.insert(agent, "deploy.sh")
    s.advance(days=10)
    repo.commit("Deploy")


@history
def commit_after_twenty_days(s: Script) -> None:
    repo, agent = s.start("deploy.sh")
    repo.insert(agent, "deploy.sh")
    s.advance(days=20)
    repo.commit("Deploy")  # too late: nobody knows


@history
def never_committed(s: Script) -> None:
    repo, agent = s.start("a.py", "b.py")
    repo.insert(agent, "a.py")
    repo.human_add("b.py")
    repo.commit("Another file", paths=("b.py",))


@history
def discarded(s: Script) -> None:
    repo, agent = s.start("a.py")
    repo.insert(agent, "a.py")
    repo.discard("a.py")
    repo.work("a.py", 7)


# Between the edit and the commit.


@history
def refined_by_the_session(s: Script) -> None:
    repo, agent = s.start("app.py")
    first = repo.insert(agent, "app.py", 2)
    better = s.code("app.py", 2)
    repo.edit(agent, "app.py", "\n    ".join(first.lines), "\n    ".join(better))
    repo.commit("Refined")
    repo.work("app.py")


@history
def refined_in_part_by_the_session(s: Script) -> None:
    repo, agent = s.start("app.rs")
    first = repo.insert(agent, "app.rs", 4)
    repo.edit(agent, "app.rs", first.lines[1], s.code("app.rs", 1)[0])
    repo.commit("Refined")
    repo.lose("app.rs", first.lines[3])


@history
def replaced_by_another_session(s: Script) -> None:
    repo, agent = s.start("app.ts")
    first = repo.insert(agent, "app.ts", 1)
    s.advance(minutes=300)
    repo.edit(s.agent(repo), "app.ts", first.lines[0], "\n    ".join(s.code("app.ts", 3)))
    repo.commit("Another way")
    repo.work("app.ts", 2)


@history
def human_rewrites_all(s: Script) -> None:
    repo, agent = s.start("app.go")
    added = repo.insert(agent, "app.go")
    repo.human_rewrite("app.go", *added.lines)
    repo.commit("By hand")
    repo.work("app.go", 5)


@history
def human_rewrites_some(s: Script) -> None:
    repo, agent = s.start("app.go")
    added = repo.insert(agent, "app.go", 5)
    repo.human_rewrite("app.go", *added.lines[1:3])
    repo.commit("Half by hand")
    repo.work("app.go")


@history
def human_changes_a_name(s: Script) -> None:
    # No formatter changes a name, so the changed lines are a person's.
    repo, agent = s.start("app.py")
    new = ["deadline = start + timedelta(hours=36)", "owner = directory.lookup(request.user)"]
    old = repo.text("app.py").split("\n")[5]
    repo.edit(agent, "app.py", old, "\n    ".join([old, *new]))
    repo.human_edit("app.py", "directory.lookup(request.user)", "directory.lookup(request.team)")
    repo.commit("Owners are teams")
    repo.human_edit("app.py", "timedelta(hours=36)", "timedelta(hours=48)")
    repo.commit("Longer")


@history
def others_commits_between(s: Script) -> None:
    repo, agent = s.start("app.py")
    clone = s.clone(repo, "bo")
    repo.insert(agent, "app.py", at=6)
    clone.human_add("app.py", 2, at=18)
    clone.commit("Bo was here", who=OTHER)
    clone.work("app.py", 2, who=OTHER)
    repo.stash()
    repo.pull(clone)
    repo.pop()
    repo.commit("The edit, after Bo")
    repo.work("app.py")


@history
def others_commits_on_another_branch(s: Script) -> None:
    repo, agent = s.start("app.py")
    clone = s.clone(repo, "bo")
    clone.switch("bo/other", new=True)
    clone.work("app.py", 6, who=OTHER)
    repo.insert(agent, "app.py", at=6)
    repo.commit("The edit")
    repo.git("remote", "add", "bo", str(clone.root))
    repo.git("fetch", "-q", "bo")
    repo.work("app.py")
    clone.work("app.py", 3, who=OTHER)
    repo.git("fetch", "-q", "bo")


@history
def other_person_removes_half(s: Script) -> None:
    repo, agent = s.start("app.sh")
    added = repo.insert(agent, "app.sh", 4)
    repo.commit("The edit")
    clone = s.clone(repo, "bo")
    s.advance(days=3)
    clone.lose("app.sh", *added.lines[:2], who=OTHER)
    repo.pull(clone)
    repo.work("app.sh")


# Several agents.


@history
def two_agents_interleaved(s: Script) -> None:
    repo, agent = s.start("app.py")
    other = s.agent(repo)
    first = repo.insert(agent, "app.py", 3, at=5)
    second = repo.insert(other, "app.py", 3, at=21)
    repo.commit("Of the first agent", hunks="yn", left_out=second.lines)
    repo.commit("Of the second agent")
    repo.insert(agent, "app.py", 2, at=16)
    repo.commit("More of the first agent", by=agent)
    gone, *rest = first.lines
    repo.edit(other, "app.py", "    " + gone + "\n", "    " + s.code("app.py", 1)[0] + "\n")
    repo.commit("The second agent replaces a line of the first", by=other)
    repo.lose("app.py", rest[0], second.lines[2])


@history
def two_agents_one_commit(s: Script) -> None:
    repo, agent = s.start("app.md")
    first = repo.insert(agent, "app.md", 2, at=5)
    second = repo.insert(s.agent(repo), "app.md", 2, at=6)  # within the lines of the first
    repo.commit("Both")
    repo.lose("app.md", first.lines[0], second.lines[1])


@history
def one_session_two_repositories(s: Script) -> None:
    repo, agent = s.start("app.py")
    other = s.repository("library", "lib.py")
    repo.insert(agent, "app.py")
    other.insert(agent, "lib.py")
    other.commit("The library's part")
    repo.commit("The project's part")
    other.work("lib.py", 2)


# Formatters.

LONG = 'report = build_report(customer_name, invoice_rows, currency="EUR", locale=user_locale)'
WRAPPED = """report = build_report(
        customer_name,
        invoice_rows,
        currency="EUR",
        locale=user_locale,
    )"""


def edited(s: Script, path: str, new: str) -> Repo:
    """A repository in which an agent has added this text to a file."""
    repo, agent = s.start(path)
    anchor = repo.text(path).split("\n")[9]
    repo.edit(agent, path, anchor, f"{anchor}\n    {new}")
    return repo


@history
def formatter_indents(s: Script) -> None:
    repo, agent = s.start("app.ts")
    added = repo.insert(agent, "app.ts", 4)
    repo.reindent("app.ts")
    repo.commit("Formatted")
    repo.lose("app.ts", added.lines[0])


@history
def formatter_wraps(s: Script) -> None:
    repo = edited(s, "app.py", LONG + "\n    archive(report, retention_days=90)")
    repo.reformat("app.py", LONG, WRAPPED)
    repo.commit("Wrapped")
    repo.work("app.py")


@history
def formatter_joins(s: Script) -> None:
    repo = edited(s, "app.py", WRAPPED)
    repo.reformat("app.py", WRAPPED, LONG)
    repo.commit("Joined")
    repo.work("app.py")
    repo.lose("app.py", LONG)


@history
def formatter_changes_quotes(s: Script) -> None:
    old = "labels = {'open': 'Open orders', 'late': 'Late orders'}"
    repo = edited(s, "app.py", old + "\n    default = labels['open']")
    repo.reformat("app.py", old, old.replace("'", '"'))
    repo.reformat("app.py", "default = labels['open']", 'default = labels["open"]')
    repo.commit("Quoted")
    repo.work("app.py")


@history
def formatter_adds_commas(s: Script) -> None:
    old = "colours = [\n        palette.primary,\n        palette.secondary\n    ]"
    repo = edited(s, "app.ts", old)
    repo.reformat("app.ts", "palette.secondary\n", "palette.secondary,\n")
    repo.commit("With a comma")
    repo.work("app.ts")


@history
def style_commit_later(s: Script) -> None:
    repo = edited(s, "app.py", LONG + "\n    archive(report, retention_days=90)")
    repo.commit("The edit")
    repo.reformat("app.py", LONG, WRAPPED)
    repo.reindent("app.py")
    repo.commit("Style")
    repo.work("app.py", 4)


# Parts of a commit, and commits made again.


@history
def staged_in_two_commits(s: Script) -> None:
    repo, agent = s.start("app.py")
    added = repo.insert_twice(agent, "app.py")
    repo.commit("One half", hunks="yn", left_out=added.lines[2:])
    repo.commit("The other half")
    repo.work("app.py")


@history
def staged_in_part_rest_discarded(s: Script) -> None:
    repo, agent = s.start("app.py")
    added = repo.insert_twice(agent, "app.py")
    repo.commit("One half", hunks="ny", left_out=added.lines[:2])
    repo.discard("app.py")
    repo.work("app.py")


@history
def amended_with_a_second_edit(s: Script) -> None:
    repo, agent = s.start("app.rs")
    repo.insert(agent, "app.rs", 2, at=5)
    repo.commit("Edit", by=agent)
    repo.insert(agent, "app.rs", 2, at=15)
    repo.amend()
    repo.work("app.rs")


@history
def amended_without_changes(s: Script) -> None:
    repo, agent = s.start("app.rs")
    repo.insert(agent, "app.rs")
    repo.commit("Edit", by=agent)
    repo.amend()
    repo.work("app.rs")


@history
def amended_dropping_a_part(s: Script) -> None:
    repo, agent = s.start("app.rs")
    added = repo.insert(agent, "app.rs", 4)
    repo.commit("Edit")
    repo.human_drop("app.rs", *added.lines[:2])
    repo.amend()
    repo.work("app.rs")


@history
def reverted(s: Script) -> None:
    repo, agent = s.start("app.sql")
    repo.insert(agent, "app.sql")
    repo.revert(repo.commit("Edit"))
    repo.work("app.sql", 2)


@history
def reverted_and_applied_again(s: Script) -> None:
    repo, agent = s.start("app.sql")
    repo.insert(agent, "app.sql")
    repo.revert(repo.revert(repo.commit("Edit")))
    repo.work("app.sql", 4)


# Branches.


@history
def squash_merge(s: Script) -> None:
    repo, agent = s.start("app.py", "b.py")
    repo.switch("feature", new=True)
    repo.insert(agent, "app.py", 2, at=5)
    repo.commit("Step one")
    added = repo.insert(agent, "app.py", 3, at=15)
    repo.commit("Step two")
    repo.switch("main")
    repo.work("b.py")
    repo.squash("feature")
    repo.drop_branch("feature")
    repo.lose("app.py", added.lines[1])


@history
def squash_merge_with_one_undone(s: Script) -> None:
    # The undone edit has no copy on main: its own commit carries it, and it is gone at the next.
    repo, agent = s.start("app.py", "b.py")
    repo.switch("feature", new=True)
    repo.insert(agent, "app.py", 2, at=5)
    repo.commit("Step one")
    undone = repo.insert(agent, "app.py", 2, at=12)
    repo.commit("Step two")
    repo.lose("app.py", *undone.lines)
    repo.insert(agent, "app.py", 2, at=18)
    repo.commit("Step three")
    repo.switch("main")
    repo.squash("feature")
    repo.drop_branch("feature")
    repo.work("app.py", 2)


@history
def rebased_onto_main(s: Script) -> None:
    repo, agent = s.start("app.ts")
    repo.switch("feature", new=True)
    first = repo.insert(agent, "app.ts", 3, at=5)
    repo.commit("Step one", by=agent)
    repo.insert(agent, "app.ts", 2, at=12)
    repo.commit("Step two", by=agent)
    repo.switch("main")
    repo.work("app.ts", 2)
    repo.switch("feature")
    repo.rebase("main")
    repo.switch("main")
    repo.merge("feature")
    repo.drop_branch("feature")
    repo.lose("app.ts", first.lines[0])


@history
def cherry_picked(s: Script) -> None:
    repo, agent = s.start("app.go")
    repo.switch("feature", new=True)
    added = repo.insert(agent, "app.go", 4, at=6)
    original = repo.commit("Edit")
    repo.lose("app.go", *added.lines[:3])  # on the branch only
    repo.switch("main")
    repo.work("app.go")
    repo.cherry_pick(original)
    repo.lose("app.go", added.lines[3])


@history
def merge_commit(s: Script) -> None:
    repo, agent = s.start("app.py")
    repo.switch("feature", new=True)
    added = repo.insert(agent, "app.py", 3, at=6)
    repo.commit("Edit")
    repo.insert(agent, "app.py", 2, at=14)
    repo.commit("Another edit")
    repo.switch("main")
    repo.work("app.py", 3)  # these do not come after the edit
    repo.merge("feature")
    repo.lose("app.py", added.lines[2])
    repo.work("app.py", 3)


@history
def branch_never_merged(s: Script) -> None:
    repo, agent = s.start("app.py")
    repo.switch("feature", new=True)
    added = repo.insert(agent, "app.py", 3, at=6)
    repo.commit("Edit")
    repo.lose("app.py", added.lines[0])
    repo.switch("main")
    repo.work("app.py", 6)


@history
def detached_and_then_a_branch(s: Script) -> None:
    repo, agent = s.start("app.py")
    repo.detach()
    added = repo.insert(agent, "app.py")
    repo.commit("Edit")
    repo.switch("rescue", new=True)
    repo.lose("app.py", added.lines[1])
    repo.switch("main")


@history
def stashed_and_popped(s: Script) -> None:
    repo, agent = s.start("app.py", "b.py")
    repo.insert(agent, "app.py")
    repo.stash()
    repo.work("b.py", 2)
    repo.pop()
    repo.commit("Edit")
    repo.work("app.py")


@history
def stashed_for_ever(s: Script) -> None:
    repo, agent = s.start("app.py", "b.py")
    repo.insert(agent, "app.py")
    repo.stash()
    repo.work("b.py", 2)


# Files that move.


@history
def renamed_after_the_commit(s: Script) -> None:
    repo, agent = s.start("src/old.py")
    added = repo.insert(agent, "src/old.py")
    repo.commit("Edit")
    repo.rename("src/old.py", "src/parts/new.py")
    repo.commit("Move")
    repo.lose("src/parts/new.py", added.lines[0])
    repo.work("src/parts/new.py", 3)


@history
def renamed_with_changes(s: Script) -> None:
    repo, agent = s.start("old.ts")
    added = repo.insert(agent, "old.ts", 4)
    repo.commit("Edit")
    repo.rename("old.ts", "new.ts")
    repo.human_drop("new.ts", added.lines[3])
    repo.human_add("new.ts")
    repo.commit("Move and change")
    repo.work("new.ts", 4)


@history
def renamed_before_the_commit(s: Script) -> None:
    repo, agent = s.start("old.go")
    added = repo.insert(agent, "old.go")
    repo.rename("old.go", "new.go")
    repo.commit("Edit and move")
    repo.lose("new.go", added.lines[0])


@history
def deleted_later(s: Script) -> None:
    repo, agent = s.start("app.py", "b.py")
    repo.insert(agent, "app.py")
    repo.commit("Edit")
    repo.work("app.py")
    repo.delete("app.py")
    repo.commit("No longer needed")
    repo.work("b.py")


@history
def repository_moved(s: Script) -> None:
    repo, agent = s.start("app.py")
    repo.insert(agent, "app.py")
    repo.commit("Edit")
    repo.move("archive/2026/project")
    repo.work("app.py", 2)
    s.named.append(repo.root)


# Time.


@history
def lost_at_known_commits(s: Script) -> None:
    repo, agent = s.start("app.py", "b.py")
    added = repo.insert(agent, "app.py", 8)
    repo.commit("Edit")
    for count in range(1, 26):
        s.advance(days=0.5)
        repo.work("b.py", 1 if count % 3 else 0)
        gone = {1: 0, 4: 1, 5: 2, 6: 3, 18: 4, 22: 5}.get(count)
        repo.human_add("app.py")
        repo.human_drop("app.py", *([] if gone is None else [added.lines[gone]]))
        repo.commit(f"Commit {count}", who=OTHER if count % 2 else PERSON)


@history
def lost_after_forty_days(s: Script) -> None:
    repo, agent = s.start("app.py")
    added = repo.insert(agent, "app.py")
    repo.commit("Edit")
    s.advance(days=20)
    repo.lose("app.py", added.lines[0])
    s.advance(days=20)
    repo.lose("app.py", *added.lines[1:])


@history
def young(s: Script) -> None:
    repo, agent = s.start("app.py")
    repo.insert(agent, "app.py")
    repo.commit("Edit")
    s.wait = timedelta(days=2)


# Where the file and the repository are.


@history
def file_outside_the_repository(s: Script) -> None:
    repo, agent = s.start("app.py")
    Place(s, s.folder / "elsewhere").write(agent, "notes.md", "\n".join(s.code("a.md", 3)))
    repo.insert(agent, "app.py")
    repo.commit("Edit")


@history
def no_repository(s: Script) -> None:
    place = Place(s, s.folder / "scratch")
    place.create("app.py")
    place.insert(s.agent(place), "app.py")


@history
def session_outside_the_repository(s: Script) -> None:
    repo = s.repository("project", "app.py")
    repo.insert(s.agent(Place(s, s.folder)), "app.py")
    repo.commit("Edit")
    repo.work("app.py")


@history
def repository_without_commits(s: Script) -> None:
    repo = s.repository("project")
    repo.create("app.py")
    repo.insert(s.agent(repo), "app.py")


@history
def clone_deleted(s: Script) -> None:
    repo, _ = s.start("app.py")
    clone = s.clone(repo, "clone")
    written = clone.insert(s.agent(clone), "app.py")
    clone.commit("Edit")
    clone.remove()
    s.unknown.add(written.message)


def in_a_worktree(s: Script, root: str) -> tuple[Repo, Repo]:
    """An edit committed in a worktree, merged to main; the repository and the worktree."""
    repo, _ = s.start("app.py")
    worktree = repo.worktree(s.folder / root, "feature")
    added = worktree.insert(s.agent(worktree), "app.py")
    worktree.commit("Edit")
    repo.human_add("app.py")
    repo.commit("Meanwhile")
    repo.merge("feature")
    repo.lose("app.py", added.lines[1])
    return repo, worktree


@history
def worktree_alive(s: Script) -> None:
    in_a_worktree(s, "worktree")


@history
def worktree_deleted(s: Script) -> None:
    repo, worktree = in_a_worktree(s, "worktrees/feature")
    repo.remove_worktree(worktree)
    s.named.append(repo.root)


@history
def worktree_within_deleted(s: Script) -> None:
    repo, _ = s.start("app.py")
    exclude = repo.root / ".git/info/exclude"
    exclude.write_text(".worktrees/\n")
    worktree = repo.worktree(repo.root / ".worktrees/feature", "feature")
    worktree.insert(s.agent(worktree), "app.py")
    worktree.commit("Edit", by=s.agents[-1])
    repo.merge("feature")
    repo.remove_worktree(worktree)
    repo.drop_branch("feature")
    repo.work("app.py")


@history
def shallow_clone(s: Script) -> None:
    origin, _ = s.start("app.py")
    clone = s.clone(origin, "clone")
    before = clone.insert(s.agent(clone), "app.py", at=5)
    clone.commit("Edit")
    origin.pull(clone)
    clone.remove()
    s.advance(days=2)
    origin.work("app.py", 3)
    s.advance(days=2)
    clone = s.clone(origin, "clone", "--depth", "1")
    after = clone.insert(s.agent(clone), "app.py", at=15)
    clone.commit("Another edit")
    clone.lose("app.py", after.lines[0])
    s.unknown.add(before.message)  # its commit is beyond the boundary


@history
def submodule(s: Script) -> None:
    outer, _ = s.start("app.py")
    library = s.repository("library", "lib.py")
    outer.git(
        "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library.root), "lib"
    )
    outer.git("commit", "-q", "-m", "A submodule")
    inner = Repo(s, outer.root / "lib", library.commits, {"main": library.branches["main"]})
    inner.files = dict(inner.tip.tree)
    added = inner.insert(s.agent(outer), "lib.py")
    inner.commit("Edit")
    outer.git("commit", "-q", "-a", "-m", "The new library")
    inner.lose("lib.py", added.lines[2])


@history
def tags_and_remotes(s: Script) -> None:
    repo, agent = s.start("app.py")
    first, second = s.clone(repo, "first"), s.clone(repo, "second")
    for clone in (first, second):
        repo.git("remote", "add", clone.root.name, str(clone.root))
        clone.switch("experiment", new=True)
        clone.work("app.py", 2, who=OTHER)
    repo.git("tag", "v1.0")
    added = repo.insert(agent, "app.py", at=6)
    repo.commit("Edit")
    repo.git("tag", "-a", "v1.1", "-m", "Second")
    repo.git("push", "-q", "--tags", "first", "main:published")
    repo.git("fetch", "-q", "--all")
    repo.lose("app.py", added.lines[0])
    repo.git("push", "-q", "second", "main:published")


@history
def session_in_a_subfolder(s: Script) -> None:
    repo = s.repository("project", "packages/web/src/index.ts", "packages/api/index.ts")
    agent = s.agent(repo, "packages/web")
    repo.insert(agent, "packages/web/src/index.ts")
    repo.insert(agent, "packages/api/index.ts")
    repo.commit("Edit")
    repo.work("packages/web/src/index.ts")


# Calls.


@history
def failing_edit(s: Script) -> None:
    repo, agent = s.start("app.py")
    missing, new = s.code("app.py", 2)
    fails = Change("Edit", "app.py", ((missing, new),), fails=True)
    repo.respond(agent, fails)
    works = Change("Edit", "app.py", (repo.insertion("app.py", 2, 7),))
    repo.respond(agent, fails, works)
    repo.commit("Edit")


@history
def two_calls_in_a_response(s: Script) -> None:
    repo, agent = s.start("app.py")
    places = ((3, 5), (2, 15))
    pairs = [repo.insertion("app.py", count, at) for count, at in places]
    added = repo.respond(agent, *(Change("Edit", "app.py", (pair,)) for pair in pairs))
    repo.commit("Edit")
    repo.lose("app.py", added.lines[0], added.lines[4])


@history
def multi_edit(s: Script) -> None:
    repo, agent = s.start("app.py")
    added = repo.insert_twice(agent, "app.py")
    repo.commit("Edit")
    repo.lose("app.py", added.lines[0])


@history
def write_a_new_file(s: Script) -> None:
    repo, agent = s.start("app.py")
    written = repo.write(agent, "docs/guide.md", "\n".join(s.code("guide.md", 12)) + "\n")
    repo.commit("Write the guide")
    repo.lose("docs/guide.md", *written.lines[:6])


def written_over(s: Script, originals: bool) -> None:
    repo = s.repository("project", "app.py")
    agent = s.agent(repo, originals=originals)
    kept = repo.text("app.py").split("\n")[:12]
    written = repo.write(agent, "app.py", "\n".join([*kept, *s.code("app.py", 6)]) + "\n")
    assert len(written.lines) == 6
    repo.commit("Write it again")
    repo.lose("app.py", written.lines[5], kept[3].strip())


@history
def write_over_a_file(s: Script) -> None:
    written_over(s, originals=True)


@history
def write_over_a_file_without_original(s: Script) -> None:
    written_over(s, originals=False)


@history
def edit_without_original(s: Script) -> None:
    repo = s.repository("project", "app.rs")
    added = repo.insert(s.agent(repo, originals=False), "app.rs")
    repo.commit("Edit")
    repo.lose("app.rs", added.lines[1])


@history
def replace_all(s: Script) -> None:
    repo, agent = s.start("app.py")
    repo.human_edit("app.py", repo.text("app.py").split("\n")[3], "    total = old_rate * hours")
    repo.human_edit("app.py", repo.text("app.py").split("\n")[9], "    bonus = old_rate + premium")
    repo.human_edit("app.py", repo.text("app.py").split("\n")[19], "    print(old_rate, premium)")
    repo.commit("Rates")
    added = repo.edit(agent, "app.py", "old_rate", "hourly_rate", everywhere=True)
    repo.commit("A clearer name")
    repo.lose("app.py", added.lines[1])


@history
def only_short_lines(s: Script) -> None:
    repo, agent = s.start("app.ts")
    anchor = repo.text("app.ts").split("\n")[5]
    repo.edit(agent, "app.ts", anchor, anchor + "\n    a = 1;\n    }\n    ----------------;")
    repo.insert(agent, "app.ts", at=15)
    repo.commit("Edit")


# Files.


@history
def binary_file_beside(s: Script) -> None:
    repo, agent = s.start("app.py")
    repo.insert(agent, "app.py")
    (repo.root / "logo.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00" + bytes(range(256)) * 8)
    repo.commit("Edit, and a picture")
    repo.work("app.py")


@history
def windows_line_ends(s: Script) -> None:
    repo = s.repository("project")
    (repo.root / "app.py").write_bytes(b"import decimal\r\n")
    repo.put("app.py", "\n".join(s.code("app.py", 24)) + "\n")
    repo.commit("Begin")
    added = repo.insert(s.agent(repo), "app.py")
    repo.commit("Edit")
    repo.lose("app.py", added.lines[0])


@history
def unicode_and_spaces(s: Script) -> None:
    path = "Größe und Maß/日本 «file».py"
    repo, agent = s.start(path)
    added = repo.edit(agent, path, *repo.insertion(path, 2, 9))
    greeting = f"    {added.lines[0]}\n    gruß = 'Grüße aus Köln, 京都 und Łódź'"
    repo.edit(agent, path, f"    {added.lines[0]}", greeting)
    repo.commit("Edit")
    repo.lose(path, added.lines[1])


@history
def very_long_file(s: Script) -> None:
    repo = s.repository("project", "app.py", size=5000)
    added = repo.insert(s.agent(repo), "app.py", 4, at=2500)
    repo.commit("Edit")
    repo.lose("app.py", added.lines[3])


HISTORIES: Mapping[str, Callable[[Path], History]] = {
    name: partial(build, name) for name in HISTORY_STEPS
}


# The books against git.


def compare(script: Script) -> int:
    """Compare every commit in the books with git; how many were compared."""
    checked = 0
    for repo in script.repos:
        known = repo.root.exists() and repo.git("rev-parse", "--is-shallow-repository") == "false\n"
        for commit in repo.commits.values() if known else ():
            if repo.git("cat-file", "--batch-check", stdin=commit.hash).endswith("missing\n"):
                continue  # of another clone
            compare_commit(script, repo, commit)
            checked += 1
    return checked


def compare_commit(script: Script, repo: Repo, commit: Commit) -> None:
    """Compare the parents, the date, the touched files and all lines of a commit."""
    for path, lines in commit.tree.items():
        shown = lines_of(repo.git("show", f"{commit.hash}:{path}"))
        assert shown == lines, (script.name, commit.hash, path, shown ^ lines)
    parents, date = (
        repo.git("show", "-s", "--format=%P|%ct", commit.hash).split("\n")[-2].split("|")
    )
    assert tuple(parents.split()) == commit.parents, (script.name, commit)
    assert int(date) == int(commit.when.timestamp()), (script.name, commit)
    if len(commit.parents) < 2:
        names = repo.git(
            "diff-tree", "--root", "--no-commit-id", "--name-only", "-r", "-z", commit.hash
        )
        touched = set(names.split("\0")) - {"", "logo.png"}
        assert touched == commit.touched, (script.name, commit.hash, touched ^ commit.touched)


def compare_truth(script: Script, made: History) -> None:
    """Compare each truth with the commit that carries the lines, and with all files of today."""
    for it in script.written:
        truth, repo = made.truth.get(it.message), it.place
        if truth is None or truth.unknown or not isinstance(repo, Repo):
            continue
        original, brought = carrier(script, repo, it)
        assert original, it
        _, tip = home(repo, original)
        here = repo if repo.root.exists() else script.repos[0]
        held = held_by(here, original.hash, truth.lines)
        assert held_by(here, tip, truth.lines) == truth.alive["today"], it
        alive = truth.alive["commit"]
        # What was staged later is in a later commit.
        later_half = frozenset(it.lines[2:]) if script.name == "staged_in_two_commits" else set()
        assert held == (alive or frozenset()) - later_half, it
        assert bool(alive) == brought, it


def held_by(repo: Repo, commit: str, lines: Lines) -> Lines:
    """The lines that are in any text file of a commit, however formatted."""
    text = letters(repo.git("grep", "-hI", "", commit, "--", "."))
    return frozenset(line for line in lines if letters(line) in text)


def letters(text: str) -> str:
    """The letters and digits of a text, which no formatter changes."""
    return "".join(filter(str.isalnum, text))


def main() -> None:
    """Play all histories, compare the books with git, and print the truth in numbers."""
    for name in HISTORY_STEPS:
        with tempfile.TemporaryDirectory() as folder:
            script = played(name, Path(folder))
            made = script.history()
            checked = compare(script)
            compare_truth(script, made)
        print(f"{name} ({checked} commits compared)")
        for truth in made.truth.values():
            counts = (truth.alive[it] for it in HORIZONS)
            cells = ["-" if it is None else str(len(it)) for it in counts]
            print(f"    {len(truth.lines)} lines: {' '.join(cells)}  {truth.commit}")


if __name__ == "__main__":
    main()
