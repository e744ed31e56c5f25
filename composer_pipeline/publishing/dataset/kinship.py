"""What sessions have in common: long results of tools, first prompts, and their repository.

Belongs here: what is looked for in messages, and which repository a session is of. Does not belong
here: connected components (``publishing.splits``) and what follows for a split
(``dataset.decide``).

A repository is known by a remote that git named, by commits that its folders share, or by the
folder; worktrees below ``.worktrees`` are their repository's. What joins two repositories wrongly
makes groups larger and lets nothing leak.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any

from composer_pipeline.preferences.quality import near_duplicates, shingles_of
from composer_pipeline.preferences.rules import NearDuplicates
from composer_pipeline.publishing.splits import Components
from composer_pipeline.trace_states import TraceState, Unseen

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
