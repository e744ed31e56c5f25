"""Which split a row is in: groups of sessions that must stay together, and their hash.

Belongs here: connected components, the split of a group, and the proof that nothing is
in two splits. Does not belong here: which rows there are (``publishing.dataset``).

Two sessions are in one group when they share a ``group_id`` (records, or a first
prompt), or anything that ``publishing.dataset`` links: an identical prompt of any state, a first
prompt that is nearly the same, a long result of a tool. The group is named after
its earliest session, so data that are added later change neither its name nor its
split; only data that join two groups move one of them, and that cannot be helped.
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

#: Part of every group's hash. A constant for ever: another value is another split.
SALT = "composer-pipeline/split/1"


class SessionKey(msgspec.Struct, frozen=True, order=True):
    """What orders sessions inside a group: the earliest names it."""

    first_ts: float
    session_id: str
    group_id: str


class Components:
    """Which of some names belong together, directly or through others."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, name: str) -> str:
        """Return the name that stands for all that belong together with this one."""
        root = name
        while self._parent.setdefault(root, root) != root:
            root = self._parent[root]
        while self._parent[name] != root:
            self._parent[name], name = root, self._parent[name]
        return root

    def join(self, one: str, other: str) -> None:
        """Say that two names belong together."""
        self._parent[self.find(one)] = self.find(other)


def split_of(group: str, validation_share: float) -> str:
    """Return the split of a group: a stable hash of its name against the share."""
    digest = hashlib.blake2b(f"{SALT}:{group}".encode(), digest_size=8).digest()
    return VALIDATION if int.from_bytes(digest, "big") < validation_share * 2**64 else TRAIN


def groups(sessions: Iterable[SessionKey], links: Iterable[tuple[str, Hashable]]) -> dict[str, str]:
    """Return session id to the name of its group.

    Args:
        sessions: one for each trajectory; a session may come several times.
        links: (session id, what it has), for example the hash of a prompt; sessions that have
            the same belong together.
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
    """Count the values that occur in more than one split, for each kind of value.

    Args:
        rows: (split, {kind: value}); kinds are for example ``group_id``, ``prompt``.
    """
    seen: dict[str, dict[Hashable, set[str]]] = {}
    for split, values in rows:
        for kind, value in values.items():
            seen.setdefault(kind, {}).setdefault(value, set()).add(split)
    return {kind: sum(len(s) > 1 for s in by.values()) for kind, by in seen.items()}


#: Results of tools that join their sessions. Of 65 real sessions 23 pairs share one of at least
#: 500 characters, all of one repository; from 200 on, refusals that are the same everywhere do.
LONG_RESULT = 500
#: First prompts are compared from so many characters on, as sets of word 5-grams.
LONG_PROMPT, NEAR = 40, 0.8
#: Commits that two folders have to share to be of one repository.
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


class Kinship:
    """Notes what sessions have while their states are read."""

    def __init__(self) -> None:
        self._first: dict[bytes, str] = {}
        self._shared: set[tuple[str, bytes]] = set()
        self.remotes: dict[str, set[str]] = defaultdict(set)
        self.commits: dict[str, set[str]] = defaultdict(set)

    def look_at(self, states: Iterable[TraceState]) -> None:
        """Take in the states of a session, with their messages; each object once."""
        unseen = Unseen()
        for state in states:
            for message in unseen.of(state):
                for text in results_in(message):
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
        """Yield (session, what it shares with another).

        Args:
            first_prompts: session id to its first prompt.
        """
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
        """Return session id to the name of its repository: its first remote, or folder.

        Args:
            folders: session id to its working directory.
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


def results_in(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a stored message's tool results."""
    content = message["content"]
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and block.get("type") == "tool_result":
            said = block.get("content")
            if isinstance(said, str):
                yield said
            elif isinstance(said, list):
                yield "".join(str(part.get("text", "")) for part in said if isinstance(part, dict))


def remote_name(url: str) -> str:
    """Return what a remote is called, however it is reached; empty for a folder."""
    found = _URL.match(url)
    if not found or "." not in found["host"] or url.startswith((".", "/")):
        return ""
    return f"{found['host']}/{found['path']}".lower()


def _sharing(commits: Mapping[str, set[str]]) -> Iterator[tuple[str, str]]:
    """Yield the folders that share commits enough."""
    having: dict[str, list[str]] = defaultdict(list)
    for folder, known in sorted(commits.items()):
        for commit in known:
            having[commit].append(folder)
    common = Counter(pair for folders in having.values() for pair in combinations(folders, 2))
    yield from (pair for pair, count in sorted(common.items()) if count >= COMMON_COMMITS)


#: Characters from which on a message says something of its own.
LONG_MESSAGE = 120


class Overlap:
    """Sees the pairs of train, then those of validation.

    ``repository`` counts rows of validation whose repository is in train, ``verbatim`` those with
    a message of :data:`LONG_MESSAGE` characters, no system prompt, that stands in train.
    """

    def __init__(self) -> None:
        self.rows = self.repository = self.verbatim = 0
        self._repositories: set[str] = set()
        self._messages: set[bytes] = set()
        self._known: dict[bytes, bytes | None] = {}

    def train(self, rows: pa.Table) -> None:
        """Take in rows of train."""
        for name, prompt in _each(rows):
            self._repositories.add(name)
            self._messages.update(filter(None, map(self._digest, prompt)))

    def validation(self, rows: pa.Table) -> None:
        """Compare rows of validation."""
        for name, prompt in _each(rows):
            self.rows += 1
            self.repository += name in self._repositories
            self.verbatim += any(self._digest(text) in self._messages for text in prompt)

    def figures(self) -> dict[str, float | int]:
        """Return the rows of validation and the two shares of them."""
        rows = max(1, self.rows)
        return {
            "validation_rows": self.rows,
            "repository_in_train": self.repository / rows,
            "verbatim_in_train": self.verbatim / rows,
        }

    def _digest(self, text: str) -> bytes | None:
        """Return the digest of what a long message says, nothing for others."""
        key = hashlib.blake2b(text.encode(), digest_size=12).digest()
        if key not in self._known:
            message = json.loads(text)
            said = str(message.get("content") or "")
            own = message.get("role") != "system" and len(said) >= LONG_MESSAGE
            data = said.encode("utf-8", "surrogatepass")
            self._known[key] = hashlib.blake2b(data, digest_size=12).digest() if own else None
        return self._known[key]


def _each(rows: pa.Table) -> Iterator[tuple[str, list[str]]]:
    """Yield repository and prompt of each row, a few rows decoded at a time."""
    for batch in rows.select(["repository", "prompt"]).to_batches(max_chunksize=8):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
