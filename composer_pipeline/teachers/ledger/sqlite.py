"""The ledger in one SQLite file (WAL), shared by the processes of one machine."""

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from composer_pipeline.errors import ComposerError, InputError, StorageError
from composer_pipeline.files import create_file, make_folder
from composer_pipeline.teachers.ledger.schema import STATEMENTS, check_version
from composer_pipeline.teachers.ledger.values import LedgerFull, Query, Session, Write

#: How long a transaction waits for those of other processes.
BUSY_S = 60
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class SqliteStore:
    """One ledger file; it is created where it does not exist."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.name = str(self.path)
        with self._errors():
            make_folder(self.path.parent)
            if not self.path.exists():
                # SQLite gives its journal the mode of the database.
                with contextlib.suppress(FileExistsError):
                    os.close(create_file(self.path))
            # One thread at a time uses it, but not always the same one.
            self._db = sqlite3.connect(
                self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
        try:
            with self._errors():
                self._use_wal()
                # FULL keeps every commit through a power cut, NORMAL only through a killed process.
                self._db.execute("PRAGMA synchronous=FULL")
                # Keys are hashes, so each call touches other pages: keep 64 MB of them here,
                # and copy them back to the file only every 32 MB of journal.
                self._db.execute("PRAGMA cache_size=-65536")
                self._db.execute("PRAGMA wal_autocheckpoint=8000")
                self._inode = self.path.stat().st_ino
                if not self._has_tables():
                    self._create_tables()
        except ComposerError:
            self._db.close()
            raise

    def _use_wal(self) -> None:
        """Switch a new file to WAL; SQLite refuses some of the processes that do so at once."""
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError as error:
                # SQLite reports busy at once, whatever `timeout`, where waiting could deadlock.
                busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or time.monotonic() > deadline:
                    raise
            else:
                return
            time.sleep(0.02)

    def _has_tables(self) -> bool:
        tables = {
            n for (n,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        stamp = None
        if "meta" in tables:
            row = self._db.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()
            stamp = str(row[0]) if row else ""
        return check_version(self.name, tables, stamp)

    def _create_tables(self) -> None:
        with self._begin():
            if not self._has_tables():  # another process may have been first
                for statement in STATEMENTS:
                    self._db.execute(statement)

    @contextmanager
    def _begin(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # a full disk may have rolled back by itself
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Implement :class:`Store`."""
        with self._errors(), self._begin():
            self._still_there()
            ((stamp,),) = self._db.execute("SELECT value FROM meta WHERE name = 'version'")
            check_version(self.name, set(), stamp)
            yield _SqliteSession(self._db)

    def _still_there(self) -> None:
        """Raise StorageError if the file was deleted or replaced: writes would be lost."""
        try:
            unchanged = self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            unchanged = False
        if not unchanged:
            raise StorageError(
                f"ledger {self.name} was deleted or replaced while it was open; put it back, or"
                " run composer-pipeline budget rebuild"
            )

    def read(self, sql: str, params: Sequence[Any] = ()) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Implement :class:`Store`."""
        with self._errors():
            cursor = self._db.execute(_adapted(sql), _values(params))
            return [column[0] for column in cursor.description], cursor.fetchall()

    def compact(self) -> None:
        """Rewrite the file and empty its journal."""
        with self._errors():
            self._db.execute("VACUUM")
            ((busy, *_),) = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            if busy:
                raise ComposerError(
                    f"ledger {self.name} is in use, and its journal keeps what was deleted until"
                    " nobody reads it; let the other process end and run this again"
                )

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(f"ledger {self.name}: {error.strerror or error}") from error
        except sqlite3.Error as error:
            # The low byte is the primary result code.
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_FULL:
                raise LedgerFull(
                    f"ledger {self.name}: no space left on its disk; everything in it is kept and"
                    " calls in flight stay charged, so free some space and run again to go on"
                ) from error
            if code in _BROKEN:
                raise InputError(f"ledger {self.name}: {error}") from error
            if code == sqlite3.SQLITE_BUSY:
                raise ComposerError(
                    f"ledger {self.name}: another process has kept it locked for {BUSY_S} s"
                ) from error
            if isinstance(error, sqlite3.OperationalError):
                raise InputError(f"ledger {self.name}: {error}") from error
            raise


class _SqliteSession:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.now = time.time_ns() // 1000

    def fetch(self, *queries: Query) -> list[list[tuple[Any, ...]]]:
        return [
            self._db.execute(_adapted(sql), _values(params)).fetchall() for sql, params in queries
        ]

    def write(self, writes: Sequence[Write]) -> None:
        for sql, rows in writes:
            self._db.executemany(sql, rows)


@cache
def _adapted(sql: str) -> str:
    many = "IN (SELECT value FROM json_each(?))"
    return sql.replace("IN :many", many).replace(" FOR UPDATE", "")  # the file is locked


def _values(params: Sequence[Any]) -> list[Any]:
    return [msgspec.json.encode(p).decode() if isinstance(p, list) else p for p in params]
