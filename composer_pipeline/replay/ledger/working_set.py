"""The rows that the operations of one transaction read, in memory.

Belongs here: loading each row once. Does not belong here: changing and writing them
(``replay.ledger.batch``).

A transaction holds the ledger's one write lock, so a row that was read stays true until the
commit; nothing is read twice, and what an earlier operation of the batch changed is what a
later one sees.
"""

from collections.abc import Callable, Iterable
from typing import Any

from composer_pipeline.replay.ledger.process_identity import STALE_S, lives
from composer_pipeline.replay.ledger.stores.rows import COLUMNS, Attempt, Scope, read_list
from composer_pipeline.replay.ledger.stores.store import Session
from composer_pipeline.replay.ledger.values import AttemptClosed


class WorkingSet:
    """The rows of one transaction of one owner, each loaded once."""

    def __init__(self, session: Session, owner: str) -> None:
        self.session = session
        self.owner = owner
        self.now = session.now
        self.attempts: dict[str, Attempt | None] = {}
        self.scopes: dict[str, Scope] = {}
        self.claims: dict[str, tuple[str, str] | None] = {}
        self.replies: dict[str, str] = {}
        #: Key with an attempt that may have been billed and had any trouble -> when the latest
        #: unknown one was admitted; 0 where none is unknown.
        self.lost: dict[str, int] = {}
        self.quarantined: dict[str, str] | None = None
        self.new_scopes: set[str] = set()
        self.stored_claims: set[str] = set()
        self._dead: dict[str, bool] = {}

    def prefetch(self, ids: set[str], keys: set[str], names: set[str]) -> None:
        """Load attempts, keys and scopes in two round trips, with what the attempts name."""
        if ids:
            self._load_attempts("id IN :many", sorted(ids))
        for attempt in self.attempts.values():
            if attempt:
                keys.add(attempt.key)
                names.update(attempt.scopes)
        self._load(keys, names)

    def _load_attempts(self, where: str, value: Any) -> list[Attempt]:
        (rows,) = self.session.fetch((f"SELECT {COLUMNS} FROM attempt WHERE {where}", [value]))
        found = []
        for row in rows:
            attempt = self.attempts.get(row[0])
            if attempt is None:
                values: list[Any] = list(row)
                values[5] = read_list(values[5])
                attempt = Attempt(*values)
                self.attempts[attempt.id] = attempt
            found.append(attempt)
        return found

    def _load(self, keys: Iterable[str] = (), names: Iterable[str] = ()) -> None:
        keys = sorted(key for key in keys if key not in self.claims)
        names = sorted(name for name in names if name not in self.scopes)
        if not keys and not names:
            return
        replies, lost, claims, scopes = self.session.fetch(
            ("SELECT key, outcome FROM reply WHERE key IN :many", [keys]),
            (
                "SELECT key, max(CASE WHEN state = 'unknown' THEN created_us ELSE 0 END)"
                " FROM attempt WHERE detail <> '' AND state IN ('unknown', 'swept', 'done')"
                " AND key IN :many GROUP BY key",
                [keys],
            ),
            ("SELECT key, owner, attempt FROM claim WHERE key IN :many", [keys]),
            # One order for everyone, so that locks on these rows can never cross.
            (
                "SELECT name, ceiling, spent, reserved, unknown FROM scope"
                " WHERE name IN :many ORDER BY name FOR UPDATE",
                [names],
            ),
        )
        self.claims |= dict.fromkeys(keys)
        self.replies |= dict.fromkeys(keys, "")
        self.replies |= dict(replies)
        self.lost |= dict(lost)
        for key, owner, attempt in claims:
            self.claims[key] = (owner, attempt)
            self.stored_claims.add(key)
        for name in names:
            self.scopes[name] = Scope(None)
        self.new_scopes.update(names)
        for name, *sums in scopes:
            self.scopes[name] = Scope(*sums)
            self.new_scopes.discard(name)

    def attempt(self, attempt_id: str) -> Attempt:
        """Return an attempt.

        Raises:
            AttemptClosed: there is none with this id.
        """
        attempt = self.attempts.get(attempt_id)
        if attempt is None:
            self._load_attempts("id = ?", attempt_id)
            attempt = self.attempts.get(attempt_id)
            if attempt is None:
                raise AttemptClosed(f"attempt {attempt_id} is not in the ledger")
        return attempt

    def troubled_attempts(self, key: str) -> list[Attempt]:
        """Return the attempts of a key that had any trouble, the oldest first."""
        self._load_attempts("detail <> '' AND key = ?", key)
        return self._troubled(lambda attempt: attempt.key == key)

    def same_bytes(self, digest: str) -> list[Attempt]:
        """Return the attempts with these very bytes that had any trouble, the oldest first."""
        self._load_attempts("detail <> '' AND digest = ?", digest)
        return self._troubled(lambda attempt: attempt.digest == digest)

    def _troubled(self, wanted: Callable[[Attempt], bool]) -> list[Attempt]:
        found = [a for a in self.attempts.values() if a and a.detail and wanted(a)]
        return sorted(found, key=lambda attempt: attempt.created_us)

    def unresolved(self, keys: Iterable[str]) -> list[Attempt]:
        """Return the attempts that may have been billed for a reply that nobody has.

        ``keys`` are looked at in their order; the attempts of one, the oldest first.
        """
        return [
            attempt
            for key in keys
            if not self.reply(key) and key in self.lost
            for attempt in self.troubled_attempts(key)
            if attempt.state in ("unknown", "swept", "done")
        ]

    def open_attempts(self, owner: str) -> list[Attempt]:
        """Return what an owner has in flight."""
        found = self._load_attempts("state IN ('reserved', 'sent') AND owner = ?", owner)
        return [attempt for attempt in found if attempt.open]

    def unknown_attempts(self) -> list[Attempt]:
        """Return the unknown attempts of every run, the oldest first."""
        found = self._load_attempts("state = 'unknown' AND created_us >= ?", 0)
        here = {a.id: a for a in self.attempts.values() if a}
        here |= {attempt.id: attempt for attempt in found}
        unknown = [attempt for attempt in here.values() if attempt.state == "unknown"]
        return sorted(unknown, key=lambda attempt: (attempt.created_us, attempt.id))

    def scope(self, name: str) -> Scope:
        """Return a scope, a new one where nobody used the name before."""
        if name not in self.scopes:
            self._load(names=[name])
        return self.scopes[name]

    def claim(self, key: str) -> tuple[str, str] | None:
        """Return (owner, attempt) of the claim on a key."""
        if key not in self.claims:
            self._load(keys=[key])
        return self.claims[key]

    def reply(self, key: str) -> str:
        """Return the outcome that is stored for a key, or an empty string."""
        if key not in self.replies:
            self._load(keys=[key])
        return self.replies[key]

    def quarantine(self, teacher: str) -> str:
        """Return why a teacher is quarantined, or an empty string."""
        if self.quarantined is None:
            (rows,) = self.session.fetch(("SELECT teacher, why FROM quarantine", []))
            self.quarantined = dict(rows)
        return self.quarantined.get(teacher, "")

    def is_dead(self, owner: str) -> bool:
        """Say whether an owner can settle nothing any more.

        On this boot /proc decides; of another machine, the age of its heartbeat.
        """
        if owner == self.owner:
            return False
        if owner not in self._dead:
            here = lives(owner)
            if here is None:
                (rows,) = self.session.fetch(("SELECT beat_us FROM owner WHERE id = ?", [owner]))
                here = bool(rows) and self.now - rows[0][0] <= STALE_S * 1_000_000
            self._dead[owner] = not here
        return self._dead[owner]
