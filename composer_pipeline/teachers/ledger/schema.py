"""The ledger's tables, and the way from an older version of them to this one.

Belongs here: SQL that makes tables. Does not belong here: running it (``stores.sqlite``,
``stores.postgres``).
"""

from collections.abc import Iterable

from composer_pipeline.errors import InputError
from composer_pipeline.teachers.ledger.owner import STALE_S, lives


def found_version(name: str, tables: set[str], stamp: str | None) -> int | None:
    """Return the version of a ledger, or ``None`` where there are no tables at all.

    Args:
        name: the ledger, for the message.
        tables: the tables that are there.
        stamp: the value of ``meta.version``, where there is such a table.

    Raises:
        InputError: the tables are not a ledger's, or a newer version's.
    """
    if stamp is None:
        if not tables:
            return None
        if not tables.issuperset(V1_TABLES):
            raise InputError(f"ledger {name}: the database holds other tables, not a ledger")
        return 1
    if not stamp.isdecimal():
        raise InputError(f"ledger {name}: its version {stamp!r} is not a number")
    if int(stamp) > VERSION:
        raise InputError(
            f"ledger {name} has version {stamp}, and this composer-pipeline knows versions up"
            f" to {VERSION}; use the newer composer-pipeline that wrote it"
        )
    return int(stamp)


VERSION = 3


#: Version 1 had no ``meta`` table. Its tables are those whose columns version 2 adds to.
V1_TABLES = ("scope", "call", "attempt", "reply", "claim")


TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE scope (
  name TEXT PRIMARY KEY, ceiling BIGINT, spent BIGINT NOT NULL DEFAULT 0,
  reserved BIGINT NOT NULL DEFAULT 0, unknown BIGINT NOT NULL DEFAULT 0,
  touched_us BIGINT NOT NULL DEFAULT 0);
CREATE TABLE call (
  key TEXT NOT NULL, state_id TEXT NOT NULL, teacher TEXT NOT NULL, session_id TEXT NOT NULL,
  day TEXT NOT NULL, meta TEXT NOT NULL, PRIMARY KEY (key, state_id, teacher));
CREATE INDEX call_partition ON call (teacher, day);
CREATE TABLE attempt (
  id TEXT PRIMARY KEY, key TEXT NOT NULL, state TEXT NOT NULL, reserve BIGINT NOT NULL,
  cost BIGINT, scopes TEXT NOT NULL, owner TEXT NOT NULL, generation_id TEXT,
  detail TEXT NOT NULL DEFAULT '', raw BLOB, created_us BIGINT NOT NULL, ended_us BIGINT,
  teacher TEXT NOT NULL DEFAULT '', digest TEXT NOT NULL DEFAULT '',
  cap TEXT NOT NULL DEFAULT '');
CREATE TABLE reply (
  key TEXT PRIMARY KEY, outcome TEXT NOT NULL, http_status BIGINT NOT NULL, body BLOB NOT NULL,
  cost BIGINT, generation_id TEXT, latency_ms DOUBLE PRECISION NOT NULL,
  obtained TEXT NOT NULL, detail TEXT NOT NULL, created_us BIGINT NOT NULL);
CREATE TABLE claim (
  key TEXT PRIMARY KEY, owner TEXT NOT NULL, attempt TEXT NOT NULL DEFAULT '');
"""


#: What version 2 brought besides the columns ``touched_us``, ``teacher`` and ``attempt``.
_NEW_IN_2 = """
CREATE INDEX attempt_trouble ON attempt (key) WHERE detail <> '';
CREATE INDEX attempt_open ON attempt (owner) WHERE state IN ('reserved', 'sent');
CREATE INDEX attempt_unknown ON attempt (created_us) WHERE state = 'unknown';
CREATE TABLE owner (id TEXT PRIMARY KEY, beat_us BIGINT NOT NULL);
CREATE TABLE run_key (
  run TEXT NOT NULL, key_hash TEXT NOT NULL, baseline_pico BIGINT NOT NULL,
  created_us BIGINT NOT NULL, PRIMARY KEY (run, key_hash));
CREATE TABLE quarantine (teacher TEXT PRIMARY KEY, why TEXT NOT NULL, at_us BIGINT NOT NULL);
CREATE TABLE event (
  id TEXT PRIMARY KEY, at_us BIGINT NOT NULL, kind TEXT NOT NULL, teacher TEXT NOT NULL,
  attempt TEXT NOT NULL, detail TEXT NOT NULL);
CREATE INDEX event_time ON event (at_us);
"""


_INDEX_OF_3 = """
CREATE INDEX attempt_digest ON attempt (digest) WHERE detail <> '';
"""


#: Up to version 2 the key of a call was the digest of its exact bytes.
MIGRATIONS = {
    1: """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
ALTER TABLE scope ADD COLUMN touched_us BIGINT NOT NULL DEFAULT 0;
ALTER TABLE attempt ADD COLUMN teacher TEXT NOT NULL DEFAULT '';
ALTER TABLE claim ADD COLUMN attempt TEXT NOT NULL DEFAULT '';
DROP INDEX IF EXISTS attempt_key;
DROP INDEX IF EXISTS attempt_state;
UPDATE attempt SET detail = 'unknown' WHERE state = 'unknown' AND detail = '';
"""
    + _NEW_IN_2,
    2: """
ALTER TABLE attempt ADD COLUMN digest TEXT NOT NULL DEFAULT '';
ALTER TABLE attempt ADD COLUMN cap TEXT NOT NULL DEFAULT '';
UPDATE attempt SET digest = key;
"""
    + _INDEX_OF_3,
}


#: Who has calls in flight, and the heartbeat of each; in a ledger of version 2.
IN_FLIGHT = """
SELECT DISTINCT attempt.owner, coalesce(owner.beat_us, 0)
FROM attempt LEFT JOIN owner ON owner.id = attempt.owner
WHERE attempt.state IN ('reserved', 'sent')
"""


def check_idle(name: str, in_flight: Iterable[tuple[str, int]], now_us: int) -> None:
    """See that nobody who lives has calls in flight: an older program could not settle them.

    Args:
        name: the ledger, for the message.
        in_flight: the rows of :data:`IN_FLIGHT`.
        now_us: microseconds since 1970 by the clock of the heartbeats.

    Raises:
        InputError: somebody has.
    """
    for owner, beat_us in in_flight:
        here = lives(owner)
        if here or (here is None and now_us - beat_us <= STALE_S * 1_000_000):
            raise InputError(
                f"ledger {name} is in use by an older composer-pipeline that has calls in flight;"
                " let its run end, then start this one again"
            )


def statements(version: int | None) -> list[str]:
    """Return the statements that lead from a version (``None``: nothing there) to this one."""
    if version is None:
        text = TABLES + _NEW_IN_2 + _INDEX_OF_3
    else:
        text = "".join(MIGRATIONS[step] for step in range(version, VERSION))
    stamp = (
        f"INSERT INTO meta (name, value) VALUES ('version', '{VERSION}')"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    )
    return [part.strip() for part in text.split(";") if part.strip()] + [stamp]
