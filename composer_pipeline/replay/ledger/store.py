"""What a database must offer to hold a ledger.

Belongs here: the interface between the rules and a database. Does not belong here: either
database (``replay.ledger.sqlite``, ``replay.ledger.postgres``), and rules.

SQL is written once, in SQLite's words, with ``?`` for a value and ``IN :many`` for a list.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from composer_pipeline.errors import InputError
from composer_pipeline.replay.ledger.schema import V1_TABLES, VERSION

#: A statement and its parameters; a list as a parameter belongs to ``IN :many``.
Query = tuple[str, Sequence[Any]]
#: A statement and the parameters of each of its runs.
Write = tuple[str, Sequence[Sequence[Any]]]


class Session(Protocol):
    """One write transaction. No other one runs on the same ledger meanwhile."""

    #: Microseconds since 1970, by a clock that all users of the ledger share.
    now: int

    def fetch(self, *queries: Query) -> list[list[tuple[Any, ...]]]:
        """Run queries in one round trip; return the rows of each."""
        ...

    def write(self, writes: Sequence[Write]) -> None:
        """Run statements for their effect, in order."""
        ...


class Store(Protocol):
    """A database with the ledger's tables.

    Every method raises :class:`InputError` for a database that is broken or no ledger,
    ``LedgerFull`` where its disk is full, and ``ComposerError`` where it cannot be reached.
    """

    #: For messages; never with a password.
    name: str

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Open the write transaction; it is durable when the block has been left."""
        ...

    def read(self, sql: str, params: Sequence[Any] = ()) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Run one query outside a transaction; return its column names and rows."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


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
