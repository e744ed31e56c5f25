"""Many operations in one transaction: what they change, written in few statements.

Belongs here: changes in memory, and writing them in as few statements as there are tables.
Does not belong here: loading rows (``replay.ledger.working_set``), and what an operation may
do (``replay.ledger.rules``).

A transaction holds the ledger's one write lock, so a batch of many operations is as exact as
one transaction for each.
"""

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from composer_pipeline.money import Pico
from composer_pipeline.teachers.ledger.owner import STALE_S, lives
from composer_pipeline.teachers.ledger.values import (
    COLUMNS,
    Attempt,
    AttemptClosed,
    Scope,
    Session,
    Write,
    inserted,
    read_list,
    updated,
)


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


T = TypeVar("T")

#: How often an owner that writes renews its heartbeat.
BEAT_S = 10


class Operation(Generic[T]):
    """One thing to do to a ledger, and the rows it is sure to need."""

    __slots__ = ("admits", "attempt", "ends", "keys", "run", "scopes")

    def __init__(
        self,
        run: "Callable[[Batch], T]",
        *,
        attempt: str = "",
        keys: Sequence[str] = (),
        scopes: Sequence[str] = (),
        ends: bool = False,
        admits: bool = False,
    ) -> None:
        self.run = run
        self.attempt = attempt
        self.keys = keys
        self.scopes = scopes
        #: Whether it may free money or a key for which others wait.
        self.ends = ends
        #: Whether it may begin something, which can wait where much is to be written.
        self.admits = admits


