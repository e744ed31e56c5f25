"""The budget ledger: what may be spent, what was spent, and every reply that was paid for.

Any number of processes share a ceiling exactly: ``spent + reserved + unknown`` of a scope never
passes its ceiling by admission (``operations.reserve`` decides). Money is int64 picodollars
(1e-12 USD).
"""

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import zstandard

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.money import Pico, to_usd
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.transaction import (
    BEAT_S,
    Operation,
    Transaction,
    new_owner,
    retire,
)
from composer_pipeline.teachers.ledger.values import (
    AttemptClosed,
    KeyBaseline,
    Scope,
    Session,
    Store,
    UnknownAttempt,
    read_names,
)

T = TypeVar("T")

LEDGER_VARIABLE = "COMPOSER_LEDGER"
#: Clocks of machines that share a ledger may differ by so much.
CLOCK_SLACK_S = 60.0

_DAY = r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
#: Which calls a scope counts: all, those of a run, those sent on a UTC day or in a month, those
#: to a teacher, those about states of a day.
_SCOPES = re.compile(
    rf"global|(?:run|backfill|root):\S+|day:{_DAY}|month:\d{{4}}-(?:0[1-9]|1[0-2])|teacher:\S+|partition:{_DAY}"
)

_PARTITION = """
SELECT call.key, call.state_id, call.session_id, call.meta,
  coalesce(reply.outcome, 'unknown') AS outcome, reply.http_status, reply.body, reply.cost,
  reply.generation_id, reply.latency_ms, reply.obtained, reply.detail, reply.created_us
FROM call LEFT JOIN reply ON reply.key = call.key
WHERE call.teacher = ? AND call.day = ? AND (reply.key IS NOT NULL OR EXISTS (
  SELECT 1 FROM attempt
  WHERE attempt.key = call.key AND attempt.detail <> '' AND attempt.state = 'unknown'))
ORDER BY call.state_id, call.key
"""
_UNKNOWN_CALLS = """
SELECT DISTINCT call.state_id, call.teacher
FROM attempt JOIN call ON call.key = attempt.key LEFT JOIN reply ON reply.key = attempt.key
WHERE attempt.state IN ('unknown', 'swept', 'done') AND reply.key IS NULL
"""
_UNKNOWN_ATTEMPTS = """
SELECT attempt.scopes, attempt.id, attempt.key, attempt.teacher, attempt.reserve,
  coalesce(attempt.generation_id, ''), attempt.created_us,
  CASE WHEN reply.key IS NULL THEN 0 ELSE 1 END
FROM attempt LEFT JOIN reply ON reply.key = attempt.key
WHERE attempt.state = 'unknown' ORDER BY attempt.created_us, attempt.id
"""


def is_url(target: str | os.PathLike[str]) -> bool:
    """Return True if a target is a PostgreSQL URL and not a path."""
    return str(target).startswith(("postgresql://", "postgres://"))


def ledger_target(lake: Lake, value: str | os.PathLike[str] | None = None) -> str | Path:
    """Return the ledger of a lake: ``value``, else $COMPOSER_LEDGER, else a file in the lake."""
    chosen = os.fspath(value) if value else os.environ.get(LEDGER_VARIABLE)
    if chosen and is_url(chosen):
        return chosen
    if chosen and "://" in chosen:
        scheme = chosen.partition("://")[0]
        raise InputError(f"the ledger is a file or a postgresql:// URL, not a {scheme}:// one")
    if chosen:
        return Path(chosen).expanduser()
    if not lake.local:
        raise InputError(
            f"lake {lake.url} is a bucket and cannot hold the ledger; name a local file or a"
            f" postgresql:// URL with --ledger or {LEDGER_VARIABLE}"
        )
    return Path(lake.root) / "ledger.db"


def check_scope(name: str) -> str:
    """Return the name of a scope that a replay charges; raise InputError for any other name."""
    if not _SCOPES.fullmatch(name):
        raise InputError(
            f"scope {name!r} is none of global, run:NAME, backfill:ID, root:RUN, day:YYYY-MM-DD,"
            " month:YYYY-MM, teacher:NAME, partition:YYYY-MM-DD"
        )
    return name


def check_shared(name: str) -> str:
    """Return the name of a scope that runs share; every other scope is charged anyway."""
    if not check_scope(name).startswith(("backfill:", "root:")):
        raise InputError(f"budget {name!r} is neither backfill:ID nor root:RUN")
    return name


