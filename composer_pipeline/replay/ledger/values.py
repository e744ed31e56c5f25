"""What the ledger is told and what it answers: values and errors, without any storage.

Belongs here: structs and exceptions. Does not belong here: SQL and rules. All amounts are
int picodollars (1e-12 USD), all times microseconds since 1970 UTC.
"""

from typing import Any, Literal

import msgspec

from composer_pipeline.errors import ComposerError, StorageError


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

    def __init__(self, message: str, value_pico: int, unknown_pico: int) -> None:
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


class Admission(msgspec.Struct, frozen=True):
    """The answer to ``reserve``.

    ``cached``: a reply is there, ``outcome`` says which. ``busy``: someone is asking right
    now. ``wait``: money in flight may come back. ``refused``: ``scope`` has no room.
    ``quarantined``: the teacher once billed more than its worst case, ``why`` says how;
    waiting does not help. ``reserved``: send it.
    """

    kind: Literal["cached", "busy", "wait", "refused", "quarantined", "reserved"]
    attempt: str = ""
    scope: str = ""
    outcome: str = ""
    why: str = ""


class Reply(msgspec.Struct, frozen=True):
    """A stored reply. ``cost`` is ``None`` until the provider has told it."""

    outcome: Literal["billed", "refused"]
    http_status: int
    body: bytes
    cost: int | None
    generation_id: str = ""
    latency_ms: float = 0.0
    obtained: Literal["bought", "recovered"] = "bought"
    detail: str = ""


class ScopeStatus(msgspec.Struct, frozen=True):
    """Picodollars of one scope; ``ceiling`` is ``None`` where nobody set one."""

    ceiling: int | None
    spent: int
    reserved: int
    unknown: int


class UnknownAttempt(msgspec.Struct, frozen=True):
    """An attempt whose bill nobody knows. ``answered``: its key has a reply all the same."""

    id: str
    key: str
    teacher: str
    reserve: int
    generation_id: str
    created_us: int
    answered: bool


class RunKey(msgspec.Struct, frozen=True):
    """A provider key of a run: its hash (never the key) and its usage before the run."""

    run: str
    key_hash: str
    baseline_pico: int
    created_us: int


class SweepResult(msgspec.Struct, frozen=True):
    """What a sweep did: ``attempts`` that were charged ``unknown_pico`` now cost ``swept_pico``.

    ``spent_pico`` is what the run has spent in all, which is what its keys were billed.
    """

    attempts: int
    unknown_pico: int
    swept_pico: int
    spent_pico: int


class Event(msgspec.Struct, frozen=True):
    """Something a person should know, such as ``bound_violation``, ``adopted`` or ``swept``."""

    at_us: int
    kind: str
    teacher: str
    attempt: str
    detail: str
