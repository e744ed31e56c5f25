"""A git repository, read only: which commits touch which file, and what a file held when.

The git command is run without locks, hooks, pagers, fetches or external diffs, so that nothing of
the repository changes. Commits are numbered as `git log --topo-order` lists them: a child has a
smaller number than its parents.
"""

import os
import re
import subprocess
from array import array
from bisect import bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, product
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from composer_pipeline.errors import ComposerError

#: Larger files are not followed.
MAX_BYTES = 8 << 20
#: Bytes of file contents that are kept; with their lines they take about six times the room.
_KEPT_BYTES = 8 << 20
#: Branches whose commits are a tool's snapshots of the working tree, not what people committed.
_SNAPSHOTS = ("entire/",)
#: Branches whose ancestry is kept, and the newest ones in which a commit is looked for.
_KEPT_ANCESTRIES, _NEWEST = 64, 50
_TRUNKS = ("main", "master", "trunk", "develop")


class RepositoryProblem(ComposerError):
    """A repository that cannot be read, with the reason as it is stored."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Commit(msgspec.Struct, gc=False):
    """One commit; times are seconds since 1970."""

    hash: str
    parents: tuple[int, ...]
    authored: int
    committed: int
    sessions: tuple[str, ...] = ()  # ids that the message names
    checkpoint: str = ""  # of Entire


class Touch(NamedTuple):
    """A commit's change of one file: blobs before and after, empty where there is none."""

    commit: int
    before: str
    after: str
    path: str
    path_before: str


class FileText:
    """The lines of a file, stripped; and all of it without what formatters change."""

    __slots__ = ("_begins", "_joined", "data", "lines")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.lines = frozenset(map(bytes.strip, data.split(b"\n")))
        self._joined = b""
        self._begins: list[int] = []

    def holds_reflowed(self, text: Sequence[bytes], at: int) -> bool:
        """Return True if whole lines here are a line of a text and neighbours of it, reflowed.

        That is, equal but for blanks, quotes, commas, semicolons and round brackets.
        """
        if not self._begins:
            parts = [bare(line) for line in self.data.split(b"\n")]
            self._joined = b"".join(parts)
            self._begins = list(accumulate(map(len, parts), initial=0))
        line = bare(text[at])
        found = self._joined.find(line) if len(line) >= _MIN_BARE else -1
        while found >= 0:
            if self._fits(text, at - 1, -1, found) and self._fits(
                text, at + 1, 1, found + len(line)
            ):
                return True
            found = self._joined.find(line, found + 1)
        return False

    def _fits(self, text: Sequence[bytes], at: int, step: int, edge: int) -> bool:
        """Return True if lines of a text lead from an edge of the found one to an end of a line."""
        while not self._begins_at(edge):
            if not 0 <= at < len(text):
                return False
            part = bare(text[at])
            begin = edge - len(part) if step < 0 else edge
            if begin < 0 or self._joined[begin : begin + len(part)] != part:
                return False
            edge, at = edge + step * len(part), at + step
        return True

    def _begins_at(self, at: int) -> bool:
        found = bisect_right(self._begins, at)
        return found > 0 and self._begins[found - 1] == at


#: Bytes that are left of a line that is looked for whatever its layout.
_MIN_BARE = 6
_LAYOUT = b" \t\r\n\f\v\"'`,;()\\"


def bare(text: bytes) -> bytes:
    """Return a text without blanks, quotes, commas, semicolons and round brackets."""
    return text.translate(None, _LAYOUT)


def _environment() -> dict[str, str]:
    # A hook or an alias that runs this has GIT_DIR and others set.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {
        "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_REPLACE_OBJECTS": "1",
        # A partial clone must not fetch what it lacks; older versions know only the second.
        "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none", "LC_ALL": "C",
    }  # fmt: skip


_OPTIONS = ("-c", "core.fsmonitor=false", "-c", "log.showSignature=false", "-c", "gc.auto=0",
            "-c", "core.quotePath=false", "-c", "diff.renameLimit=1000")  # fmt: skip


def _command(folder: str, *words: str) -> list[str]:
    return ["git", "-C", folder, *_OPTIONS, *words]


