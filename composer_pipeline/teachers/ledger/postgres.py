"""The ledger in a PostgreSQL database, shared by several machines.

The tables live in a schema of their own, so that a database may hold other things too. A
write transaction locks the row with the ledger's version first: one writer at a time, as
with SQLite's file lock, and therefore no deadlocks. Times are the server's.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.teachers.ledger.schema import STATEMENTS, check_version
from composer_pipeline.teachers.ledger.values import LedgerFull, Query, Session, Write

if TYPE_CHECKING:
    import psycopg

#: One host of a URL: a name, an address, or a folder of a socket; with a port.
_PLACE = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:@]*)(:\d*)?")
#: Options of a URL that identify the database; no other one is shown.
_SHOWN = ("host", "hostaddr", "port", "dbname", "user")


def without_password(url: str) -> tuple[str, list[str]]:
    """Return a URL fit for messages, and the strings that must not be in any.

    The InputError of what is no URL shows nothing of it: any part may be the password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    user, _, places = parts.netloc.rpartition("@") if parts else ("", "", "")
    readable = all(_PLACE.fullmatch(place) for place in places.split(","))
    stray = not parts or "@" in user + parts.path + parts.query or parts.fragment
    if not parts or stray or not readable:
        raise InputError(
            "the postgresql:// URL of the ledger cannot be read; special characters in a user"
            " name or password must be percent-encoded (@ is %40, / is %2F, : is %3A)"
        )
    user, _, password = user.partition(":")
    options = parse_qsl(parts.query, keep_blank_values=True)
    hidden = [value for name, value in options if "password" in name.lower()]
    kept = [(name, value) for name, value in options if name in _SHOWN]
    netloc = f"{user}@{places}" if user else places
    shown = urlunsplit((parts.scheme, netloc, parts.path, urlencode(kept, safe="/"), ""))
    secrets = {password, unquote(password), *hidden} - {""}
    return shown, sorted(secrets, key=len, reverse=True)


SCHEMA = "composer_ledger"
#: How long a transaction waits for those of others.
BUSY_S = 60
_CONNECT_S = 10
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


class PostgresStore:
    """One database. The password of its URL reaches the server and nothing else."""

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise InputError(
                "a ledger on PostgreSQL needs psycopg: pip install 'composer-pipeline[postgres]'"
            ) from error
        self._psycopg = psycopg
        self.name, self._secrets = without_password(url)
        with self._errors():
            self._db: psycopg.Connection[tuple[Any, ...]] = psycopg.connect(
                url, autocommit=True, connect_timeout=_CONNECT_S, application_name="composer-ledger"
            )
        try:
            with self._errors():
                self._db.execute(f"SET search_path TO {SCHEMA}")
                # A bill must survive a power cut, whatever the server's default is.
                self._db.execute("SET synchronous_commit TO on")
                self._db.execute(f"SET lock_timeout TO '{BUSY_S}s'")
                if not self._has_tables():
                    self._create_tables()
        except ComposerError:
            self._db.close()
            raise

    def _has_tables(self) -> bool:
        rows = self._db.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (SCHEMA,)
        )
        tables = {name for (name,) in rows}
        stamp = None
        if "meta" in tables:
            row = self._db.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()
            stamp = str(row[0]) if row else ""
        return check_version(self.name, tables, stamp)

    def _create_tables(self) -> None:
        with self._db.transaction():
            self._db.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (SCHEMA,))
            self._db.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            if not self._has_tables():  # another process may have been first
                for statement in STATEMENTS:
                    self._db.execute(_adapted(statement))

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Implement :class:`Store`."""
        with self._errors(), self._db.pipeline(), self._db.transaction():
            row = self._db.execute(
                f"SELECT value, {_NOW} FROM meta WHERE name = 'version' FOR UPDATE"
            ).fetchone()
            stamp, now = row or ("", 0)
            check_version(self.name, set(), stamp)
            yield _PostgresSession(self._db, now)

    def read(self, sql: str, params: Sequence[Any] = ()) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Implement :class:`Store`."""
        with self._errors():
            cursor = self._db.execute(_adapted(sql), params)
            return [column.name for column in cursor.description or ()], cursor.fetchall()

    def compact(self) -> None:
        """Rewrite the tables."""
        with self._errors():
            for table in ("call", "attempt", "reply", "event"):
                self._db.execute(f"VACUUM (FULL) {SCHEMA}.{table}")

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Name the ledger in errors, and keep the URL out of them and of their causes."""
        pg = self._psycopg.errors
        try:
            yield
        except pg.DiskFull:
            raise LedgerFull(
                f"ledger {self.name}: no space left on the server's disk; everything in it is kept"
                " and calls in flight stay charged, so free some space and run again to go on"
            ) from None
        except pg.LockNotAvailable:
            raise ComposerError(
                f"ledger {self.name}: another process has kept it locked for {BUSY_S} s"
            ) from None
        except (pg.InsufficientPrivilege, pg.ProgrammingError) as error:
            raise InputError(f"ledger {self.name}: {self._clean(error)}") from None
        except pg.OperationalError as error:
            kind = ComposerError if hasattr(self, "_db") else InputError
            raise kind(f"ledger {self.name}: {self._clean(error)}") from None

    def _clean(self, error: Exception) -> str:
        text = " ".join(str(error).split())
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


class _PostgresSession:
    def __init__(self, db: "psycopg.Connection[tuple[Any, ...]]", now: int) -> None:
        self._db = db
        self.now = now

    def fetch(self, *queries: Query) -> list[list[tuple[Any, ...]]]:
        # In pipeline mode all are sent before the first answer is awaited.
        cursors = [self._db.execute(_adapted(sql), params) for sql, params in queries]
        return [cursor.fetchall() for cursor in cursors]

    def write(self, writes: Sequence[Write]) -> None:
        with contextlib.ExitStack() as stack:
            for sql, rows in writes:
                stack.enter_context(self._db.cursor()).executemany(_adapted(sql), rows)


@cache
def _adapted(sql: str) -> str:
    text = sql.replace("%", "%%").replace("IN :many", "= ANY(?)").replace("?", "%s")
    return re.sub(r"\bBLOB\b", "BYTEA", text)
