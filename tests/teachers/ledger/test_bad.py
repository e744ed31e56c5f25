"""Ledgers that are older, newer, full, broken or unreachable; and passwords that stay hidden."""

import asyncio
import sqlite3
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.money import Pico
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.group_commit import Commits
from composer_pipeline.teachers.ledger.ledger import Ledger, existing_ledger
from composer_pipeline.teachers.ledger.owner import process_identity
from composer_pipeline.teachers.ledger.values import Bill, CacheHit, Call, LedgerFull, Reply

CALL = Call("state", "t", "session", "2026-11-16", {})
SCOPES = ["run:r", "global"]

#: The tables of version 1, as the first release wrote them.
V1 = """
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


def version_1(path: Path) -> None:
    """A ledger with a reply, an unknown attempt, and two that are in flight."""
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode=WAL")
    db.executescript(V1)
    boot, pid, start = process_identity().split(":")
    alive = f"{boot.partition('@')[0]}:{pid}:{start}"
    dead = f"{boot.partition('@')[0]}:{pid}:1"
    scopes = msgspec.json.encode(SCOPES).decode()
    for name in SCOPES:
        db.execute("INSERT INTO scope VALUES (?, ?, ?, ?, ?)", (name, 1000, 7, 60, 20))
    for key in ("billed", "lost", "flying", "left"):
        db.execute(
            "INSERT INTO call VALUES (?, 'state', 't', 'session', '2026-11-16', '{}')", (key,)
        )
    for key, state, reserve, cost, owner in (
        ("billed", "done", 20, 7, dead),
        ("lost", "unknown", 20, None, dead),
        ("flying", "sent", 30, None, alive),
        ("left", "sent", 30, None, dead),
    ):
        db.execute(
            "INSERT INTO attempt (id, key, state, reserve, cost, scopes, owner, created_us)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, 1)",
            (f"id-{key}", key, state, reserve, cost, scopes, owner),
        )
        if state == "sent":
            db.execute("INSERT INTO claim VALUES (?, ?)", (key, owner))
    db.execute(
        "INSERT INTO reply VALUES ('billed', 'billed', 200, ?, 7, '', 1.5, 'bought', '', 1)",
        (zstandard.ZstdCompressor().compress(b"paid"),),
    )
    db.commit()
    db.close()


def test_a_ledger_of_version_1_is_migrated_in_place(tmp_path: Path) -> None:
    version_1(tmp_path / "ledger.db")
    for _ in range(2):
        with Ledger(tmp_path / "ledger.db") as ledger:
            status = ledger.status()["run:r"]
            assert (status.ceiling, status.spent, status.reserved, status.unknown) == (
                1000, 7, 60, 20,
            )  # fmt: skip
    with Ledger(tmp_path / "ledger.db") as ledger:
        assert ledger.do(operations.outcome("billed", CALL)) == "billed"
        (billed, _) = ledger.rows("t", "2026-11-16")
        assert (billed["body"], billed["cost"]) == (b"paid", 7)
        assert ledger.unknown_calls() == {("state", "t")}
        assert ledger.do(operations.reserve("flying", Pico(1), SCOPES, CALL)).kind == "busy"
        assert ledger.do(operations.reserve("left", Pico(1), SCOPES, CALL)).kind == "reserved"
        ledger.do(operations.settle("id-flying", Bill(Pico(5)), Reply(200, b"late")))
        again = ledger.do(operations.reserve("lost", Pico(20), SCOPES, CALL, send=True))
        ledger.do(operations.settle(again.attempt, CacheHit("gen-1", Pico(3)), Reply(200, b"hit")))
        status = ledger.status()["run:r"]
        assert (status.spent, status.reserved, status.unknown) == (15, 1, 30)


def test_a_migration_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from composer_pipeline.teachers.ledger import sqlite
    from composer_pipeline.teachers.ledger.schema import statements

    version_1(tmp_path / "ledger.db")
    real = statements
    monkeypatch.setattr(sqlite, "statements", lambda v: [*real(v), "SELECT no_such"])
    with pytest.raises(InputError, match="no_such"):
        Ledger(tmp_path / "ledger.db")
    monkeypatch.undo()
    db = sqlite3.connect(tmp_path / "ledger.db")
    assert ("meta",) not in db.execute("SELECT name FROM sqlite_master").fetchall()
    db.close()
    Ledger(tmp_path / "ledger.db").close()


def stamp(ledger: Ledger, version: str) -> None:
    with ledger._store.transaction() as session:
        session.write([("UPDATE meta SET value = ? WHERE name = 'version'", [(version,)])])


@pytest.mark.parametrize("version", ["99", "soon"])
def test_a_newer_version_is_refused(target: str | Path, version: str) -> None:
    with Ledger(target) as running:
        name = running.name
        stamp(running, version)
        with pytest.raises(InputError) as found:
            Ledger(target)
        assert name in str(found.value)
        assert version in str(found.value)
        # Also where another program migrates it under a process that runs.
        with pytest.raises(InputError):
            running.do(operations.reserve("k", Pico(1), SCOPES, CALL))


def test_some_other_database_is_refused(tmp_path: Path, target: str | Path) -> None:
    if isinstance(target, Path):
        db = sqlite3.connect(target)
        db.execute("CREATE TABLE bookmarks (url TEXT)")
        db.commit()
        db.close()
        with pytest.raises(InputError, match="not a ledger"):
            Ledger(target)
    else:  # its tables are in a schema of their own
        import psycopg

        with psycopg.connect(target, autocommit=True) as connection:
            connection.execute("CREATE TABLE call (url TEXT)")
        Ledger(target).close()


def test_a_full_disk_loses_nothing_and_can_be_resumed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger(path)
    ledger.do(operations.set_ceiling("run:r", Decimal(1)))
    db = ledger._store._db  # type: ignore[attr-defined]
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count={pages + 12}")

    async def main() -> tuple[int, list[Any]]:
        settled = 0
        async with Commits(ledger) as commits:
            for number in range(200):
                try:
                    got = await commits.do(
                        operations.reserve(f"k{number}", Pico(5), SCOPES, CALL, send=True)
                    )
                    body = bytes(range(256)) * 8
                    await commits.do(
                        operations.settle(got.attempt, Bill(Pico(3)), Reply(200, body))
                    )
                except LedgerFull:
                    break
                settled += 1
            late = await asyncio.gather(
                *(
                    commits.do(operations.reserve(f"x{n}", Pico(5), SCOPES, CALL))
                    for n in range(400)
                ),
                return_exceptions=True,
            )
        return settled, late

    settled, late = asyncio.run(main())
    assert 0 < settled < 200
    (error,) = {str(e) for e in late if isinstance(e, LedgerFull)}
    assert str(path) in error
    assert "run again" in error
    ledger.close()
    with Ledger(path) as again:
        assert again.status()["run:r"].spent == 3 * settled
        assert sum(again.has_reply(f"k{n}") for n in range(200)) == settled
        again.do(operations.adopt_dead())
        status = again.status()["run:r"]
        assert status.reserved == 0
        assert again.do(operations.reserve("more", Pico(5), SCOPES, CALL)).kind == "reserved"


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger(path) as ledger:
        for number in range(50):
            got = ledger.do(operations.reserve(f"k{number}", Pico(5), SCOPES, CALL))
            ledger.do(operations.settle(got.attempt, Bill(Pico(3)), Reply(200, b"x" * 999)))
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))

    def use() -> None:
        with Ledger(path) as ledger:
            ledger.rows("t", "2026-11-16")
            ledger.do(operations.reserve("new", Pico(5), SCOPES, CALL))

    with pytest.raises(InputError, match=r"ledger\.db"):
        use()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        Ledger(tmp_path / "file" / "ledger.db")


def test_planning_creates_no_ledger(tmp_path: Path) -> None:
    assert existing_ledger(tmp_path / "ledger.db") is None
    assert not (tmp_path / "ledger.db").exists()


SECRET = "s3cr%40t"
BAD_URLS = [
    f"postgresql://me:{SECRET}@127.0.0.1:1/x",
    f"postgresql://me@127.0.0.1:1/x?password={SECRET}",
    f"postgresql://me:{SECRET}@127.0.0.1:1,127.0.0.1:2/x?sslpassword={SECRET}",
    f"postgresql://me:{SECRET}@127.0.0.1:{SECRET}/x",
    f"postgresql://me:{SECRET}/@127.0.0.1:1/x",
    f"postgresql://me:{SECRET}#@127.0.0.1:1/x",
    f"postgresql://me:{SECRET}?@127.0.0.1:1/x",
    f"postgresql://me:s@{SECRET}@127.0.0.1:1/x",
    f"postgresql://me:{SECRET} and blanks@127.0.0.1:1/x",
    f"postgresql://me:[{SECRET}@127.0.0.1:1/x",
    f"postgresql://me:{SECRET}@127.0.0.1:1/x?no_such_option={SECRET}",
]


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_password_is_in_no_error(url: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(InputError) as found:
        Ledger(url)
    told = [str(found.value), repr(found.value)]
    error: BaseException | None = found.value
    while error is not None:
        told += [str(error), repr(error), repr(error.args)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    for text in told:
        assert "s3cr" not in text, text


def test_a_ledger_on_postgres_shows_no_password(postgres_server: Any) -> None:
    url = postgres_server.database().replace("composer@", "composer:s3cr%40t@")
    with Ledger(url) as ledger:
        assert "s3cr" not in repr(ledger) + ledger.name
        assert ledger.path is None


def test_without_psycopg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InputError, match=r"composer-pipeline\[postgres\]"):
        Ledger("postgresql://me@127.0.0.1:1/x")


def test_a_lost_connection_is_an_error_of_one_sentence(postgres_server: Any) -> None:
    import psycopg

    url = postgres_server.database()
    with Ledger(url) as ledger:
        with psycopg.connect(postgres_server.url("postgres"), autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'composer-ledger'"
            )
        with pytest.raises(ComposerError, match="ledger postgresql://composer@"):
            ledger.do(operations.reserve("k", Pico(1), SCOPES, CALL))
