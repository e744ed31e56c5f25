"""The budget ledger: what may be spent, what was spent, and every reply that was paid for.

Belongs here: scopes with ceilings, the state machine of an attempt, claims, replies, and
the one SQLite file (WAL) that holds them. Does not belong here: HTTP, prices of models, and
what a reply means.

An attempt goes ``reserved -> sent -> done | released | unknown``. Admission, settlement and
release are one ``BEGIN IMMEDIATE`` transaction each, so any number of processes share a
ceiling exactly: ``spent + reserved + unknown`` of a scope never passes its ceiling by
admission. A settlement writes the cost and the reply's bytes together. An attempt whose
outcome nobody knows stays charged at its worst case until it is reconciled.

Money is int64 picodollars (1e-12 USD). The SQL is kept to what PostgreSQL also speaks.
"""

import os
import sqlite3
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import msgspec
import zstandard

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.replay.money import to_pico
from composer_pipeline.replay.owner import is_alive, process_identity

LEDGER_VARIABLE = "COMPOSER_LEDGER"

_TABLES = """
CREATE TABLE IF NOT EXISTS scope (
  name TEXT PRIMARY KEY, ceiling BIGINT, spent BIGINT NOT NULL DEFAULT 0,
  reserved BIGINT NOT NULL DEFAULT 0, unknown BIGINT NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS call (
  key TEXT NOT NULL, state_id TEXT NOT NULL, teacher TEXT NOT NULL, session_id TEXT NOT NULL,
  day TEXT NOT NULL, meta TEXT NOT NULL, PRIMARY KEY (key, state_id, teacher));
CREATE INDEX IF NOT EXISTS call_partition ON call (teacher, day);
CREATE TABLE IF NOT EXISTS attempt (
  id TEXT PRIMARY KEY, key TEXT NOT NULL, state TEXT NOT NULL, reserve BIGINT NOT NULL,
  cost BIGINT, scopes TEXT NOT NULL, owner TEXT NOT NULL, generation_id TEXT,
  detail TEXT NOT NULL DEFAULT '', raw BLOB, created_us BIGINT NOT NULL, ended_us BIGINT);
CREATE INDEX IF NOT EXISTS attempt_key ON attempt (key, state);
CREATE INDEX IF NOT EXISTS attempt_state ON attempt (state, owner);
CREATE TABLE IF NOT EXISTS reply (
  key TEXT PRIMARY KEY, outcome TEXT NOT NULL, http_status BIGINT NOT NULL, body BLOB NOT NULL,
  cost BIGINT, generation_id TEXT, latency_ms DOUBLE PRECISION NOT NULL,
  obtained TEXT NOT NULL, detail TEXT NOT NULL, created_us BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS claim (key TEXT PRIMARY KEY, owner TEXT NOT NULL);
"""


class Call(msgspec.Struct, frozen=True):
    """Which question a key stands for; enough to rebuild the lake's row without the state."""

    state_id: str
    teacher: str
    session_id: str
    day: str
    meta: dict[str, Any]


class Admission(msgspec.Struct, frozen=True):
    """The answer to :meth:`Ledger.reserve`.

    ``cached``: a reply is there. ``busy``: someone is asking right now. ``wait``: money in
    flight may come back. ``refused``: ``scope`` has no room. ``reserved``: send it.
    """

    kind: Literal["cached", "busy", "wait", "refused", "reserved"]
    attempt: str = ""
    scope: str = ""


class Reply(msgspec.Struct, frozen=True):
    """A stored reply. ``cost`` is ``None`` until the provider has told it."""

    outcome: Literal["billed", "refused"]
    http_status: int
    body: bytes
    cost: int | None
    generation_id: str = ""
    latency_ms: float = 0.0
    obtained: Literal["bought", "recovered"] = "bought"
    detail: str = ""


class ScopeStatus(msgspec.Struct, frozen=True):
    """Picodollars of one scope; ``ceiling`` is ``None`` where nobody set one."""

    ceiling: int | None
    spent: int
    reserved: int
    unknown: int


