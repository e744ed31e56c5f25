"""One transaction of the ledger: its rows, each loaded once, and the changes to write.

A transaction holds the ledger's one write lock, so many operations in it are as exact as one
transaction for each. Which processes own attempts, and whether they still run, is known here too.
"""

import os
import platform
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from composer_pipeline.money import Pico
from composer_pipeline.teachers.ledger.values import (
    COLUMNS,
    Attempt,
    AttemptClosed,
    Scope,
    Session,
    Write,
    read_names,
)

T = TypeVar("T")

#: How often an owner that writes renews its heartbeat, in seconds.
BEAT_S = 10
#: An owner on another machine is dead when its heartbeat is older, in seconds.
STALE_S = 60

# -- owners: ``boot:pid:starttime:instance`` ---------------------------------------------

_instances: set[str] = set()


def new_owner() -> str:
    """Return an identity for one user of a ledger in this process, alive until retired."""
    instance = uuid.uuid4().hex[:12]
    _instances.add(instance)
    return f"{_boot()}:{os.getpid()}:{_start_time(os.getpid())}:{instance}"


def retire(owner: str) -> None:
    """Count an owner of this process as dead from now on."""
    _instances.discard(owner.rpartition(":")[2])


def lives(owner: str) -> bool | None:
    """Return whether an owner is alive, ``None`` if it is on another machine or boot."""
    boot, pid, started, instance = owner.split(":")
    if boot != _boot():
        return None
    if _start_time(int(pid)) != started:
        return False
    return int(pid) != os.getpid() or instance in _instances


def _boot() -> str:
    """Return the boot id and the PID namespace: a PID is another process in each container."""
    path = Path("/proc/sys/kernel/random/boot_id")
    if path.exists():
        boot = path.read_text().strip()
    else:
        boot = f"unknown-boot-of-{platform.node()}".replace(":", "-")
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())  # pid:[4026531836]
    except OSError:
        return boot
    return f"{boot}@{namespace.strip('pid:[]')}"


