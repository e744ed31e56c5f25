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
from collections.abc import Hashable, Iterable, Mapping

import msgspec

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
