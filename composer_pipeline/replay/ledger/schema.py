"""The ledger's tables, their version, and the way from older versions to it.

Belongs here: DDL. Does not belong here: what rows mean (``replay.ledger.rules``).

The text is SQLite's; ``adapted`` gives PostgreSQL's. A change of the tables needs a new
``VERSION`` and a step in ``MIGRATIONS``, which runs in one transaction.

Indexes cost a page of the journal for each call, so two of them hold only what is rare: what
is in flight, and what was not simply sent and billed (``detail`` says why).
"""

VERSION = 2

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
  teacher TEXT NOT NULL DEFAULT '');
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
    + _NEW_IN_2
}


def statements(version: int | None) -> list[str]:
    """Return the statements that lead from a version (``None``: nothing there) to this one."""
    if version is None:
        text = TABLES + _NEW_IN_2
    else:
        text = "".join(MIGRATIONS[step] for step in range(version, VERSION))
    stamp = (
        f"INSERT INTO meta (name, value) VALUES ('version', '{VERSION}')"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    )
    return [part.strip() for part in text.split(";") if part.strip()] + [stamp]