class Ledger:
    """One ledger file. Safe to open from several processes.

    Raises:
        InputError: the file cannot be opened or is no ledger.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.owner = process_identity()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # One thread at a time uses it; Dagster may open and use it in different ones.
            self._db = sqlite3.connect(
                self.path, timeout=60, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA journal_mode=WAL")
            # FULL: a bill must survive a power cut, not only a killed process.
            self._db.execute("PRAGMA synchronous=FULL")
            for statement in _TABLES.split(";"):
                self._db.execute(statement)
        except (OSError, sqlite3.DatabaseError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"ledger {self.path}: {reason}") from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # -- ceilings ----------------------------------------------------------------

    def set_ceiling(self, scope: str, usd: Decimal | None) -> None:
        """Set or (``None``) lift the ceiling of a scope; the next admission reads it.

        Raises:
            InputError: the ceiling is no positive amount.
        """
        pico = None if usd is None else to_pico(usd)
        if pico is not None and pico <= 0:
            raise InputError(f"the ceiling of {scope} must be above 0 USD")
        with self._write() as db:
            db.execute(
                "INSERT INTO scope (name, ceiling) VALUES (?, ?)"
                " ON CONFLICT (name) DO UPDATE SET ceiling = excluded.ceiling",
                (scope, pico),
            )

    def status(self) -> dict[str, ScopeStatus]:
        """Return every scope's ceiling and sums."""
        rows = self._db.execute("SELECT name, ceiling, spent, reserved, unknown FROM scope")
        return {name: ScopeStatus(*rest) for name, *rest in rows}

    # -- the state machine -------------------------------------------------------

    def reserve(
        self,
        key: str,
        amount: int,
        scopes: Sequence[str],
        call: Call,
        *,
        headroom: int = 0,
    ) -> Admission:
        """Admit one call in one transaction, or say why not.

        Args:
            key: hash of the exact bytes to send.
            amount: worst case in picodollars; charged to all ``scopes`` or to none.
            scopes: names such as ``run:…``, ``day:2026-11-16``, ``teacher:…``, ``global``.
            call: remembered for the lake, also where a reply is already there.
            headroom: picodollars to leave free, for recoveries.
        """
        with self._write() as db:
            self._note(db, key, call)
            if db.execute("SELECT 1 FROM reply WHERE key = ?", (key,)).fetchone():
                return Admission("cached")
            claim = db.execute("SELECT owner FROM claim WHERE key = ?", (key,)).fetchone()
            if claim and (claim[0] == self.owner or is_alive(claim[0])):
                return Admission("busy")
            if claim:
                self._adopt(db, claim[0])
            for scope in scopes:
                db.execute("INSERT INTO scope (name) VALUES (?) ON CONFLICT DO NOTHING", (scope,))
            for scope in scopes:
                ceiling, spent, reserved, unknown = db.execute(
                    "SELECT ceiling, spent, reserved, unknown FROM scope WHERE name = ?", (scope,)
                ).fetchone()
                if ceiling is None:
                    continue
                settled = spent + unknown + amount + headroom
                if settled + reserved > ceiling:
                    waits = reserved > 0 and settled <= ceiling
                    return Admission("wait" if waits else "refused", scope=scope)
            attempt = uuid.uuid4().hex
            db.execute(
                "INSERT INTO attempt (id, key, state, reserve, scopes, owner, created_us)"
                " VALUES (?, ?, 'reserved', ?, ?, ?, ?)",
                (attempt, key, amount, _json(list(scopes)), self.owner, _now()),
            )
            db.execute("INSERT INTO claim (key, owner) VALUES (?, ?)", (key, self.owner))
            _move(db, scopes, reserved=amount)
            return Admission("reserved", attempt)

    def mark_sent(self, attempt: str) -> None:
        """Say that the bytes are about to leave; from here on money may be owed."""
        with self._write() as db:
            self._end(db, attempt, "sent", ended=False)

    def settle(self, attempt: str, cost: int, reply: Reply, *, source: str = "") -> bool:
        """Write the billed cost and the reply's bytes in one transaction.

        Args:
            attempt: the attempt that was answered.
            cost: what this attempt was billed, in picodollars (0 for a cache hit).
            reply: the reply; ``reply.cost`` is what the answer cost in the end.
            source: generation that was billed for a cache hit. It settles one earlier
                unknown attempt of the key with ``reply.cost``, or is noted on it for
                :meth:`unsettled_generations` where that is still ``None``.

        Returns:
            False when the cost passed the reservation (a bound violation).
        """
        with self._write() as db:
            key, reserve, scopes = self._end(
                db, attempt, "done", cost=cost, generation=reply.generation_id
            )
            _move(db, scopes, reserved=-reserve, spent=cost)
            held = cost <= reserve
            if not held:
                db.execute("UPDATE attempt SET detail = 'bound_violation' WHERE id = ?", (attempt,))
            if source:
                reply = msgspec.structs.replace(
                    reply, cost=self._settle_source(db, key, source, reply.cost)
                )
            self._store(db, key, reply)
            return held

    def _settle_source(
        self, db: sqlite3.Connection, key: str, source: str, cost: int | None
    ) -> int | None:
        known = db.execute(
            "SELECT cost FROM attempt WHERE key = ? AND generation_id = ? AND state = 'done'"
            " AND cost IS NOT NULL",
            (key, source),
        ).fetchone()
        if known:
            return int(known[0])
        row = db.execute(
            "SELECT id FROM attempt WHERE key = ? AND state = 'unknown'"
            " AND (generation_id IS NULL OR generation_id = ?) ORDER BY created_us",
            (key, source),
        ).fetchone()
        if row is None:
            return 0  # bought through another ledger; nothing of it is charged here
        if cost is None:
            db.execute("UPDATE attempt SET generation_id = ? WHERE id = ?", (source, row[0]))
            return None
        self._close_unknown(db, row[0], cost, source)
        return cost

    def reconcile(self, attempt: str, cost: int) -> None:
        """Settle an unknown attempt whose generation's cost has become known."""
        with self._write() as db:
            row = db.execute(
                "SELECT key, generation_id FROM attempt WHERE id = ? AND state = 'unknown'",
                (attempt,),
            ).fetchone()
            if row:
                self._close_unknown(db, attempt, cost, row[1])
                db.execute(
                    "UPDATE reply SET cost = ? WHERE key = ? AND cost IS NULL", (cost, row[0])
                )

    def release(self, attempt: str, detail: str, refusal: Reply | None = None) -> None:
        """Give the reservation back: the attempt is known not to be billed.

        ``refusal`` is stored as the key's reply where asking again would change nothing.
        """
        with self._write() as db:
            key, reserve, scopes = self._end(db, attempt, "released", detail=detail, cost=0)
            _move(db, scopes, reserved=-reserve)
            if refusal:
                self._store(db, key, refusal)

    def mark_unknown(
        self, attempt: str, detail: str, *, raw: bytes | None = None, generation: str = ""
    ) -> None:
        """Keep the worst case charged: nobody knows whether it was billed."""
        with self._write() as db:
            _, reserve, scopes = self._end(
                db, attempt, "unknown", detail=detail, generation=generation
            )
            _move(db, scopes, reserved=-reserve, unknown=reserve)
            if raw is not None:
                db.execute("UPDATE attempt SET raw = ? WHERE id = ?", (_pack(raw), attempt))

    def adopt_dead(self) -> int:
        """Take over what dead processes left: unsent is released, sent becomes unknown."""
        with self._write() as db:
            owners = db.execute(
                "SELECT DISTINCT owner FROM attempt WHERE state IN ('reserved', 'sent')"
            ).fetchall()
            dead = [o for (o,) in owners if o != self.owner and not is_alive(o)]
            return sum(self._adopt(db, owner) for owner in dead)

    def _adopt(self, db: sqlite3.Connection, owner: str) -> int:
        rows = db.execute(
            "SELECT id, state, reserve, scopes FROM attempt"
            " WHERE owner = ? AND state IN ('reserved', 'sent')",
            (owner,),
        ).fetchall()
        for attempt, state, reserve, scopes in rows:
            sent = state == "sent"
            self._end(db, attempt, "unknown" if sent else "released", detail="owner died")
            _move(db, _list(scopes), reserved=-reserve, unknown=reserve if sent else 0)
        db.execute("DELETE FROM claim WHERE owner = ?", (owner,))
        return len(rows)

    def _end(
        self,
        db: sqlite3.Connection,
        attempt: str,
        state: str,
        *,
        detail: str = "",
        cost: int | None = None,
        generation: str = "",
        ended: bool = True,
    ) -> tuple[str, int, list[str]]:
        row = db.execute(
            "SELECT key, reserve, scopes FROM attempt"
            " WHERE id = ? AND state IN ('reserved', 'sent')",
            (attempt,),
        ).fetchone()
        if row is None:
            raise RuntimeError(f"attempt {attempt} is not open")
        db.execute(
            "UPDATE attempt SET state = ?, detail = ?, cost = ?, generation_id = ?, ended_us = ?"
            " WHERE id = ?",
            (state, detail, cost, generation or None, _now() if ended else None, attempt),
        )
        if ended:
            db.execute("DELETE FROM claim WHERE key = ?", (row[0],))
        return row[0], row[1], _list(row[2])

    def _close_unknown(self, db: sqlite3.Connection, attempt: str, cost: int, source: str) -> None:
        reserve, scopes = db.execute(
            "SELECT reserve, scopes FROM attempt WHERE id = ?", (attempt,)
        ).fetchone()
        db.execute(
            "UPDATE attempt SET state = 'done', cost = ?, generation_id = ?, ended_us = ?"
            " WHERE id = ?",
            (cost, source, _now(), attempt),
        )
        _move(db, _list(scopes), unknown=-reserve, spent=cost)

    def _note(self, db: sqlite3.Connection, key: str, call: Call) -> None:
        db.execute(
            "INSERT INTO call (key, state_id, teacher, session_id, day, meta)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (key, call.state_id, call.teacher, call.session_id, call.day, _json(call.meta)),
        )

    def _store(self, db: sqlite3.Connection, key: str, reply: Reply) -> None:
        values = msgspec.structs.asdict(reply) | {"body": _pack(reply.body)}
        db.execute(
            f"INSERT INTO reply (key, created_us, {', '.join(values)})"
            f" VALUES (?, ?{', ?' * len(values)}) ON CONFLICT DO NOTHING",
            (key, _now(), *values.values()),
        )

    # -- questions ---------------------------------------------------------------

    def has_reply(self, key: str) -> bool:
        """Say whether a reply (or a final refusal) is stored for the key."""
        return self._db.execute("SELECT 1 FROM reply WHERE key = ?", (key,)).fetchone() is not None

    def outcome(self, key: str, call: Call) -> str:
        """Return ``billed``, ``refused`` or nothing, and note that it also answers ``call``."""
        reply = self._db.execute("SELECT outcome FROM reply WHERE key = ?", (key,)).fetchone()
        if reply is None:
            return ""
        row = self._db.execute(
            "SELECT 1 FROM call WHERE key = ? AND state_id = ? AND teacher = ?",
            (key, call.state_id, call.teacher),
        ).fetchone()
        if row is None:
            with self._write() as db:
                self._note(db, key, call)
        return str(reply[0])

    def unknown_calls(self) -> set[tuple[str, str]]:
        """Return (state_id, teacher) of calls with an unknown attempt and no reply."""
        rows = self._db.execute(
            "SELECT DISTINCT call.state_id, call.teacher FROM attempt"
            " JOIN call ON call.key = attempt.key LEFT JOIN reply ON reply.key = attempt.key"
            " WHERE attempt.state = 'unknown' AND reply.key IS NULL"
        )
        return {(state, teacher) for state, teacher in rows}

    def unsettled_generations(self) -> list[tuple[str, str]]:
        """Return (attempt, generation id) of unknown attempts whose generation is known."""
        return self._db.execute(
            "SELECT id, generation_id FROM attempt"
            " WHERE state = 'unknown' AND generation_id IS NOT NULL"
        ).fetchall()

    def rows(self, teacher: str, day: str) -> list[dict[str, Any]]:
        """Return the calls of a partition with their reply, or with ``outcome='unknown'``.

        Calls that have neither a reply nor an unknown attempt are left out. ``body`` is
        the raw reply.
        """
        cursor = self._db.execute(
            "SELECT call.key, call.state_id, call.session_id, call.meta,"
            " coalesce(reply.outcome, 'unknown') AS outcome, reply.http_status, reply.body,"
            " reply.cost, reply.generation_id, reply.latency_ms, reply.obtained, reply.detail,"
            " reply.created_us FROM call LEFT JOIN reply ON reply.key = call.key"
            " WHERE call.teacher = ? AND call.day = ? AND (reply.key IS NOT NULL OR EXISTS"
            " (SELECT 1 FROM attempt WHERE attempt.key = call.key AND attempt.state = 'unknown'))"
            " ORDER BY call.state_id, call.key",
            (teacher, day),
        )
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor]
        for row in rows:
            row["meta"] = msgspec.json.decode(row["meta"])
            row["body"] = b"" if row["body"] is None else zstandard.decompress(row["body"])
        return rows


