"""Tombstones of withdrawn sessions, which stay for ever, and what was published where.

A tombstone holds only hashes: of what was named, of its sessions' ids and, for a repository, of its
folders, so that its later sessions are known too.
"""

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Literal

import msgspec

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake

FILE = "withdrawn.json"


class Withdrawal(msgspec.Struct, frozen=True, order=True):
    """One tombstone."""

    #: UTC, ISO 8601 with seconds: publications before it are older than the withdrawal.
    at: str
    kind: Literal["session", "repository", "text"]
    #: The hash of what was named: a session's id, the glob of a repository, a text.
    digest: str
    sessions: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


class _File(msgspec.Struct):
    withdrawn: list[Withdrawal]


def digest_of(text: str) -> str:
    """Return BLAKE2b-128 of a text as the tables have it, hexadecimal."""
    # Half a surrogate pair is stored as U+FFFD.
    stored = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return hashlib.blake2b(stored.encode(), digest_size=16).hexdigest()


def withdrawals(lake: Lake) -> list[Withdrawal]:
    """Return the tombstones of a lake, the earliest first."""
    if not lake.exists(FILE):
        return []
    try:
        return sorted(msgspec.json.decode(lake.get_bytes(FILE), type=_File).withdrawn)
    except msgspec.DecodeError as error:
        raise InputError(f"lake {lake.url}: {FILE} is damaged ({error}); put it back") from error


def add_withdrawal(
    lake: Lake,
    kind: Literal["session", "repository", "text"],
    named: str,
    sessions: Iterable[str],
    folders: Iterable[str] = (),
) -> Withdrawal:
    """Add a tombstone and return it."""
    made = Withdrawal(
        datetime.now(UTC).isoformat(timespec="seconds"),
        kind,
        digest_of(named),
        tuple(sorted(map(digest_of, sessions))),
        tuple(sorted(map(digest_of, folders))),
    )
    _write(lake, [*withdrawals(lake), made])
    return made


def remove_withdrawal(lake: Lake, withdrawal: Withdrawal) -> None:
    """Remove a tombstone whose withdrawal was refused before anything went."""
    _write(lake, [item for item in withdrawals(lake) if item != withdrawal])


def _write(lake: Lake, every: list[Withdrawal]) -> None:
    lake.put_bytes(FILE, msgspec.json.format(msgspec.json.encode(_File(every)), indent=1))


class Withdrawn:
    """What the tombstones of a lake say now of sessions and folders."""

    def __init__(self, lake: Lake) -> None:
        found = withdrawals(lake)
        self._sessions = {digest for item in found for digest in item.sessions}
        self._folders = {digest for item in found for digest in item.folders}

    def __bool__(self) -> bool:
        return bool(self._sessions or self._folders)

    @property
    def names_folders(self) -> bool:
        """Whether a whole repository was withdrawn."""
        return bool(self._folders)

    def session(self, session_id: str) -> bool:
        """Return True if a session was withdrawn."""
        return bool(self._sessions) and digest_of(session_id) in self._sessions

    def folder(self, project: str) -> bool:
        """Return True if a redacted working directory lies in a withdrawn repository."""
        if not self._folders or not project:
            return False
        path = PurePosixPath(project)
        return any(digest_of(str(part)) in self._folders for part in (path, *path.parents))


RELEASES = "publications.json"


class Publication(msgspec.Struct, frozen=True):
    """The newest publication of a repository.

    ``withdrawn`` are the withdrawals that nothing in the repository's history holds any more;
    ``sessions`` maps the digest of each session that its history holds to the first tag that did;
    ``build`` names the dataset that it is of.
    """

    commit: str
    tag: str = ""
    withdrawn: list[str] = []
    sessions: dict[str, str] = {}
    build: str = ""


def publications(lake: Lake) -> dict[str, Publication]:
    """Return the newest publication of each repository, ``owner/name``."""
    if not lake.exists(RELEASES):
        return {}
    try:
        return msgspec.json.decode(lake.get_bytes(RELEASES), type=dict[str, Publication])
    except msgspec.DecodeError as error:
        raise InputError(
            f"lake {lake.url}: {RELEASES} is damaged ({error}); remove it and publish again"
        ) from error


def remember_publication(lake: Lake, repo: str, publication: Publication) -> None:
    """Replace the record of a repository; nothing is written where nothing changed."""
    known = publications(lake)
    if known.get(repo) != publication:
        data = msgspec.json.encode({**known, repo: publication}, order="sorted")
        lake.put_bytes(RELEASES, msgspec.json.format(data, indent=1))


def releases_of(lake: Lake, sessions: Iterable[str]) -> dict[str, str]:
    """Return the repositories whose history holds one of the sessions, and since which tag."""
    wanted = set(map(digest_of, sessions))
    found = {}
    for repo, item in publications(lake).items() if wanted else ():
        tags = [item.sessions[digest] for digest in item.sessions.keys() & wanted]
        if tags or not item.sessions:  # an older version did not record them
            found[repo] = min(tags, default="unknown")
    return found