def _git(folder: str, *words: str) -> str:
    """Return what a git command prints; a failure is a :class:`RepositoryProblem`."""
    try:
        done = subprocess.run(
            _command(folder, *words), capture_output=True, env=_environment(), check=False
        )
    except FileNotFoundError as error:
        raise RepositoryProblem("no_git", "git is not installed") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        if "dubious ownership" in said:
            sentence = f"repository {folder} belongs to another user, and git does not read it"
            raise RepositoryProblem("other_user", sentence)
        raise RepositoryProblem("no_repository", f"{folder}: {said or 'git failed'}")
    return done.stdout.decode("utf-8", "surrogateescape")


@lru_cache(maxsize=4096)
def find_repository(folder: str) -> str:
    """Return the common git folder of the repository that a folder is, or was, in; else ``""``.

    Of a folder that is gone the nearest one above it counts.
    """
    path = Path(folder)
    if not path.is_absolute():
        return ""
    while not path.is_dir():
        if path.parent == path:
            return ""
        path = path.parent
    try:
        common = _git(str(path), "rev-parse", "--path-format=absolute", "--git-common-dir")
    except RepositoryProblem as problem:
        if problem.reason == "no_repository":
            return ""
        raise
    return os.path.realpath(common.removesuffix("\n"))


class Repository:
    """The history of one repository.

    Raises:
        RepositoryProblem: there is no git, no repository, or it belongs to another user.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.commits: list[Commit] = []
        self.number: dict[str, int] = {}
        self._touches: dict[str, list[Touch]] = defaultdict(list)
        self._by_name: dict[str, list[str]] = defaultdict(list)
        self._texts: OrderedDict[str, FileText | str] = OrderedDict()
        self._held = 0
        self._objects: subprocess.Popen[bytes] | None = None
        self._at: dict[tuple[int, str], str] = {}
        self._ancestries: dict[int, Ancestry] = {}
        self._shallow = self._boundary()
        self._read_log()
        if not self._ask("info HEAD"):
            self.close()
            sentence = f"repository {folder}: git 2.36 or newer is needed to read its files"
            raise RepositoryProblem("no_git", sentence)

    def close(self) -> None:
        """End the git process that reads objects."""
        if self._objects is not None:
            assert self._objects.stdin is not None
            assert self._objects.stdout is not None
            self._objects.stdin.close()
            self._objects.stdout.close()
            self._objects.wait()
            self._objects = None

    # -- what is there ------------------------------------------------------------

    @cached_property
    def _listed(self) -> list[str]:
        return _git(self.folder, "worktree", "list", "--porcelain", "-z").split("\0")

    @cached_property
    def worktrees(self) -> list[str]:
        """The folders that are checked out, the longest first."""
        found = {w.removeprefix("worktree ") for w in self._listed if w.startswith("worktree ")}
        return sorted({*found, *map(os.path.realpath, found)}, key=len, reverse=True)

    @cached_property
    def _refs(self) -> dict[str, tuple[str, str]]:
        """Branch, as ``heads/main`` or ``remotes/origin/main``, to commit and symbolic target."""
        format_ = "--format=%(objectname) %(refname:lstrip=1) %(symref:lstrip=3)"
        lines = _git(self.folder, "for-each-ref", format_, "refs/heads", "refs/remotes")
        rows = (line.split(" ") for line in lines.splitlines())
        return {name: (commit, symbolic) for commit, name, symbolic in rows}

    @cached_property
    def branches(self) -> dict[str, int]:
        """Branch to its last commit; remote ones as ``origin/main``."""
        named = {name.partition("/")[2]: commit for name, (commit, _) in self._refs.items()}
        return {
            name: self.number[commit]
            for name, commit in named.items()
            if commit in self.number and not _is_snapshot(name)
        }

    @cached_property
    def trunk(self) -> int | None:
        """The last commit of the main branch, here or at a remote, whichever is newer."""
        default = {symbolic for _, symbolic in self._refs.values() if symbolic} or _TRUNKS
        tips = [
            self.number[commit]
            for name, (commit, symbolic) in self._refs.items()
            if commit in self.number and not symbolic and _plain(name) in default
        ]
        if not tips:
            head = _git(self.folder, "rev-parse", "--verify", "-q", "HEAD^{commit}").strip()
            tips = [self.number[head]] if head in self.number else []
        return max(tips, key=lambda tip: self.commits[tip].committed, default=None)

    @property
    def cut_at(self) -> int:
        """The time before which a shallow clone knows nothing; 0 for a whole one."""
        known = [self.number[name] for name in self._shallow if name in self.number]
        return max((self.commits[number].committed for number in known), default=0)

    def identity(self) -> str:
        """Return what names the repository: its oldest commit, which clones share."""
        roots = [commit for commit in self.commits if not commit.parents]
        return min(roots, key=lambda commit: commit.authored).hash if roots else self.folder

    def relative(self, path: str) -> tuple[str, bool]:
        """Return the path in the history that an absolute path means, and whether that is sure.

        One in a folder that is checked out is. Of others, as of a worktree that is gone, the
        longest end that the history knows counts; empty if it knows none.
        """
        for folder in self.worktrees:
            if path.startswith(folder + "/"):
                inner = path[len(folder) + 1 :]
                if inner in self._touches or Path(path).parent.is_dir():
                    return inner, True
        return self._end(path), False

    def _end(self, path: str) -> str:
        words = path.strip("/").split("/")
        known = set(self._by_name.get(words[-1], ()))
        ends = ("/".join(words[cut:]) for cut in range(len(words)))
        return next((end for end in ends if end in known), "")

    def touches(self, path: str) -> list[Touch]:
        """Return the changes of a file by commits that are no merges, the oldest author first."""
        return self._touches.get(path, [])

    # -- the log ------------------------------------------------------------------

    def _boundary(self) -> frozenset[str]:
        where = _git(self.folder, "rev-parse", "--path-format=absolute", "--git-path", "shallow")
        file = Path(where.removesuffix("\n"))
        return frozenset(file.read_text().split()) if file.is_file() else frozenset()

    def _reflog(self) -> list[str]:
        """Return the commits that branches and HEADs were at, without stashes and snapshots."""
        try:
            listed = _git(self.folder, "log", "-g", "--all", "--format=%H %gD")
        except RepositoryProblem:  # no commit at all
            return []
        found = []
        for line in listed.splitlines():
            commit, _, name = line.partition(" ")
            name = name.removeprefix("refs/").removeprefix("heads/").removeprefix("remotes/")
            if not name.startswith("stash@") and not _is_snapshot(name):
                found.append(commit)
        return list(dict.fromkeys(found))

    def _read_log(self) -> None:
        excluded = [f"--exclude={name}*" for name in _SNAPSHOTS]
        remote = [f"--exclude=*/{name}*" for name in _SNAPSHOTS]
        words = [
            "log", "--stdin", "--ignore-missing", "--topo-order", "-z", "--raw", "--no-abbrev",
            "-M", "--no-ext-diff", "--no-textconv", "--format=%x01%H %P%x00%at %ct%x00%B",
            *excluded, "--branches", *remote, "--remotes", "--tags", "--glob=refs/pull/*",
            "--glob=refs/merge-requests/*",
        ]  # fmt: skip
        parents: list[tuple[str, ...]] = []
        process = subprocess.Popen(
            _command(self.folder, *words), env=_environment(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        heads = self._heads()
        with process:
            process.stdin.write("".join(f"{one}\n" for one in [*heads, *self._reflog()]).encode())
            process.stdin.close()
            self._take(_tokens(process.stdout), parents)
        if process.returncode:
            sentence = f"repository {self.folder}: git log fails there; git fsck says more"
            raise RepositoryProblem("damaged", sentence)
        for commit, names in zip(self.commits, parents, strict=True):
            commit.parents = tuple(self.number[name] for name in names if name in self.number)
        for path, touches in self._touches.items():
            self._by_name[path.rpartition("/")[2]].append(path)
            touches.sort(key=lambda t: (self.commits[t.commit].authored, -t.commit))

    def _heads(self) -> list[str]:
        found = [w.removeprefix("HEAD ") for w in self._listed if w.startswith("HEAD ")]
        return [name for name in found if name.strip("0")]

    def _take(self, tokens: Iterator[bytes], parents: list[tuple[str, ...]]) -> None:
        shallow = False
        for token in tokens:
            if token.startswith(b"\x01"):
                own, *above = token[1:].decode().split()
                times = next(tokens).split()
                commit = _commit(own, times, next(tokens))
                shallow = own in self._shallow
                self.number[own] = len(self.commits)
                self.commits.append(commit)
                parents.append(tuple(above))
            elif (token := token.lstrip(b"\n")).startswith(b":"):
                _, kind, before, after, status = token[1:].split()
                first = next(tokens)
                second = next(tokens) if status[:1] in (b"R", b"C") else first
                if not shallow and kind != b"160000":  # its diff is with nothing, or a submodule
                    self._note(before, after, first, second, moved=status[:1] == b"R")

    def _note(
        self, before: bytes, after: bytes, first: bytes, second: bytes, *, moved: bool
    ) -> None:
        here = len(self.commits) - 1
        old, path = (name.decode("utf-8", "surrogateescape") for name in (first, second))
        was, now = (name.decode() if name.strip(b"0") else "" for name in (before, after))
        touch = Touch(here, was, now, path, old)
        self._touches[path].append(touch)
        if moved:
            self._touches[old].append(touch)

    # -- contents -------------------------------------------------------------------

    def text(self, blob: str) -> FileText | str:
        """Return the lines of a blob, or the reason why there are none."""
        if not blob:
            return FileText(b"")
        if (known := self._texts.get(blob)) is not None:
            self._texts.move_to_end(blob)
            return known
        found = self._texts[blob] = self._read(blob)
        self._held += len(found.data) if isinstance(found, FileText) else 100
        while self._held > _KEPT_BYTES and len(self._texts) > 1:
            _, old = self._texts.popitem(last=False)
            self._held -= len(old.data) if isinstance(old, FileText) else 100
        return found

    def _read(self, blob: str) -> FileText | str:
        head = self._ask(f"info {blob}")
        if len(head) < 3 or head[1] != b"blob":
            return "missing"
        if int(head[2]) > MAX_BYTES:
            return "too_large"
        size = int(self._ask(f"contents {blob}")[2])
        data = self._stream.read(size + 1)[:-1]
        if b"\0" in data[:8000] or data.startswith(b"version https://git-lfs"):
            return "binary"
        return FileText(data)

    def blob_at(self, commit: int, path: str) -> str:
        """Return the blob of a file in a commit, empty if it is not there."""
        key = (commit, path)
        if key not in self._at:
            self._at[key] = ""
            if "\n" not in path:
                head = self._ask(f"info {self.commits[commit].hash}:{path}")
                self._at[key] = head[0].decode() if len(head) > 2 and head[1] == b"blob" else ""
        return self._at[key]

    def session_of(self, checkpoint: str) -> str:
        """Return the session of a checkpoint of Entire, or an empty string."""
        branches = (name for name in self._refs if name.endswith("entire/checkpoints/v1"))
        folders = [f"{name}:{checkpoint[:2]}/{checkpoint[2:]}" for name in branches]
        for folder, part in product(folders, ("0/", "1/", "")):
            head = self._ask(f"info {folder}/{part}metadata.json")
            if len(head) > 2 and head[1] == b"blob":
                text = self.text(head[0].decode())
                found = _SESSION.search(text.data) if isinstance(text, FileText) else None
                return found[1].decode() if found else ""
        return ""

    @property
    def _stream(self) -> IO[bytes]:
        if self._objects is None:
            self._objects = subprocess.Popen(
                _command(self.folder, "cat-file", "--batch-command", "--buffer"),
                env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
        assert self._objects.stdout is not None
        return self._objects.stdout

    def _ask(self, request: str) -> list[bytes]:
        stream = self._stream
        assert self._objects is not None
        assert self._objects.stdin is not None
        self._objects.stdin.write(request.encode("utf-8", "surrogateescape") + b"\nflush\n")
        self._objects.stdin.flush()
        answer = stream.readline()
        if not answer:  # git gave up: a partial clone lacks the object
            self.close()
        return answer.rsplit(None, 2)

    # -- ancestry -------------------------------------------------------------------

    def ancestry(self, tip: int) -> "Ancestry":
        """Return the ancestry of a branch's last commit."""
        if tip not in self._ancestries:
            if len(self._ancestries) >= _KEPT_ANCESTRIES:
                self._ancestries.clear()
            self._ancestries[tip] = Ancestry(self.commits, tip)
        return self._ancestries[tip]

    @cached_property
    def _by_age(self) -> list[int]:
        return sorted(set(self.branches.values()), key=lambda tip: -self.commits[tip].committed)

    def ancestry_of(self, commit: int, branch: str = "") -> "Ancestry | None":
        """Return the branch to follow a commit on: the trunk, its own, or the newest one."""
        if self.trunk is not None and self.ancestry(self.trunk).has(commit):
            return self.ancestry(self.trunk)
        names = (branch, f"origin/{branch}")
        own = [self.branches[name] for name in names if name in self.branches]
        for tip in [*own, *self._by_age[:_NEWEST]]:
            if self.ancestry(tip).has(commit):
                return self.ancestry(tip)
        return None