def _start_time(pid: int) -> str:
    """Return field 22 of /proc/PID/stat; without /proc, only whether the process exists."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            return "gone"
        # A zombie still has a stat file, but it will settle nothing any more.
        return "gone" if fields[0] in "ZX" else fields[19]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "gone"
    except PermissionError:
        pass
    return "running"


class Operation(msgspec.Struct, Generic[T], frozen=True):
    """One change of a ledger, and the rows that it is sure to need."""

    run: "Callable[[Transaction], T]"
    attempt: str = ""
    keys: Sequence[str] = ()
    scopes: Sequence[str] = ()
    #: Whether it may free money or a key for which others wait.
    ends: bool = False
    #: Whether it may start a call, which can wait while much is to be written.
    admits: bool = False


class Transaction:
    """The rows of one transaction of one owner, and what its operations change of them.

    Each row is loaded once. Changes are made in memory and written by :meth:`flush` in as few
    statements as there are tables.
    """

    def __init__(
        self, session: Session, owner: str, operations: Sequence[Operation[Any]] = ()
    ) -> None:
        self.session = session
        self.owner = owner
        self.now = session.now
        #: Key with an attempt that may have been billed and had any trouble -> when the latest
        #: unknown one was admitted; 0 where none is unknown.
        self.lost: dict[str, int] = {}
        self._attempts: dict[str, Attempt] = {}
        self._scopes: dict[str, Scope] = {}
        self._claims: dict[str, tuple[str, str] | None] = {}
        self._replies: dict[str, str] = {}
        self._quarantined: dict[str, str] | None = None
        self._stored_scopes: set[str] = set()
        self._stored_claims: set[str] = set()
        self._dead: dict[str, bool] = {}
        self._new_attempts: set[str] = set()
        self._changed_attempts: set[str] = set()
        self._changed_scopes: set[str] = set()
        self._changed_claims: set[str] = set()
        self._calls: list[tuple[Any, ...]] = []
        self._reply_rows: dict[str, tuple[Any, ...]] = {}
        self._writes: list[Write] = []
        self._prefetch(operations)

    # -- loading -----------------------------------------------------------------------

    def _prefetch(self, operations: Sequence[Operation[Any]]) -> None:
        """Load what operations need, and what their attempts name, in two round trips."""
        if ids := sorted({op.attempt for op in operations if op.attempt}):
            self._load_attempts("id IN :many", ids)
        keys = {key for op in operations for key in op.keys}
        names = {name for op in operations for name in op.scopes}
        for attempt in self._attempts.values():
            keys.add(attempt.key)
            names.update(attempt.scopes)
        self._load(keys, names)

    def _load_attempts(self, where: str, value: Any) -> list[Attempt]:
        (rows,) = self.session.fetch((f"SELECT {COLUMNS} FROM attempt WHERE {where}", [value]))
        found = []
        for row in rows:
            attempt = self._attempts.get(row[0])
            if attempt is None:
                attempt = Attempt(*row)
                attempt.scopes = read_names(row[5])
                self._attempts[attempt.id] = attempt
            found.append(attempt)
        return found

    def _load(self, keys: Iterable[str] = (), names: Iterable[str] = ()) -> None:
        keys = sorted(key for key in keys if key not in self._claims)
        names = sorted(name for name in names if name not in self._scopes)
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
        self._claims |= dict.fromkeys(keys)
        self._replies |= dict.fromkeys(keys, "")
        self._replies |= dict(replies)
        self.lost |= dict(lost)
        for key, owner, attempt in claims:
            self._claims[key] = (owner, attempt)
            self._stored_claims.add(key)
        for name in names:
            self._scopes[name] = Scope(None)
        for name, *sums in scopes:
            self._scopes[name] = Scope(*sums)
            self._stored_scopes.add(name)

    def attempt(self, attempt_id: str) -> Attempt:
        """Return an attempt; raise AttemptClosed if there is none with this id."""
        if attempt_id not in self._attempts:
            self._load_attempts("id = ?", attempt_id)
        if attempt_id not in self._attempts:
            raise AttemptClosed(f"attempt {attempt_id} is not in the ledger")
        return self._attempts[attempt_id]

    def troubled_attempts(self, key: str) -> list[Attempt]:
        """Return the attempts of a key that had any trouble, the oldest first."""
        self._load_attempts("detail <> '' AND key = ?", key)
        found = [a for a in self._attempts.values() if a.detail and a.key == key]
        return sorted(found, key=lambda attempt: attempt.created_us)

    def open_attempts(self, owner: str) -> list[Attempt]:
        """Return what an owner has in flight."""
        found = self._load_attempts("state = 'sent' AND owner = ?", owner)
        return [attempt for attempt in found if attempt.open]

    def unknown_attempts(self) -> list[Attempt]:
        """Return the unknown attempts of every run, the oldest first."""
        self._load_attempts("state = 'unknown' AND created_us >= ?", 0)
        unknown = [attempt for attempt in self._attempts.values() if attempt.state == "unknown"]
        return sorted(unknown, key=lambda attempt: (attempt.created_us, attempt.id))

    def scope(self, name: str) -> Scope:
        """Return a scope, a new one where nobody used the name before."""
        if name not in self._scopes:
            self._load(names=[name])
        return self._scopes[name]

    def claim(self, key: str) -> tuple[str, str] | None:
        """Return (owner, attempt) of the claim on a key."""
        if key not in self._claims:
            self._load(keys=[key])
        return self._claims[key]

    def reply(self, key: str) -> str:
        """Return the outcome that is stored for a key, or an empty string."""
        if key not in self._replies:
            self._load(keys=[key])
        return self._replies[key]

    def quarantine(self, teacher: str) -> str:
        """Return why a teacher is quarantined, or an empty string."""
        return self._quarantines().get(teacher, "")

    def _quarantines(self) -> dict[str, str]:
        if self._quarantined is None:
            (rows,) = self.session.fetch(("SELECT teacher, why FROM quarantine", []))
            self._quarantined = dict(rows)
        return self._quarantined

    def is_dead(self, owner: str) -> bool:
        """Return True if an owner can settle nothing any more.

        On this boot /proc decides; of another machine, the age of its heartbeat.
        """
        if owner == self.owner:
            return False
        if owner not in self._dead:
            alive = lives(owner)
            if alive is None:
                (rows,) = self.session.fetch(("SELECT beat_us FROM owner WHERE id = ?", [owner]))
                alive = bool(rows) and self.now - rows[0][0] <= STALE_S * 1_000_000
            self._dead[owner] = not alive
        return self._dead[owner]

    # -- changing ----------------------------------------------------------------------

    def add_attempt(self, attempt: Attempt) -> None:
        """Insert a new attempt."""
        self._attempts[attempt.id] = attempt
        self._new_attempts.add(attempt.id)

    def touch(self, attempt: Attempt) -> None:
        """Write an attempt that was changed."""
        self._changed_attempts.add(attempt.id)

    def move(
        self, names: Sequence[str], *, reserved: int = 0, spent: int = 0, unknown: int = 0
    ) -> None:
        """Add to the sums of scopes; a negative amount is subtracted."""
        for name in names:
            scope = self.scope(name)
            scope.reserved = Pico(scope.reserved + reserved)
            scope.spent = Pico(scope.spent + spent)
            scope.unknown = Pico(scope.unknown + unknown)
        self._changed_scopes.update(names)

    def set_claim(self, key: str, attempt: str | None) -> None:
        """Claim a key for this owner's attempt, or (``None``) free it."""
        self.claim(key)
        self._claims[key] = (self.owner, attempt) if attempt else None
        self._changed_claims.add(key)

    def record_call(self, key: str, state_id: str, teacher: str, *rest: str) -> None:
        """Store the question behind a key."""
        self._calls.append((key, state_id, teacher, *rest))

    def store_reply(self, key: str, outcome: str, rest: Sequence[Any]) -> None:
        """Store a key's reply. The first one stays, but a bill replaces a refusal."""
        stored = self.reply(key)
        if not stored or (stored, outcome) == ("refused", "billed"):
            self._replies[key] = outcome
            self._reply_rows[key] = (key, outcome, *rest, self.now)

    def forget_reply(self, key: str) -> None:
        """Delete a key's reply."""
        self.later("DELETE FROM reply WHERE key = ?", key)
        self._replies[key] = ""

    def later(self, sql: str, *params: Any) -> None:
        """Run a rare statement at the end, after the rows were written."""
        self._writes.append((sql, [params]))

    def event(self, kind: str, teacher: str, attempt: str, detail: str) -> None:
        """Record something that a person should know."""
        self.later(
            "INSERT INTO event (id, at_us, kind, teacher, attempt, detail)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            uuid.uuid4().hex, self.now, kind, teacher, attempt, detail,
        )  # fmt: skip

    def set_quarantine(self, teacher: str, why: str) -> None:
        """Refuse a teacher until the quarantine is lifted; the first reason stays."""
        if not self.quarantine(teacher):
            self._quarantines()[teacher] = why
            self.later(
                "INSERT INTO quarantine (teacher, why, at_us) VALUES (?, ?, ?)"
                " ON CONFLICT (teacher) DO NOTHING",
                teacher, why, self.now,
            )  # fmt: skip

    def lift_quarantine(self, teacher: str) -> bool:
        """Admit a teacher again; return whether it was quarantined."""
        if not self.quarantine(teacher):
            return False
        del self._quarantines()[teacher]
        self.later("DELETE FROM quarantine WHERE teacher = ?", teacher)
        return True

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
        used = self._scopes.keys() - self._stored_scopes
        attempts, claims = self._attempts, self._claims
        writes: list[Write] = [
            (
                "INSERT INTO scope (name, spent, reserved, unknown, touched_us)"
                " VALUES (?, ?, ?, ?, ?)",
                [(n, *self._sums(n)) for n in sorted(used)],
            ),
            (
                "UPDATE scope SET spent = ?, reserved = ?, unknown = ?, touched_us = ?"
                " WHERE name = ?",
                [(*self._sums(n), n) for n in sorted(self._changed_scopes & self._stored_scopes)],
            ),
            (
                "INSERT INTO call (key, state_id, teacher, session_id, day, meta)"
                " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                self._calls,
            ),
            (
                f"INSERT INTO attempt ({COLUMNS}, raw)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [attempts[i].inserted() for i in sorted(new)],
            ),
            (
                "UPDATE attempt SET state = ?, cost = ?, generation_id = ?, detail = ?,"
                " raw = coalesce(?, raw), ended_us = ? WHERE id = ?",
                [attempts[i].updated() for i in sorted(changed)],
            ),
            (
                # A claim that changed hands is deleted and inserted: the row says whose it is.
                "DELETE FROM claim WHERE key = ?",
                [(k,) for k in sorted(self._changed_claims & self._stored_claims)],
            ),
            (
                "INSERT INTO claim (key, owner, attempt) VALUES (?, ?, ?)",
                [(k, *claim) for k in sorted(self._changed_claims) if (claim := claims[k])],
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

    def _sums(self, name: str) -> tuple[int, int, int, int]:
        scope = self._scopes[name]
        touched = self.now if name in self._changed_scopes else 0
        return scope.spent, scope.reserved, scope.unknown, touched
