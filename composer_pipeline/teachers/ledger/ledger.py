"""The budget ledger: what may be spent, what was spent, and every reply that was paid for.

Belongs here: opening a ledger, running operations on it, one durable transaction each, and
asking it. Does not belong here: the operations (``replay.ledger.rules``), databases
(``replay.ledger.stores``), many operations in one transaction (``replay.ledger.group_commit``),
HTTP, prices of models, and what a reply means.

Any number of processes share a ceiling exactly: ``spent + reserved + unknown`` of a scope
never passes its ceiling by admission. Money is int64 picodollars (1e-12 USD).
"""

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import zstandard

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.money import Pico, to_usd
from composer_pipeline.teachers.ledger import operations as ceilings
from composer_pipeline.teachers.ledger import operations as rules
from composer_pipeline.teachers.ledger.owner import new_owner, retire
from composer_pipeline.teachers.ledger.transaction import BEAT_S, Batch, Operation
from composer_pipeline.teachers.ledger.values import (
    AttemptClosed,
    Event,
    RunKey,
    ScopeStatus,
    Session,
    Store,
    UnknownAttempt,
)

LEDGER_VARIABLE = "COMPOSER_LEDGER"

_DAY = r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
#: Which calls a scope counts: all, of a run, sent on a UTC day or in a month, to a teacher,
#: about states of a day.
_SCOPES = re.compile(
    rf"global|(?:run|backfill|root):\S+|day:{_DAY}|month:\d{{4}}-(?:0[1-9]|1[0-2])|teacher:\S+|partition:{_DAY}"
)


def is_url(target: str | os.PathLike[str]) -> bool:
    """Say whether a target is a PostgreSQL URL and not a path."""
    return str(target).startswith(("postgresql://", "postgres://"))


def ledger_target(lake: Lake, value: str | os.PathLike[str] | None = None) -> str | Path:
    """Return where the ledger of a lake is: ``value``, $COMPOSER_LEDGER, or in the lake.

    Returns:
        A PostgreSQL URL as it was given, or a path.

    Raises:
        InputError: the lake is a bucket, which cannot hold an SQLite file, or the value is
            a URL of something else.
    """
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
    """Return the name of a scope that a replay charges.

    Raises:
        InputError: no call would ever be charged to it.
    """
    if not _SCOPES.fullmatch(name):
        raise InputError(
            f"scope {name!r} is none of global, run:NAME, backfill:ID, root:RUN, day:YYYY-MM-DD,"
            " month:YYYY-MM, teacher:NAME, partition:YYYY-MM-DD"
        )
    return name


def check_shared(name: str) -> str:
    """Return the name of a scope that runs share because they belong together.

    Raises:
        InputError: it is not of such a kind: every run is charged to the others anyway.
    """
    if not check_scope(name).startswith(("backfill:", "root:")):
        raise InputError(f"budget {name!r} is neither backfill:ID nor root:RUN")
    return name


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


def status(store: Store) -> dict[str, ScopeStatus]:
    """Return every scope."""
    sql = "SELECT name, ceiling, spent, reserved, unknown FROM scope ORDER BY name"
    return {name: ScopeStatus(*sums) for name, *sums in store.read(sql)[1]}


def replied(store: Store, keys: Iterable[str]) -> set[str]:
    """Return those of some keys that have a reply."""
    rows = store.read("SELECT key FROM reply WHERE key IN :many", (list(keys),))[1]
    return {key for (key,) in rows}


def metas(store: Store, teacher: str) -> list[dict[str, Any]]:
    """Return each different ``Call.meta`` of a teacher's calls."""
    rows = store.read("SELECT DISTINCT meta FROM call WHERE teacher = ?", (teacher,))[1]
    return [msgspec.json.decode(meta) for (meta,) in rows]


def partition(store: Store, teacher: str, day: str) -> list[dict[str, Any]]:
    """Return the calls of a partition; see :meth:`Ledger.rows`."""
    names, found = store.read(_PARTITION, (teacher, day))
    rows = [dict(zip(names, row, strict=True)) for row in found]
    for row in rows:
        row["meta"] = msgspec.json.decode(row["meta"])
        row["body"] = b"" if row["body"] is None else zstandard.decompress(row["body"])
    return rows


def bought(store: Store, teacher: str, day: str) -> list[tuple[str, dict[str, Any]]]:
    """Return (state_id, meta) of the calls of a partition that were paid for and answered."""
    sql = (
        "SELECT call.state_id, call.meta FROM call JOIN reply ON reply.key = call.key"
        " WHERE call.teacher = ? AND call.day = ? AND reply.outcome = 'billed'"
        " ORDER BY reply.created_us, call.key"
    )
    rows = store.read(sql, (teacher, day))[1]
    return [(state, msgspec.json.decode(meta)) for state, meta in rows]