class Ancestry:
    """The commits that a branch's tip contains, and when each joined its first parents."""

    def __init__(self, commits: list[Commit], tip: int) -> None:
        self._commits, self.tip = commits, tip
        chain = [tip]
        while commits[chain[-1]].parents:
            chain.append(commits[chain[-1]].parents[0])
        self.chain = array("i", reversed(chain))
        self._joined = array("i", [-1]) * len(commits)
        times = [commits[commit].committed for commit in reversed(self.chain)]
        self._earliest = list(accumulate(times, min))[::-1]  # of a commit and those after it
        self._place = {commit: at for at, commit in enumerate(self.chain)}
        for at, commit in enumerate(self.chain):
            stack = [commit]
            while stack:
                one = stack.pop()
                if self._joined[one] < 0:
                    self._joined[one] = at
                    stack += commits[one].parents

    def has(self, commit: int) -> bool:
        """Return True if the branch contains a commit."""
        return self._joined[commit] >= 0

    def descends(self, later: int, base: int) -> bool:
        """Return True if ``later`` is ``base`` or has it among its ancestors; both are here."""
        seen, stack = set[int](), [later]
        while stack:
            one = stack.pop()
            if one == base:
                return True
            if (place := self._place.get(one)) is not None:
                if self._joined[base] <= place:
                    return True
            elif one not in seen:
                seen.add(one)
                stack += self._commits[one].parents
        return False

    def at_time(self, base: int, limit: int) -> int:
        """Return the last commit on the way from ``base`` to the tip that is not after a time."""
        at = bisect_right(self._earliest, limit) - 1
        return self.chain[at] if at >= self._joined[base] else base


