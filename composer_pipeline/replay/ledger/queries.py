"""Reading a ledger: questions that change nothing.

Belongs here: the SQL of reports and of what a replay must know before it asks. Does not
belong here: anything inside a write transaction (``replay.ledger.batch``).
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import zstandard

from composer_pipeline.replay.ledger.stores.store import Store
from composer_pipeline.replay.ledger.values import Event, RunKey, ScopeStatus, UnknownAttempt

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