def answered(store: Store, teacher: str, day: str) -> int:
    """Return how many calls of a partition have a reply."""
    sql = (
        "SELECT count(*) FROM call JOIN reply ON reply.key = call.key"
        " WHERE call.teacher = ? AND call.day = ?"
    )
    return int(store.read(sql, (teacher, day))[1][0][0])


def unknown_calls(store: Store) -> set[tuple[str, str]]:
    """Return (state_id, teacher) of calls that may have been paid for and have no reply.

    Their attempt is unknown, or its bill was learned from elsewhere.
    """
    return {(state, teacher) for state, teacher in store.read(_UNKNOWN_CALLS)[1]}


def unknown_attempts(store: Store, scope: str) -> list[UnknownAttempt]:
    """Return the unknown attempts of a scope, or of all."""
    return [
        UnknownAttempt(*row[1:7], *map(bool, row[7:]))
        for row in store.read(_UNKNOWN_ATTEMPTS)[1]
        if not scope or scope in msgspec.json.decode(row[0])
    ]


def unsettled_generations(store: Store) -> list[tuple[str, str]]:
    """Return (attempt, generation id) of unknown attempts whose generation is known."""
    sql = (
        "SELECT id, generation_id FROM attempt"
        " WHERE state = 'unknown' AND generation_id IS NOT NULL ORDER BY created_us, id"
    )
    return [(attempt, generation) for attempt, generation in store.read(sql)[1]]


def noted(store: Store) -> dict[tuple[str, str], int]:
    """Return (teacher, day) -> how many questions were ever noted; it only ever grows."""
    sql = "SELECT teacher, day, count(*) FROM call GROUP BY teacher, day"
    return {(teacher, day): int(count) for teacher, day, count in store.read(sql)[1]}


def sums_that_differ(store: Store) -> list[str]:
    """Return the scopes whose sums are not those of their attempts."""
    held: dict[str, list[int]] = {}
    rows = store.read("SELECT scopes, state, cost, reserve FROM attempt")[1]
    for scopes, state, cost, reserve in rows:
        for name in msgspec.json.decode(scopes):
            sums = held.setdefault(name, [0, 0, 0])
            sums[0] += cost or 0
            sums[1] += reserve if state in ("reserved", "sent") else 0
            sums[2] += reserve if state == "unknown" else 0
    found = status(store)
    return sorted(
        name
        for name in found.keys() | held.keys()
        if name not in found
        or [found[name].spent, found[name].reserved, found[name].unknown]
        != held.get(name, [0, 0, 0])
    )


def kept_bytes(store: Store) -> Iterator[tuple[str, bytes]]:
    """Yield (session, bytes) of every reply and of what attempts keep."""
    for column, table in (("body", "reply"), ("raw", "attempt")):
        sql = (
            f"SELECT DISTINCT call.session_id, call.key FROM call JOIN {table}"
            f" ON {table}.key = call.key WHERE {table}.{column} IS NOT NULL"
        )
        for session_id, key in store.read(sql)[1]:
            for (data,) in store.read(f"SELECT {column} FROM {table} WHERE key = ?", (key,))[1]:
                if data is not None:
                    yield session_id, zstandard.decompress(data)


def newest(store: Store) -> int:
    """Return when the latest attempt was made, in microseconds since 1970; 0 where none was."""
    return int(store.read("SELECT max(created_us) FROM attempt")[1][0][0] or 0)


def run_keys(store: Store, run_scope: str) -> list[RunKey]:
    """Return the keys of a run, the oldest first."""
    sql = (
        "SELECT run, key_hash, baseline_pico, created_us FROM run_key WHERE run = ?"
        " ORDER BY created_us, key_hash"
    )
    return [RunKey(*row) for row in store.read(sql, (run_scope,))[1]]


def quarantined(store: Store) -> dict[str, str]:
    """Return teacher -> why."""
    return dict(store.read("SELECT teacher, why FROM quarantine ORDER BY teacher")[1])


def events(store: Store, kind: str) -> list[Event]:
    """Return the events of a kind, or of all, the oldest first."""
    sql = (
        "SELECT at_us, kind, teacher, attempt, detail FROM event WHERE ? IN ('', kind)"
        " ORDER BY at_us, id"
    )
    return [Event(*row) for row in store.read(sql, (kind,))[1]]


