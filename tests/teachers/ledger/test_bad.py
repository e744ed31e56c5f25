"""Ledgers of another version, or full, broken or unreachable; and passwords that stay hidden."""

import asyncio
import sqlite3
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.money import Pico
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.group_commit import Commits
from composer_pipeline.teachers.ledger.ledger import Ledger, existing_ledger
from composer_pipeline.teachers.ledger.values import Bill, Call, LedgerFull, Reply

CALL = Call("state", "t", "session", "2026-11-16", {})
SCOPES = ["run:r", "global"]


def stamp(ledger: Ledger, version: str) -> None:
    with ledger._store.transaction() as session:
        session.write([("UPDATE meta SET value = ? WHERE name = 'version'", [(version,)])])


@pytest.mark.parametrize("version", ["3", "99", "soon"])
def test_any_other_version_is_refused(target: str | Path, version: str) -> None:
    with Ledger(target) as running:
        name = running.name
        stamp(running, version)
        with pytest.raises(InputError) as found:
            Ledger(target)
        assert name in str(found.value)
        assert version in str(found.value)
        # Also where another program changes it under a running process.
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
                    got = await commits.do(operations.reserve(f"k{number}", Pico(5), SCOPES, CALL))
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
        assert len(again.replied(f"k{n}" for n in range(200))) == settled
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
