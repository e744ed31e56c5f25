"""Splits: which sessions must stay together, and the hash that puts them into train or validation.

Two sessions are in one group if they share a ``group_id`` (records, or a first prompt), an
identical prompt of any state, a nearly identical first prompt, or a long tool result. The group is
named after its earliest session, so data that are added later change neither its name nor its
split; only data that join two groups move one of them, which cannot be avoided.
"""

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any

import msgspec
import pyarrow as pa

from composer_pipeline.preferences.near_duplicates import near_duplicates, shingles_of
from composer_pipeline.preferences.rules import NearDuplicates
from composer_pipeline.states.state import TraceState, Unseen

TRAIN, VALIDATION = "train", "validation"
SPLITS = (TRAIN, VALIDATION)

#: Part of every group's hash. It never changes: another value is another split.
SALT = "composer-pipeline/split/1"


class SessionKey(msgspec.Struct, frozen=True, order=True):
    """The order of sessions in a group, whose earliest names it."""

    first_ts: float
    session_id: str
    group_id: str


class Components:
    """Connected components of names."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, name: str) -> str:
        """Return the representative of a name's component."""
        root = name
        while self._parent.setdefault(root, root) != root:
            root = self._parent[root]
        while self._parent[name] != root:
            self._parent[name], name = root, self._parent[name]
        return root

    def join(self, one: str, other: str) -> None:
        """Join the components of two names."""
        self._parent[self.find(one)] = self.find(other)


def split_of(group: str, validation_share: float) -> str:
    """Return the split of a group, from a stable hash of its name."""
    digest = hashlib.blake2b(f"{SALT}:{group}".encode(), digest_size=8).digest()
    return VALIDATION if int.from_bytes(digest, "big") < validation_share * 2**64 else TRAIN


def groups(sessions: Iterable[SessionKey], links: Iterable[tuple[str, Hashable]]) -> dict[str, str]:
    """Return session id to the name of its group.

    A session may come several times. ``links`` are (session id, what it has), for example the hash
    of a prompt; sessions that have the same belong together.
    """
    joined = Components()
    keys = sorted(sessions)
    for key in keys:
        joined.join(f"g:{key.group_id or key.session_id}", f"s:{key.session_id}")
    rows = list(links)
    for session_id, link in rows:
        joined.join(f"p:{link!r}", f"s:{session_id}")
    names: dict[str, str] = {}
    for key in keys:
        names.setdefault(joined.find(f"s:{key.session_id}"), key.group_id or key.session_id)
    # A row whose session is not in `sessions` still shares a group with its links' others.
    members = sorted({key.session_id for key in keys} | {session_id for session_id, _ in rows})
    for session_id in members:
        names.setdefault(joined.find(f"s:{session_id}"), session_id)
    return {session_id: names[joined.find(f"s:{session_id}")] for session_id in members}


def overlaps(rows: Iterable[tuple[str, Mapping[str, Hashable]]]) -> dict[str, int]:
    """Count the values in more than one split by kind, from rows (split, {kind: value})."""
    seen: dict[str, dict[Hashable, set[str]]] = {}
    for split, values in rows:
        for kind, value in values.items():
            seen.setdefault(kind, {}).setdefault(value, set()).add(split)
    return {kind: sum(len(s) > 1 for s in by.values()) for kind, by in seen.items()}


#: Characters from which an identical tool result joins its sessions. Of 65 real sessions, 23 pairs
#: share one of at least 500, all within one repository; from 200 on, generic refusals do too.
LONG_RESULT = 500
#: First prompts are compared from this many characters, as sets of word 5-grams.
LONG_PROMPT, NEAR = 40, 0.8
#: Commits that two folders must share to be one repository.
COMMON_COMMITS = 2

_REMOTE = re.compile(
    r"^(?:(?:To|From) (?P<moved>\S+[/:]\S+/\S+)|\w+\t(?P<listed>\S+) \((?:fetch|push)\))$",
    re.MULTILINE,
)
_COMMIT = re.compile(
    r"^(?:commit (?P<long>[0-9a-f]{40})\b|\[[^\]\n]+ (?P<made>[0-9a-f]{7,12})\] )", re.MULTILINE
)
_URL = re.compile(r"^(?:\w+://)?(?:[^@/\s]+@)?(?P<host>[\w.-]+)[:/]+(?P<path>.+?)(?:\.git)?/?$")
_WORKTREE = re.compile(r"/(?:\.claude/worktrees|\.worktrees|\.git/worktrees)/.*$")