def erase(store: Store, sessions: Sequence[str]) -> int:
    """Delete calls, replies and kept bytes of sessions; return how many replies.

    Attempts and scopes keep what was spent. A reply that a call of another session uses too
    stays. The database is then written anew, so that its file does not hold the bytes either.

    Raises:
        InputError: a replay has a call about one of them in flight.
        ComposerError: another process reads the ledger; the rows are gone, some bytes are not.
    """
    with store.transaction() as session:
        deleted = _delete(session, store.name, list(sessions))
    store.compact()
    return deleted


def _delete(session: Session, name: str, sessions: list[str]) -> int:
    (mine,) = session.fetch(("SELECT DISTINCT key FROM call WHERE session_id IN :many", [sessions]))
    keys = [key for (key,) in mine]
    open_, shared = session.fetch(
        ("SELECT key FROM attempt WHERE state IN ('reserved', 'sent') AND key IN :many", [keys]),
        ("SELECT key, session_id FROM call WHERE key IN :many", [keys]),
    )
    if open_:
        raise InputError(f"ledger {name}: a replay has calls about them in flight; let it end")
    others = {key for key, session_id in shared if session_id not in set(sessions)}
    gone = [(key,) for key in keys if key not in others]
    (there,) = session.fetch(("SELECT key FROM reply WHERE key IN :many", [[k for (k,) in gone]]))
    session.write(
        [
            (sql, rows)
            for sql, rows in (
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
            )
            if rows
        ]
    )
    return len(there)


T = TypeVar("T")
#: Clocks of machines that share a ledger may differ by so much.
CLOCK_SLACK_S = 60.0


class Ledger:
    """One ledger: a file, or a PostgreSQL database by URL.

    Safe to open from several processes, and to use from several threads of one.

    Raises:
        InputError: it cannot be opened, is no ledger, or is a newer version's.
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
        """Give up what this ledger object still has in flight, and close the database.

        What was reserved is released, what was sent becomes unknown; another owner would
        otherwise do the same once this process has ended.
        """
        with self._lock, contextlib.suppress(ComposerError):
            retire(self.owner)
            if self._beat:
                self._beat = time.monotonic()  # no further heartbeat
                self.apply([rules.leave(self.owner)])
            self._beat = 0.0
        self._store.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def apply(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        """Run operations in order in one durable transaction.

        Returns:
            The result of each, or the exception of one that failed; it changed nothing.

        Raises:
            ComposerError: the transaction failed as a whole and nothing was written.
        """
        results: list[Any] = []
        with self._lock:
            with self._store.transaction() as session:
                batch = Batch(session, self.owner, operations)
                for operation in operations:
                    try:
                        results.append(operation.run(batch))
                    except (AttemptClosed, ComposerError) as error:
                        results.append(error)
                beat = time.monotonic()
                due = not self._beat or beat - self._beat >= BEAT_S
                if due:
                    batch.beat()
                batch.flush()
            if due:
                self._beat = beat
        return results

    def do(self, operation: Operation[T]) -> T:
        """Run one operation of ``replay.ledger.rules`` in a durable transaction.

        Raises:
            AttemptClosed: the operation needs an attempt that has ended.
            ComposerError: it did not take place, or (a full disk) nothing was written.
        """
        (result,) = self.apply([operation])
        if isinstance(result, Exception):
            raise result
        value: T = result
        return value

    def erase(self, sessions: Sequence[str]) -> int:
        """Delete what was asked and answered about sessions; return how many replies.

        Every amount stays. See :func:`composer_pipeline.teachers.ledger.ledger.erase`.
        """
        self.do(rules.adopt_dead())
        with self._lock:
            return erase(self._store, sessions)

    def beat(self) -> None:
        """Say that this owner lives. Writes do it by themselves every 10 s."""
        self._beat = 0.0
        self.apply([])

    # -- questions ---------------------------------------------------------------

    def check_clock(self) -> None:
        """See that the clock was not set back behind what the ledger has recorded.

        Raises:
            ComposerError: it was; days and waits would be wrong.
        """
        with self._lock:
            ahead_s = newest(self._store) / 1_000_000 - time.time()
        if ahead_s > CLOCK_SLACK_S:
            raise ComposerError(
                f"ledger {self.name} was written {ahead_s:.0f} s later than this machine's clock"
                " says it is now; set the clock right, or its days and waits are wrong"
            )

    def status(self) -> dict[str, ScopeStatus]:
        """Return every scope's ceiling and sums."""
        with self._lock:
            return status(self._store)

    def overspent(self) -> dict[str, Pico]:
        """Return scope -> what was charged above the ceiling of that moment; none is expected.

        A ceiling that was set below what was spent is no overspend.
        """
        with self._lock:
            return ceilings.overspent(self._store)

    def sums_that_differ(self) -> list[str]:
        """Return the scopes whose sums are not those of their attempts; none in a whole ledger."""
        with self._lock:
            return sums_that_differ(self._store)

    def kept_bytes(self) -> list[tuple[str, bytes]]:
        """Return (session, bytes) of every reply, and of what attempts keep of theirs."""
        with self._lock:
            return list(kept_bytes(self._store))

    def noted(self) -> dict[tuple[str, str], int]:
        """Return (teacher, day) -> how many questions were ever noted."""
        with self._lock:
            return noted(self._store)

    def run_keys(self, run_scope: str) -> list[RunKey]:
        """Return the keys of a run, the oldest first."""
        with self._lock:
            return run_keys(self._store, run_scope)

    def unsettled_generations(self) -> list[tuple[str, str]]:
        """Return (attempt, generation id) of unknown attempts whose generation is known."""
        with self._lock:
            return unsettled_generations(self._store)

    def unknown_attempts(self, scope: str = "") -> list[UnknownAttempt]:
        """Return the unknown attempts of a scope (of all when empty), the oldest first."""
        with self._lock:
            return unknown_attempts(self._store, scope)

    def quarantined(self) -> dict[str, str]:
        """Return teacher -> why."""
        with self._lock:
            return quarantined(self._store)

    def events(self, kind: str = "") -> list[Event]:
        """Return the events of a kind (all when empty), the oldest first."""
        with self._lock:
            return events(self._store, kind)

    def has_reply(self, key: str) -> bool:
        """Say whether a reply (or a final refusal) is stored for the key."""
        return bool(self.replied([key]))

    def replied(self, keys: Iterable[str]) -> set[str]:
        """Return those of some keys that have a reply or a final refusal, in one query."""
        with self._lock:
            return replied(self._store, keys)

    def metas(self, teacher: str) -> list[dict[str, Any]]:
        """Return each different ``Call.meta`` of a teacher's calls."""
        with self._lock:
            return metas(self._store, teacher)

    def unknown_calls(self) -> set[tuple[str, str]]:
        """Return (state_id, teacher) of calls that may have been paid for and have no reply."""
        with self._lock:
            return unknown_calls(self._store)

    def rows(self, teacher: str, day: str) -> list[dict[str, Any]]:
        """Return the calls of a partition with their reply, or with ``outcome='unknown'``.

        Calls that have neither a reply nor an unknown attempt are left out. ``body`` is
        the raw reply.
        """
        with self._lock:
            return partition(self._store, teacher, day)

    def bought(self, teacher: str, day: str) -> list[tuple[str, dict[str, Any]]]:
        """Return (state_id, ``Call.meta``) of a partition's paid answers, the oldest first."""
        with self._lock:
            return bought(self._store, teacher, day)

    def answered(self, teacher: str, day: str) -> int:
        """Return how many rows of :meth:`rows` have a reply; it only ever grows."""
        with self._lock:
            return answered(self._store, teacher, day)


