"""Which split a row is in: groups of sessions that must stay together, and their hash.

Belongs here: connected components, the split of a group, and the proof that nothing is
in two splits. Does not belong here: which rows there are (``publishing.dataset``).

Two sessions are in one group when they share a ``group_id`` (records, or a first
prompt), or when any of their states has an identical prompt. The group is named after
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


def split_of(group: str, validation_share: float) -> str:
    """Return the split of a group: a stable hash of its name against the share."""
    digest = hashlib.blake2b(f"{SALT}:{group}".encode(), digest_size=8).digest()
    return VALIDATION if int.from_bytes(digest, "big") < validation_share * 2**64 else TRAIN


def groups(
    sessions: Iterable[SessionKey], prompts: Iterable[tuple[str, Hashable]]
) -> dict[str, str]:
    """Return session id to the name of its group.

    Args:
        sessions: one for each trajectory; a session may come several times.
        prompts: (session id, prompt hash) of every row of the dataset.
    """
    parent: dict[str, str] = {}

    def find(node: str) -> str:
        parent.setdefault(node, node)
        root = node
        while parent[root] != root:
            root = parent[root]
        while parent[node] != root:
            parent[node], node = root, parent[node]
        return root

    keys = sorted(sessions)
    for key in keys:
        parent[find(f"g:{key.group_id or key.session_id}")] = find(f"s:{key.session_id}")
    rows = list(prompts)
    for session_id, digest in rows:
        parent[find(f"p:{digest}")] = find(f"s:{session_id}")
    names: dict[str, str] = {}
    for key in keys:
        names.setdefault(find(f"s:{key.session_id}"), key.group_id or key.session_id)
    # A row whose session is not in `sessions` still shares a group with its prompts' others.
    members = sorted({key.session_id for key in keys} | {session_id for session_id, _ in rows})
    for session_id in members:
        names.setdefault(find(f"s:{session_id}"), session_id)
    return {session_id: names[find(f"s:{session_id}")] for session_id in members}


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