class SessionLinks:
    """Collects what sessions have in common while their states are read."""

    def __init__(self) -> None:
        self._first: dict[bytes, str] = {}
        self._shared: set[tuple[str, bytes]] = set()
        self.remotes: dict[str, set[str]] = defaultdict(set)
        self.commits: dict[str, set[str]] = defaultdict(set)

    def add(self, states: Iterable[TraceState]) -> None:
        """Collect from the states of a session, with their messages."""
        unseen = Unseen()
        for state in states:
            for message in unseen.of(state):
                for text in _results_in(message):
                    self._take(state.session_id, text)

    def _take(self, session: str, text: str) -> None:
        if len(text) >= LONG_RESULT:
            data = text.encode("utf-8", "surrogatepass")
            digest = hashlib.blake2b(data, digest_size=12).digest()
            first = self._first.setdefault(digest, session)
            if first != session:
                self._shared |= {(first, digest), (session, digest)}
        for found in _REMOTE.finditer(text):
            if url := remote_name(found["moved"] or found["listed"]):
                self.remotes[session].add(url)
        for found in _COMMIT.finditer(text):
            self.commits[session].add((found["long"] or found["made"])[:7])

    def links(self, first_prompts: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
        """Yield (session, what it shares with another), given each session's first prompt."""
        yield from sorted(self._shared)
        prints = [
            (session, session, shingles_of(prompt.casefold(), ""))
            for session, prompt in sorted(first_prompts.items())
            if len(prompt) >= LONG_PROMPT
        ]
        for row in near_duplicates(prints, NearDuplicates(threshold=NEAR)):
            yield row["pair_id"], f"near {row['near']}"
            yield row["near"], f"near {row['near']}"

    def repositories(self, folders: Mapping[str, str]) -> dict[str, str]:
        """Return session id to its repository's name: a remote, or the working directory.

        ``folders`` are the sessions' working directories.
        """
        joined = Components()
        named = {session: _WORKTREE.sub("", folder) for session, folder in folders.items()}
        commits: dict[str, set[str]] = defaultdict(set)
        for session, folder in named.items():
            home = f"folder {folder}" if folder else f"session {session}"
            joined.join(f"session {session}", home)
            for remote in sorted(self.remotes.get(session, ())):
                joined.join(f"remote {remote}", home)
            commits[home] |= self.commits.get(session, set())
        for one, other in _sharing(commits):
            joined.join(one, other)
        names: dict[str, tuple[int, str]] = {}
        for session, folder in sorted(named.items()):
            root = joined.find(f"session {session}")
            every = [(0, remote) for remote in self.remotes.get(session, ())]
            every.append((1, folder) if folder else (2, session))
            names[root] = min([*every, *([names[root]] if root in names else ())])
        return {session: names[joined.find(f"session {session}")][1] for session in named}


def _results_in(message: Mapping[str, Any]) -> Iterator[str]:
    content = message["content"]
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and block.get("type") == "tool_result":
            result = block.get("content")
            if isinstance(result, str):
                yield result
            elif isinstance(result, list):
                yield "".join(str(p.get("text", "")) for p in result if isinstance(p, dict))


def remote_name(url: str) -> str:
    """Return a remote's name, independent of the protocol; empty for a folder."""
    found = _URL.match(url)
    if not found or "." not in found["host"] or url.startswith((".", "/")):
        return ""
    return f"{found['host']}/{found['path']}".lower()


def _sharing(commits: Mapping[str, set[str]]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of folders that share enough commits."""
    having: dict[str, list[str]] = defaultdict(list)
    for folder, known in sorted(commits.items()):
        for commit in known:
            having[commit].append(folder)
    common = Counter(pair for folders in having.values() for pair in combinations(folders, 2))
    yield from (pair for pair, count in sorted(common.items()) if count >= COMMON_COMMITS)


#: Characters from which a message counts as specific.
LONG_MESSAGE = 120


class Overlap:
    """What validation has in common with train: shown the pairs of train, then of validation.

    ``repository`` counts validation rows whose repository is in train, ``verbatim`` those with a
    message of :data:`LONG_MESSAGE` characters, not a system prompt, that also occurs in train.
    """

    def __init__(self) -> None:
        self.rows = self.repository = self.verbatim = 0
        self._repositories: set[str] = set()
        self._messages: set[bytes] = set()
        self._known: dict[bytes, bytes | None] = {}

    def train(self, rows: pa.Table) -> None:
        """Add rows of train."""
        for name, prompt in _each(rows):
            self._repositories.add(name)
            self._messages.update(filter(None, map(self._digest, prompt)))

    def validation(self, rows: pa.Table) -> None:
        """Compare rows of validation with train."""
        for name, prompt in _each(rows):
            self.rows += 1
            self.repository += name in self._repositories
            self.verbatim += any(self._digest(text) in self._messages for text in prompt)

    def figures(self) -> dict[str, float]:
        """Return the number of validation rows and the two shares of them."""
        rows = max(1, self.rows)
        return {
            "validation_rows": self.rows,
            "repository_in_train": self.repository / rows,
            "verbatim_in_train": self.verbatim / rows,
        }

    def _digest(self, text: str) -> bytes | None:
        """Return the digest of a specific message's content, ``None`` for others."""
        key = hashlib.blake2b(text.encode(), digest_size=12).digest()
        if key not in self._known:
            message = json.loads(text)
            content = str(message.get("content") or "")
            specific = message.get("role") != "system" and len(content) >= LONG_MESSAGE
            data = content.encode("utf-8", "surrogatepass")
            self._known[key] = hashlib.blake2b(data, digest_size=12).digest() if specific else None
        return self._known[key]


def _each(rows: pa.Table) -> Iterator[tuple[str, list[str]]]:
    """Yield repository and prompt of each row, decoding a few rows at a time."""
    for batch in rows.select(["repository", "prompt"]).to_batches(max_chunksize=8):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