def open_ledger(target: str | os.PathLike[str]) -> Ledger:
    """Open or create the ledger at a path or a ``postgresql://`` URL.

    Raises:
        InputError: see :class:`Ledger`.
    """
    return Ledger(target)


def existing_ledger(target: str | os.PathLike[str]) -> Ledger | None:
    """Open a ledger; ``None``, and nothing created, where its file does not exist."""
    return Ledger(target) if is_url(target) or Path(target).exists() else None


def _open_store(target: str | os.PathLike[str]) -> Store:
    if is_url(target):
        from composer_pipeline.teachers.ledger.postgres import PostgresStore

        return PostgresStore(str(target))
    from composer_pipeline.teachers.ledger.sqlite import SqliteStore

    return SqliteStore(target)


def standing_ceilings(target: str | os.PathLike[str], today: date) -> list[str]:
    """Return which scopes that outlive a run have a ceiling now: the month, or everything.

    Args:
        target: path or URL; a ledger that does not exist has none and is not created.
        today: in UTC.
    """
    ledger = existing_ledger(target)
    if ledger is None:
        return []
    with ledger:
        scopes = ledger.status()
    names = ("global", f"month:{today:%Y-%m}")
    return [n for n in names if n in scopes and scopes[n].ceiling is not None]


def budget_report(target: str | os.PathLike[str]) -> dict[str, Any]:
    """Return every scope of a ledger with exact amounts in USD, as decimal text.

    Args:
        target: path or URL; a ledger that does not exist has no scopes and is not created.

    Returns:
        ``ledger`` (its name), ``scopes`` ({scope, ceiling_usd, spent_usd, reserved_usd,
        unknown_usd}; a ceiling of ``None`` is none) and ``quarantined`` (teacher -> why).
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