class Ledger:
    """One ledger: a file, or a PostgreSQL database by URL.

    Safe to open from several processes, and to use from several threads of one.
    """

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self._store = _open_store(target)
        self.name = self._store.name
        self.path: Path | None = None if is_url(target) else Path(target)
        self.owner = new_owner()
        self._lock = threading.RLock()
        self._beat = 0.0

    def __repr__(self) -> str:
        return f"Ledger({self.name})"

    def close(self) -> None:
        """Count what this object still has in flight as unknown, and close the database.

        Another owner would otherwise do the same once this process has ended.
        """
        with self._lock, contextlib.suppress(ComposerError):
            retire(self.owner)
            if self._beat:
                self._beat = time.monotonic()  # no further heartbeat
                self.apply([operations.leave(self.owner)])
            self._beat = 0.0
        self._store.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def apply(self, batch: Sequence[Operation[Any]]) -> list[Any]:
        """Run operations in order in one durable transaction; return the result of each.

        The result of one that failed, and so changed nothing, is its exception. A ComposerError
        that is raised instead means that nothing was written.
        """
        results: list[Any] = []
        with self._lock:
            with self._store.transaction() as session:
                transaction = Transaction(session, self.owner, batch)
                for operation in batch:
                    try:
                        results.append(operation.run(transaction))
                    except (AttemptClosed, ComposerError) as error:
                        results.append(error)
                beat = time.monotonic()
                due = not self._beat or beat - self._beat >= BEAT_S
                if due:
                    transaction.beat()
                transaction.flush()
            if due:
                self._beat = beat
        return results

    def do(self, operation: Operation[T]) -> T:
        """Run one operation in a durable transaction; raise what it raises."""
        (result,) = self.apply([operation])
        if isinstance(result, Exception):
            raise result
        value: T = result
        return value

    # -- scopes --------------------------------------------------------------------------

    def status(self) -> dict[str, Scope]:
        """Return every scope's ceiling and sums."""
        sql = "SELECT name, ceiling, spent, reserved, unknown FROM scope ORDER BY name"
        return {name: Scope(*sums) for name, *sums in self._read(sql)}

    def overspent(self) -> dict[str, Pico]:
        """Return scope -> the most that was charged above the ceiling in force then.

        None is expected. A scope within its current ceiling is in order. Of another one the
        history is gone through: each admission, and each bill above its reservation, against the
        ceiling of that moment; a ceiling that was set below what was spent is no overspend.
        """
        scopes = self._read("SELECT name, ceiling, spent + reserved + unknown FROM scope")
        return {
            name: most
            for name, ceiling, held in scopes
            if ceiling is not None and held > ceiling and (most := self._most_above(name))
        }

    def _most_above(self, name: str) -> Pico:
        history: list[tuple[int, int | None]] = [
            (at, None if detail == operations.LIFTED else int(detail))
            for at, detail in self._read(operations.CEILING_HISTORY, operations.CEILING, name)
        ]
        changes: list[tuple[int, int]] = []
        sql = "SELECT scopes, created_us, ended_us, state, reserve, cost FROM attempt"
        for scopes, created, ended, state, reserve, cost in self._read(sql):
            if name not in read_names(scopes):
                continue
            changes.append((created, reserve))
            if state in ("done", "swept", "released"):
                changes.append((ended or created, (cost or 0) - reserve))
        most = held = 0
        at = -1
        in_force: int | None = None
        # What was given back at a moment comes before what was admitted then.
        for moment, change in sorted(changes):
            while at + 1 < len(history) and history[at + 1][0] <= moment:
                at += 1
                in_force = history[at][1]
            held += change
            if change > 0 and in_force is not None:
                most = max(most, held - in_force)
        return Pico(most)

    def sums_that_differ(self) -> list[str]:
        """Return the scopes whose sums are not those of their attempts; none is expected."""
        held: dict[str, list[int]] = {}
        with self._lock:
            rows = self._read("SELECT scopes, state, cost, reserve FROM attempt")
            found = self.status()
        for scopes, state, cost, reserve in rows:
            for name in read_names(scopes):
                sums = held.setdefault(name, [0, 0, 0])
                sums[0] += cost or 0
                sums[1] += reserve if state == "sent" else 0
                sums[2] += reserve if state == "unknown" else 0
        return sorted(
            name
            for name in found.keys() | held.keys()
            if name not in found
            or [found[name].spent, found[name].reserved, found[name].unknown]
            != held.get(name, [0, 0, 0])
        )

    def quarantined(self) -> dict[str, str]:
        """Return teacher -> why it is quarantined."""
        return dict(self._read("SELECT teacher, why FROM quarantine ORDER BY teacher"))

    # -- calls and replies ---------------------------------------------------------------

    def rows(self, teacher: str, day: str) -> list[dict[str, Any]]:
        """Return the calls of a partition with their raw reply, or with ``outcome='unknown'``."""
        with self._lock:
            names, found = self._store.read(_PARTITION, (teacher, day))
        rows = [dict(zip(names, row, strict=True)) for row in found]
        for row in rows:
            row["meta"] = msgspec.json.decode(row["meta"])
            row["body"] = b"" if row["body"] is None else zstandard.decompress(row["body"])
        return rows

    def answered(self, teacher: str, day: str) -> int:
        """Return how many rows of :meth:`rows` have a reply; it only ever grows."""
        sql = (
            "SELECT count(*) FROM call JOIN reply ON reply.key = call.key"
            " WHERE call.teacher = ? AND call.day = ?"
        )
        return int(self._read(sql, teacher, day)[0][0])

    def bought(self, teacher: str, day: str) -> list[tuple[str, dict[str, Any]]]:
        """Return (state_id, ``Call.meta``) of a partition's paid answers, the oldest first."""
        sql = (
            "SELECT call.state_id, call.meta FROM call JOIN reply ON reply.key = call.key"
            " WHERE call.teacher = ? AND call.day = ? AND reply.outcome = 'billed'"
            " ORDER BY reply.created_us, call.key"
        )
        rows = self._read(sql, teacher, day)
        return [(state, msgspec.json.decode(meta)) for state, meta in rows]

    def replied(self, keys: Iterable[str]) -> set[str]:
        """Return those of some keys that have a reply or a final refusal, in one query."""
        rows = self._read("SELECT key FROM reply WHERE key IN :many", list(keys))
        return {key for (key,) in rows}

    def recorded(self) -> dict[tuple[str, str], int]:
        """Return (teacher, day) -> how many questions were ever recorded; it only ever grows."""
        sql = "SELECT teacher, day, count(*) FROM call GROUP BY teacher, day"
        return {(teacher, day): int(count) for teacher, day, count in self._read(sql)}

    def kept_bytes(self) -> list[tuple[str, bytes]]:
        """Return (session, bytes) of every reply, and of what attempts keep of theirs."""
        found: list[tuple[str, bytes]] = []
        for column, table in (("body", "reply"), ("raw", "attempt")):
            sql = (
                f"SELECT DISTINCT call.session_id, call.key FROM call JOIN {table}"
                f" ON {table}.key = call.key WHERE {table}.{column} IS NOT NULL"
            )
            for session_id, key in self._read(sql):
                kept = self._read(f"SELECT {column} FROM {table} WHERE key = ?", key)
                found += [
                    (session_id, zstandard.decompress(data)) for (data,) in kept if data is not None
                ]
        return found

    def erase(self, sessions: Sequence[str]) -> int:
        """Delete calls, replies and kept bytes of sessions; return how many replies.

        Attempts and scopes keep what was spent. A reply that a call of another session uses too
        stays. A ComposerError means that another process reads the ledger: the rows are gone
        then, but the file still holds some bytes.
        """
        self.do(operations.adopt_dead())
        with self._lock:
            with self._store.transaction() as session:
                deleted = _delete(session, self.name, list(sessions))
            self._store.compact()
        return deleted

    def erasable(self, sessions: Sequence[str]) -> int:
        """Return how many replies :meth:`erase` would delete."""
        with self._lock, self._store.transaction() as session:
            _, own = _keys_of(session, list(sessions))
        return len(self.replied(own))

    # -- what is unknown -----------------------------------------------------------------

    def unknown_calls(self) -> set[tuple[str, str]]:
        """Return (state_id, teacher) of calls that may have been paid for and have no reply."""
        return {(state, teacher) for state, teacher in self._read(_UNKNOWN_CALLS)}

    def unknown_attempts(self, scope: str = "") -> list[UnknownAttempt]:
        """Return the unknown attempts of a scope (of all when empty), the oldest first."""
        return [
            UnknownAttempt(*row[1:7], *map(bool, row[7:]))
            for row in self._read(_UNKNOWN_ATTEMPTS)
            if not scope or scope in read_names(row[0])
        ]

    def unsettled_generations(self) -> list[tuple[str, str]]:
        """Return (attempt, generation id) of unknown attempts whose generation is known."""
        sql = (
            "SELECT id, generation_id FROM attempt"
            " WHERE state = 'unknown' AND generation_id IS NOT NULL ORDER BY created_us, id"
        )
        return [(attempt, generation) for attempt, generation in self._read(sql)]

    def run_keys(self, run_scope: str) -> list[KeyBaseline]:
        """Return the provider keys of a run, the oldest first."""
        sql = (
            "SELECT key_hash, baseline_pico, created_us FROM run_key WHERE run = ?"
            " ORDER BY created_us, key_hash"
        )
        return [KeyBaseline(*row) for row in self._read(sql, run_scope)]

    def check_clock(self) -> None:
        """Raise ComposerError if the clock was set back behind what the ledger has recorded."""
        newest = int(self._read("SELECT max(created_us) FROM attempt")[0][0] or 0)
        ahead_s = newest / 1_000_000 - time.time()
        if ahead_s > CLOCK_SLACK_S:
            raise ComposerError(
                f"ledger {self.name} was written {ahead_s:.0f} s later than this machine's clock"
                " says it is now; set the clock right, or its days and waits are wrong"
            )

    def _read(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._store.read(sql, params)[1]


def _open_store(target: str | os.PathLike[str]) -> Store:
    if is_url(target):
        from composer_pipeline.teachers.ledger.postgres import PostgresStore

        return PostgresStore(str(target))
    from composer_pipeline.teachers.ledger.sqlite import SqliteStore

    return SqliteStore(target)


def _keys_of(session: Session, sessions: list[str]) -> tuple[list[str], list[str]]:
    """Return the keys of sessions, and those that no call of another session uses."""
    sql = "SELECT DISTINCT key FROM call WHERE session_id IN :many"
    keys = [key for (key,) in session.fetch((sql, [sessions]))[0]]
    (shared,) = session.fetch(("SELECT key, session_id FROM call WHERE key IN :many", [keys]))
    others = {key for key, session_id in shared if session_id not in set(sessions)}
    return keys, [key for key in keys if key not in others]


def _delete(session: Session, name: str, sessions: list[str]) -> int:
    keys, own = _keys_of(session, sessions)
    in_flight, replies = session.fetch(
        ("SELECT key FROM attempt WHERE state = 'sent' AND key IN :many", [keys]),
        ("SELECT key FROM reply WHERE key IN :many", [own]),
    )
    if in_flight:
        raise InputError(f"ledger {name}: a replay has calls about them in flight; let it end")
    gone = [(key,) for key in own]
    writes = [
        ("DELETE FROM call WHERE session_id = ?", [(name,) for name in sessions]),
        ("DELETE FROM reply WHERE key = ?", gone),
        (
            "UPDATE event SET detail = 'forgotten'"
            " WHERE attempt IN (SELECT id FROM attempt WHERE key = ?)",
            gone,
        ),
        (
            "UPDATE attempt SET raw = NULL,"
            " detail = CASE WHEN detail = '' THEN '' ELSE 'forgotten' END WHERE key = ?",
            gone,
        ),
    ]
    session.write([write for write in writes if write[1]])
    return len(replies)


def existing_ledger(target: str | os.PathLike[str]) -> Ledger | None:
    """Open a ledger; return ``None``, and create nothing, where its file does not exist."""
    return Ledger(target) if is_url(target) or Path(target).exists() else None


def standing_ceilings(target: str | os.PathLike[str], today: date) -> list[str]:
    """Return which scopes that outlive a run have a ceiling: the month of ``today``, or all."""
    ledger = existing_ledger(target)
    if ledger is None:
        return []
    with ledger:
        scopes = ledger.status()
    names = ("global", f"month:{today:%Y-%m}")
    return [n for n in names if n in scopes and scopes[n].ceiling is not None]


def budget_report(target: str | os.PathLike[str]) -> dict[str, Any]:
    """Return every scope of a ledger with exact amounts in USD, as decimal text.

    A ledger that does not exist has no scopes and is not created.
    """
    ledger = existing_ledger(target)
    if ledger is None:
        return {"ledger": str(target), "scopes": [], "quarantined": {}}
    with ledger:
        scopes = [
            {
                "scope": name,
                "ceiling_usd": None if held.ceiling is None else to_usd(held.ceiling),
                "spent_usd": to_usd(held.spent),
                "reserved_usd": to_usd(held.reserved),
                "unknown_usd": to_usd(held.unknown),
            }
            for name, held in ledger.status().items()
        ]
        return {"ledger": ledger.name, "scopes": scopes, "quarantined": ledger.quarantined()}
