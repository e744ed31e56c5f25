"""What the ledger is told and what it answers: values and errors, without any storage.

Belongs here: structs and exceptions. Does not belong here: SQL and rules. Amounts are
:data:`~composer_pipeline.money.Pico`, times microseconds since 1970 UTC.
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
    """A sweep came too early. ``wait_s``: seconds of grace left; 0 while calls are open."""

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
    """Which question a key stands for; enough to rebuild the lake's row without the state."""

    state_id: str
    teacher: str
    session_id: str
    day: str
    meta: dict[str, Any]


class Asked(msgspec.Struct, frozen=True):
    """What a call asks and with which bytes, where its key does not cover all of them.

    Attributes:
        key: what the call goes under.
        digest: names the exact bytes; the key where empty.
        cap: the part of the bytes that the key leaves out.
        keys: the keys under which the same may have been asked before, the one for new calls
            first; the key alone where empty.
        kept_s: for how long the provider may answer lost bytes again for nothing.
        tried: digests of bytes that need not be asked again.
    """

    key: str
    digest: str = ""
    cap: str = ""
    keys: tuple[str, ...] = ()
    kept_s: float = 0.0
    tried: tuple[str, ...] = ()


class Admission(msgspec.Struct, frozen=True):
    """The answer to ``reserve``.

    ``cached``: a reply is there, ``outcome`` says which. ``resume``: the same may have been
    paid for under ``key`` with the bytes of ``digest`` and ``cap``; ask with those, or, where
    ``digest`` is empty, with those of new calls. ``busy``: someone is asking right now.
    ``wait``: money in flight may come back. ``refused``: ``scope`` has no room.
    ``quarantined``: the teacher once billed more than its worst case, ``why`` says how;
    waiting does not help. ``reserved``: send it.
    """

    kind: Literal["cached", "resume", "busy", "wait", "refused", "quarantined", "reserved"]
    attempt: str = ""
    scope: str = ""
    outcome: str = ""
    why: str = ""
    key: str = ""
    digest: str = ""
    cap: str = ""


class Bill(msgspec.Struct, frozen=True):
    """What the provider charged for this very answer."""

    cost: Pico


class CacheHit(msgspec.Struct, frozen=True):
    """An answer for nothing, out of the provider's response cache.

    ``source`` is the generation that was billed for it once. ``source_cost`` is what that one
    cost, or ``None`` while the provider does not tell: never the hit's own cost of nothing.
    """

    source: str
    source_cost: Pico | None


class Reply(msgspec.Struct, frozen=True):
    """An answer as it came, to be stored with its key. ``detail`` says why one is a refusal."""

    http_status: int
    body: bytes
    generation_id: str = ""
    latency_ms: float = 0.0
    detail: str = ""


class ScopeStatus(msgspec.Struct, frozen=True):
    """The sums of one scope; ``ceiling`` is ``None`` where nobody set one."""

    ceiling: Pico | None
    spent: Pico
    reserved: Pico
    unknown: Pico

    @property
    def held(self) -> Pico:
        """What may still turn out to be spent: calls in flight, and those without an outcome."""
        return Pico(self.reserved + self.unknown)


class UnknownAttempt(msgspec.Struct, frozen=True):
    """An attempt whose bill nobody knows. ``answered``: its key has a reply all the same."""

    id: str
    key: str
    teacher: str
    reserve: Pico
    generation_id: str
    created_us: int
    answered: bool


class RunKey(msgspec.Struct, frozen=True):
    """A provider key of a run: its hash (never the key) and its usage before the run."""

    run: str
    key_hash: str
    baseline_pico: Pico
    created_us: int


class SweepResult(msgspec.Struct, frozen=True):
    """What a sweep did: ``attempts`` that were charged ``unknown_pico`` now cost ``swept_pico``.

    ``spent_pico`` is what the run has spent in all, which is what its keys were billed.
    """

    attempts: int
    unknown_pico: Pico
    swept_pico: Pico
    spent_pico: Pico


class Event(msgspec.Struct, frozen=True):
    """Something a person should know, such as ``bound_violation``, ``adopted`` or ``swept``.

    ``teacher`` is the scope where a ceiling was changed.
    """

    at_us: int
    kind: str
    teacher: str
    attempt: str
    detail: str


#: The columns of ``attempt``, in the order of :class:`Attempt`.
COLUMNS = (
    "id, key, state, reserve, cost, scopes, owner, generation_id, detail, created_us,"
    " ended_us, teacher, digest, cap"
)


class Attempt(msgspec.Struct):
    """One row of ``attempt``; ``raw`` only where this batch writes it."""

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
    #: Names the exact bytes that were sent; empty where nobody knows them any more.
    digest: str
    #: The part of them that the key leaves out.
    cap: str
    raw: bytes | None = None

    @property
    def open(self) -> bool:
        """Whether it is in flight, as far as the ledger knows."""
        return self.state in ("reserved", "sent")


class Scope(msgspec.Struct):
    """One row of ``scope``."""

    ceiling: Pico | None
    spent: Pico = NOTHING
    reserved: Pico = NOTHING
    unknown: Pico = NOTHING


def inserted(a: Attempt | None) -> tuple[Any, ...]:
    """Return the values of a new attempt, in the order of its columns and ``raw``."""
    assert a is not None
    return (
        a.id, a.key, a.state, a.reserve, a.cost, dump(a.scopes), a.owner, a.generation_id,
        a.detail, a.created_us, a.ended_us, a.teacher, a.digest, a.cap, a.raw,
    )  # fmt: skip


def updated(a: Attempt | None) -> tuple[Any, ...]:
    """Return the values that may have changed, and the id."""
    assert a is not None
    return (a.state, a.cost, a.generation_id, a.detail, a.raw, a.ended_us, a.id)


def dump(value: Any) -> str:
    """Return a value as JSON text."""
    return msgspec.json.encode(value).decode()


_decoder = msgspec.json.Decoder(list[str])


def read_list(text: str) -> list[str]:
    """Read a list of names that :func:`dump` wrote."""
    return _decoder.decode(text)


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