class Batch(WorkingSet):
    """The rows of one transaction, and what its operations change of them.

    Args:
        session: the open transaction.
        owner: who runs it.
        operations: what will be run, to load what they need in few round trips.
    """

    def __init__(
        self, session: Session, owner: str, operations: Sequence[Operation[Any]] = ()
    ) -> None:
        super().__init__(session, owner)
        self._new_attempts: set[str] = set()
        self._changed_attempts: set[str] = set()
        self._changed_scopes: set[str] = set()
        self._changed_claims: set[str] = set()
        self._calls: list[Sequence[Any]] = []
        self._reply_rows: dict[str, Sequence[Any]] = {}
        self._writes: list[Write] = []
        self.prefetch(
            {op.attempt for op in operations if op.attempt},
            {key for op in operations for key in op.keys},
            {name for op in operations for name in op.scopes},
        )

    def add_attempt(self, attempt: Attempt) -> None:
        """Insert a new attempt."""
        self.attempts[attempt.id] = attempt
        self._new_attempts.add(attempt.id)

    def touch(self, attempt: Attempt) -> None:
        """Write an attempt's changed fields."""
        self._changed_attempts.add(attempt.id)

    def move(
        self, names: Sequence[str], *, reserved: int = 0, spent: int = 0, unknown: int = 0
    ) -> None:
        """Add to the sums of scopes; what is below 0 is taken away."""
        for name in names:
            scope = self.scope(name)
            scope.reserved = Pico(scope.reserved + reserved)
            scope.spent = Pico(scope.spent + spent)
            scope.unknown = Pico(scope.unknown + unknown)
        self._changed_scopes.update(names)

    def set_claim(self, key: str, attempt: str | None) -> None:
        """Claim a key for this owner's attempt, or (``None``) free it."""
        self.claim(key)
        self.claims[key] = (self.owner, attempt) if attempt else None
        self._changed_claims.add(key)

    def note(self, key: str, state_id: str, teacher: str, *rest: str) -> None:
        """Remember a question that a key stands for."""
        self._calls.append((key, state_id, teacher, *rest))

    def store_reply(self, key: str, outcome: str, rest: Sequence[Any]) -> None:
        """Store a key's reply. The first one stays, but a bill replaces a refusal."""
        there = self.reply(key)
        if not there or (there, outcome) == ("refused", "billed"):
            self.replies[key] = outcome
            self._reply_rows[key] = (key, outcome, *rest, self.now)

    def later(self, sql: str, *params: Any) -> None:
        """Run a rare statement at the end, after the rows above were written."""
        self._writes.append((sql, [params]))

    def event(self, kind: str, teacher: str, attempt: str, detail: str) -> None:
        """Record something that a person should know."""
        self.later(
            "INSERT INTO event (id, at_us, kind, teacher, attempt, detail)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            uuid.uuid4().hex, self.now, kind, teacher, attempt, detail,
        )  # fmt: skip

    def set_quarantine(self, teacher: str, why: str) -> None:
        """Refuse a teacher until it is lifted; the first reason stays."""
        if not self.quarantine(teacher):
            assert self.quarantined is not None
            self.quarantined[teacher] = why
            self.later(
                "INSERT INTO quarantine (teacher, why, at_us) VALUES (?, ?, ?)"
                " ON CONFLICT (teacher) DO NOTHING",
                teacher, why, self.now,
            )  # fmt: skip

    def forget_quarantine(self, teacher: str) -> None:
        """Lift a teacher's quarantine."""
        if self.quarantine(teacher):
            assert self.quarantined is not None
            del self.quarantined[teacher]
            self.later("DELETE FROM quarantine WHERE teacher = ?", teacher)

    def beat(self) -> None:
        """Renew the owner's heartbeat."""
        self.later(
            "INSERT INTO owner (id, beat_us) VALUES (?, ?)"
            " ON CONFLICT (id) DO UPDATE SET beat_us = excluded.beat_us",
            self.owner, self.now,
        )  # fmt: skip

    def flush(self) -> None:
        """Write everything that changed.

        The order matters twice. New rows come before the rare statements, which may update
        them. And scopes and attempts go in the order of their names, as everyone's do, so
        that two databases' row locks can never wait for each other.
        """
        new, changed = self._new_attempts, self._changed_attempts - self._new_attempts
        attempts = self.attempts
        writes: list[Write] = [
            (
                "INSERT INTO scope (name, spent, reserved, unknown, touched_us)"
                " VALUES (?, ?, ?, ?, ?)",
                [self._scope_row(n, first=True) for n in sorted(self.new_scopes)],
            ),
            (
                "UPDATE scope SET spent = ?, reserved = ?, unknown = ?, touched_us = ?"
                " WHERE name = ?",
                [self._scope_row(n) for n in sorted(self._changed_scopes - self.new_scopes)],
            ),
            (
                "INSERT INTO call (key, state_id, teacher, session_id, day, meta)"
                " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                self._calls,
            ),
            (
                f"INSERT INTO attempt ({COLUMNS}, raw)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [inserted(attempts[i]) for i in sorted(new)],
            ),
            (
                "UPDATE attempt SET state = ?, cost = ?, generation_id = ?, detail = ?,"
                " raw = coalesce(?, raw), ended_us = ? WHERE id = ?",
                [updated(attempts[i]) for i in sorted(changed)],
            ),
            (
                # A claim that changed hands is deleted and inserted: the row says whose it is.
                "DELETE FROM claim WHERE key = ?",
                [(k,) for k in sorted(self._changed_claims & self.stored_claims)],
            ),
            (
                "INSERT INTO claim (key, owner, attempt) VALUES (?, ?, ?)",
                [(k, *claim) for k in sorted(self._changed_claims) if (claim := self.claims[k])],
            ),
            (
                "INSERT INTO reply (key, outcome, http_status, body, cost, generation_id,"
                " latency_ms, obtained, detail, created_us) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
                # Only a refusal is ever replaced (store_reply), by the bill that followed it.
                " ON CONFLICT (key) DO UPDATE SET outcome = excluded.outcome,"
                " http_status = excluded.http_status, body = excluded.body, cost = excluded.cost,"
                " generation_id = excluded.generation_id, latency_ms = excluded.latency_ms,"
                " obtained = excluded.obtained, detail = excluded.detail,"
                " created_us = excluded.created_us",
                list(self._reply_rows.values()),
            ),
            *self._writes,
        ]
        self.session.write([write for write in writes if write[1]])

    def _scope_row(self, name: str, *, first: bool = False) -> tuple[Any, ...]:
        scope = self.scopes[name]
        touched = self.now if name in self._changed_scopes else 0
        sums = (scope.spent, scope.reserved, scope.unknown, touched)
        return (name, *sums) if first else (*sums, name)
