"""What a database must offer to hold a ledger.

Belongs here: the interface between the rules and a database. Does not belong here: either
database (``replay.ledger.stores.sqlite``, ``replay.ledger.stores.postgres``), and rules.

SQL is written once, in SQLite's words, with ``?`` for a value and ``IN :many`` for a list.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

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

    Every method raises ``InputError`` for a database that is broken or no ledger,
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

    def compact(self) -> None:
        """Write the database anew, without the bytes of what was deleted."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...
