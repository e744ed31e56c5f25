"""Many operations in one transaction: what they change, written in few statements.

Belongs here: changes in memory, and writing them in as few statements as there are tables.
Does not belong here: loading rows (``replay.ledger.working_set``), and what an operation may
do (``replay.ledger.rules``).

A transaction holds the ledger's one write lock, so a batch of many operations is as exact as
one transaction for each.
"""

import uuid
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from composer_pipeline.money import Pico
from composer_pipeline.replay.ledger.stores.rows import COLUMNS, Attempt, inserted, updated
from composer_pipeline.replay.ledger.stores.store import Session, Write
from composer_pipeline.replay.ledger.working_set import WorkingSet

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
