"""Repositories of the stand-in: commits, refs and trees."""

import hashlib
from dataclasses import dataclass, field


@dataclass
class Commit:
    """A commit: its id, its message, and the whole tree as path to bytes."""

    oid: str
    message: str
    files: dict[str, bytes]
    at: float = 0.0
    parent: str = ""


@dataclass
class Repo:
    """A repository; ``commits`` is the branch main, and starts with the Hub's own first commit."""

    private: bool
    gated: bool = False
    commits: list[Commit] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    pulls: dict[str, str] = field(default_factory=dict)
    others: list[Commit] = field(default_factory=list)
    pushed: dict[str, dict[str, str | int]] = field(default_factory=dict)

    @property
    def head(self) -> Commit:
        """The newest commit of main."""
        return self.commits[-1]

    @property
    def every(self) -> list[Commit]:
        """All commits that some ref reaches."""
        return [*self.commits, *self.others]

    def find(self, revision: str) -> Commit | None:
        """Return the commit that ``main``, another ref or an id names."""
        names = {**self.branches, **self.pulls, **self.tags, "main": self.head.oid}
        oid = names.get(revision, revision)
        return next((commit for commit in self.every if commit.oid == oid), None)

    def tip(self, branch: str) -> Commit | None:
        """Return the newest commit of a branch."""
        return self.find(branch) if branch == "main" or branch in self.branches else None

    def add(
        self, message: str, files: dict[str, bytes], at: float = 0.0, branch: str = "main"
    ) -> Commit:
        """Append a commit with this tree to a branch."""
        parent = self.branches.get(branch) or (self.commits[-1].oid if self.commits else "")
        tree = sorted((path, hashlib.sha256(data).hexdigest()) for path, data in files.items())
        seed = f"{parent}:{message}:{tree}"
        oid = hashlib.sha1(seed.encode()).hexdigest()  # noqa: S324
        made = Commit(oid, message, files, at, parent)
        if branch == "main":
            self.commits.append(made)
        else:
            self.others.append(made)
            self.branches[branch] = oid
        return made

    def squash(self, message: str) -> Commit:
        """Make the head's tree the only commit of main, seen at once."""
        old, head = self.commits, self.head
        self.commits = []
        self.add(message, head.files, old[0].at)
        self.others += old
        self.forget_unreachable()
        return self.head

    def forget_unreachable(self) -> None:
        """Drop the commits that no ref reaches."""
        known = {commit.oid: commit for commit in self.every}
        reached: set[str] = set()
        for oid in (*self.tags.values(), *self.branches.values(), *self.pulls.values()):
            while oid in known and oid not in reached:
                reached.add(oid)
                oid = known[oid].parent
        main = {commit.oid for commit in self.commits}
        self.others = [commit for commit in self.others if commit.oid in reached - main]

    def drop_objects(self, oids: set[str]) -> None:
        """Remove the files with these object ids from every commit, as a rewritten history."""
        for commit in self.every:
            commit.files = {
                path: data
                for path, data in commit.files.items()
                if not (is_lfs(path) and oid_of(path, data) in oids)
            }


def is_lfs(path: str) -> bool:
    """Return whether the Hub would keep this file as an LFS object."""
    return path.endswith((".parquet", ".arrow", ".safetensors", ".png"))


def oid_of(path: str, data: bytes) -> str:
    """Return the id that the Hub gives a file: SHA-256 for LFS, git's SHA-1 otherwise."""
    if is_lfs(path):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324
