"""The values and errors of the ledger, and what a database must offer to hold one.

Amounts are :data:`~composer_pipeline.money.Pico`, times are microseconds since 1970 UTC.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import msgspec

from composer_pipeline.errors import ComposerError, StorageError
from composer_pipeline.money import NOTHING, Pico


class AttemptClosed(RuntimeError):
    """The attempt is not open: it has ended, or was adopted because its owner seemed dead."""


class LedgerFull(StorageError):
    """The ledger's disk is full. What was written before is intact."""


class NotQuiescent(ComposerError):
    """A sweep came too early. ``wait_s``: seconds of grace left; 0 while calls are in flight."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class SweepMismatch(ComposerError):
    """The provider's usage cannot be explained by the unknown attempts of a run."""

    def __init__(self, message: str, value_pico: int, unknown_pico: Pico) -> None:
        super().__init__(message)
        self.value_pico = value_pico
        self.unknown_pico = unknown_pico


class Call(msgspec.Struct, frozen=True):
    """The question behind a key, with all that the lake's row needs besides the reply."""

    state_id: str
    teacher: str
    session_id: str
    day: str
    meta: dict[str, Any]


class Admission(msgspec.Struct, frozen=True):
    """The answer to a reservation.

    ``reserved``: send the call. ``cached``: there is a reply, ``outcome`` says which. ``busy``:
    the key is in flight. ``wait``: money in flight may come back. ``refused``: ``scope`` has no
    room. ``quarantined``: the teacher once billed more than its worst case, see ``why``.
    """

    kind: Literal["cached", "busy", "wait", "refused", "quarantined", "reserved"]
    attempt: str = ""
    scope: str = ""
    outcome: str = ""
    why: str = ""


class Bill(msgspec.Struct, frozen=True):
    """What the provider charged for this very answer."""

    cost: Pico


class CacheHit(msgspec.Struct, frozen=True):
    """A free answer from the provider's response cache.

    ``source`` is the generation that was billed for it once, ``source_cost`` what that one cost,
    ``None`` while the provider does not say; it is never the hit's own cost of nothing.
    """

    source: str
    source_cost: Pico | None


class Reply(msgspec.Struct, frozen=True):
    """An answer as it came. ``detail`` says why a refusal is one."""

    http_status: int
    body: bytes
    generation_id: str = ""
    latency_ms: float = 0.0
    detail: str = ""


class Scope(msgspec.Struct):
    """The ceiling and sums of a scope; ``ceiling`` is ``None`` where nobody set one."""

    ceiling: Pico | None
    spent: Pico = NOTHING
    reserved: Pico = NOTHING
    unknown: Pico = NOTHING

    @property
    def held(self) -> Pico:
        """What may still be spent: calls in flight, and those whose outcome is unknown."""
        return Pico(self.reserved + self.unknown)


class UnknownAttempt(msgspec.Struct, frozen=True):
    """An attempt whose bill is unknown. ``answered``: its key has a reply all the same."""

    id: str
    key: str
    teacher: str
    reserve: Pico
    generation_id: str
    created_us: int
    answered: bool


class KeyBaseline(msgspec.Struct, frozen=True):
    """A provider key of a run: its hash (never the key) and its usage before the run."""

    key_hash: str
    baseline_pico: Pico
    created_us: int


class SweepResult(msgspec.Struct, frozen=True):
    """``attempts`` that were charged ``unknown_pico`` now cost ``swept_pico``.

    ``spent_pico`` is what the run has spent in all, which is what its keys were billed.
    """

    attempts: int
    unknown_pico: Pico
    swept_pico: Pico
    spent_pico: Pico


#: The columns of ``attempt`` in the order of :class:`Attempt`, ``raw`` apart.
COLUMNS = (
    "id, key, state, reserve, cost, scopes, owner, generation_id, detail, created_us,"
    " ended_us, teacher, digest"
)


class Attempt(msgspec.Struct):
    """One row of ``attempt``. ``digest`` names the exact bytes that were sent."""

    id: str
    key: str
    state: str
    reserve: Pico
    cost: Pico | None
    scopes: list[str]
    owner: str
    generation_id: str | None
    detail: str
    created_us: int
    ended_us: int | None
    teacher: str
    digest: str
    #: Compressed bytes of an answer; set only where this transaction writes them.
    raw: bytes | None = None

    @property
    def open(self) -> bool:
        """Whether it is in flight, as far as the ledger knows."""
        return self.state == "sent"

    def inserted(self) -> tuple[Any, ...]:
        """Return the values of a new row, ``raw`` last."""
        return (
            self.id, self.key, self.state, self.reserve, self.cost, dump(self.scopes), self.owner,
            self.generation_id, self.detail, self.created_us, self.ended_us, self.teacher,
            self.digest, self.raw,
        )  # fmt: skip

    def updated(self) -> tuple[Any, ...]:
        """Return the values that may have changed, and the id."""
        return (
            self.state, self.cost, self.generation_id, self.detail, self.raw, self.ended_us,
            self.id,
        )  # fmt: skip


def dump(value: Any) -> str:
    """Return a value as JSON text."""
    return msgspec.json.encode(value).decode()


#: Reads the names that :func:`dump` wrote to ``attempt.scopes``.
read_names = msgspec.json.Decoder(list[str]).decode

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

    Every method raises ``InputError`` for a database that is broken or no ledger, ``LedgerFull``
    where its disk is full, and ``ComposerError`` where it cannot be reached.
    """

    #: For messages; never with a password.
    name: str

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Open the write transaction; it is durable once the block is left."""
        ...

    def read(self, sql: str, params: Sequence[Any] = ()) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Run one query outside a transaction; return its column names and rows."""
        ...

    def compact(self) -> None:
        """Rewrite the database without the bytes of what was deleted."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...