def ledger_path(lake: Lake, path: str | os.PathLike[str] | None = None) -> Path:
    """Return where the ledger of a lake is: ``path``, $COMPOSER_LEDGER, or in the lake.

    Raises:
        InputError: the lake is a bucket, which cannot hold an SQLite file.
    """
    chosen = os.fspath(path) if path is not None else os.environ.get(LEDGER_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    if not lake.local:
        raise InputError(
            f"lake {lake.url} is a bucket and cannot hold the ledger;"
            f" name a local file with --ledger PATH or {LEDGER_VARIABLE}"
        )
    return Path(lake.root) / "ledger.db"


def _move(
    db: sqlite3.Connection,
    scopes: Sequence[str],
    *,
    reserved: int = 0,
    spent: int = 0,
    unknown: int = 0,
) -> None:
    for scope in scopes:
        db.execute(
            "UPDATE scope SET reserved = reserved + ?, spent = spent + ?, unknown = unknown + ?"
            " WHERE name = ?",
            (reserved, spent, unknown, scope),
        )


def _pack(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(data)


def _json(value: list[str] | Mapping[str, Any]) -> str:
    return msgspec.json.encode(value).decode()


def _list(text: str) -> list[str]:
    return msgspec.json.decode(text, type=list[str])


def _now() -> int:
    return time.time_ns() // 1000