_UUID = re.compile(rb"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_CHECKPOINT = re.compile(rb"^Entire-Checkpoint:\s*([0-9a-f]{6,40})\s*$", re.MULTILINE)
_SESSION = re.compile(rb'"session_id"\s*:\s*"([^"]+)"')


def _commit(name: str, times: list[bytes], message: bytes) -> Commit:
    checkpoint = _CHECKPOINT.search(message)
    ids = tuple(dict.fromkeys(one.decode() for one in _UUID.findall(message)))
    authored, committed = (int(one) for one in times)
    found = checkpoint[1].decode() if checkpoint else ""
    return Commit(name, (), authored, committed, ids, found)


def _plain(name: str) -> str:
    """Return a branch's name without where it is: ``main`` of ``remotes/origin/main``."""
    where, _, rest = name.partition("/")
    return rest.partition("/")[2] if where == "remotes" else rest


def _is_snapshot(name: str) -> bool:
    return any(name.startswith(one) or f"/{one}" in name for one in _SNAPSHOTS)


def _tokens(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield what is between NUL bytes."""
    rest = b""
    while block := stream.read(1 << 16):
        *whole, rest = (rest + block).split(b"\0")
        yield from whole
    if rest.strip():
        yield rest


def refs_of(folder: str) -> str:
    """Return all refs of a repository with their commits, which change where its history does."""
    heads = _git(folder, "worktree", "list", "--porcelain")
    return _git(folder, "for-each-ref", "--format=%(objectname) %(refname)") + heads
