"""The tables of the ledger, and the version that is written into each one."""

from composer_pipeline.errors import InputError

#: Stored in the table ``meta``; a ledger of any other version is refused. Versions 1 to 3 were
#: never released.
VERSION = 4

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
  teacher TEXT NOT NULL, digest TEXT NOT NULL);
CREATE INDEX attempt_trouble ON attempt (key) WHERE detail <> '';
CREATE INDEX attempt_open ON attempt (owner) WHERE state = 'sent';
CREATE INDEX attempt_unknown ON attempt (created_us) WHERE state = 'unknown';
CREATE TABLE reply (
  key TEXT PRIMARY KEY, outcome TEXT NOT NULL, http_status BIGINT NOT NULL, body BLOB NOT NULL,
  cost BIGINT, generation_id TEXT, latency_ms DOUBLE PRECISION NOT NULL,
  obtained TEXT NOT NULL, detail TEXT NOT NULL, created_us BIGINT NOT NULL);
CREATE TABLE claim (key TEXT PRIMARY KEY, owner TEXT NOT NULL, attempt TEXT NOT NULL);
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

#: Statements that create the tables in an empty database.
STATEMENTS = [
    *(part.strip() for part in TABLES.split(";") if part.strip()),
    f"INSERT INTO meta (name, value) VALUES ('version', '{VERSION}')",
]


def check_version(name: str, tables: set[str], stamp: str | None) -> bool:
    """Return True if the tables exist; raise InputError if they are not this version's.

    ``stamp`` is the value of ``meta.version``, ``None`` where there is no such table.
    """
    if stamp is None and not tables:
        return False
    if stamp is None:
        raise InputError(f"ledger {name}: the database holds other tables, not a ledger")
    if stamp != str(VERSION):
        raise InputError(
            f"ledger {name} has version {stamp!r}, but this composer-pipeline reads version"
            f" {VERSION} only; use the composer-pipeline that wrote it, or start a new ledger and"
            " run composer-pipeline budget rebuild"
        )
    return True
