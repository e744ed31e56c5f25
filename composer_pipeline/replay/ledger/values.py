"""What the ledger is told and what it answers: values and errors, without any storage.

Belongs here: structs and exceptions. Does not belong here: SQL and rules. Amounts are
:data:`~composer_pipeline.money.Pico`, times microseconds since 1970 UTC.
"""

from typing import Any, Literal

import msgspec

from composer_pipeline.errors import ComposerError, StorageError
from composer_pipeline.money import Pico


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
