"""The budget ledger: what may be spent, what was spent, and every reply that was paid for.

Belongs here: opening a ledger, running operations on it, one durable transaction each, and
asking it. Does not belong here: the operations (``replay.ledger.rules``), databases
(``replay.ledger.stores``), many operations in one transaction (``replay.ledger.group_commit``),
HTTP, prices of models, and what a reply means.

Any number of processes share a ceiling exactly: ``spent + reserved + unknown`` of a scope
never passes its ceiling by admission. Money is int64 picodollars (1e-12 USD).
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from composer_pipeline.errors import ComposerError
from composer_pipeline.money import Pico, to_usd
from composer_pipeline.replay.ledger import ceilings, queries, rules
from composer_pipeline.replay.ledger.batch import BEAT_S, Batch, Operation
from composer_pipeline.replay.ledger.place import (
    LEDGER_VARIABLE,
    check_scope,
    is_url,
    ledger_target,
)
from composer_pipeline.replay.ledger.process_identity import new_owner, retire
from composer_pipeline.replay.ledger.stores.erase import erase
from composer_pipeline.replay.ledger.stores.store import Store
from composer_pipeline.replay.ledger.values import (
    Admission,
    AttemptClosed,
    Bill,
    CacheHit,
    Call,
    Event,
    LedgerFull,
    NotQuiescent,
    Reply,
    RunKey,
    ScopeStatus,
    SweepMismatch,
    SweepResult,
    UnknownAttempt,
)

__all__ = [
    "LEDGER_VARIABLE",
    "Admission",
    "AttemptClosed",
    "Bill",
    "CacheHit",
    "Call",
    "Event",
    "Ledger",
    "LedgerFull",
    "NotQuiescent",
    "Reply",
    "RunKey",
    "ScopeStatus",
    "SweepMismatch",
    "SweepResult",
    "UnknownAttempt",
    "check_scope",
    "existing_ledger",
    "is_url",
    "ledger_target",
    "open_ledger",
]

T = TypeVar("T")
#: Clocks of machines that share a ledger may differ by so much.
CLOCK_SLACK_S = 60.0


class Ledger:
    """One ledger: a file, or a PostgreSQL database by URL.

    Safe to open from several processes, and to use from several threads of one.

    Raises:
        InputError: it cannot be opened, is no ledger, or is a newer version's.
    """

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self._store = _open_store(target)
        self.name = self._store.name
        self.path: Path | None = None if is_url(target) else Path(target)
        self.owner = new_owner()
        self._lock = threading.RLock()
        self._beat = 0.0

    def __repr__(self) -> str:
        return f"Ledger({self.name})"

    def close(self) -> None:
        """Give up what this ledger object still has in flight, and close the database.

        What was reserved is released, what was sent becomes unknown; another owner would
        otherwise do the same once this process has ended.
        """
        with self._lock, contextlib.suppress(ComposerError):
            retire(self.owner)
            if self._beat:
                self._beat = time.monotonic()  # no further heartbeat
                self.apply([rules.leave(self.owner)])
            self._beat = 0.0
        self._store.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def apply(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        """Run operations in order in one durable transaction.

        Returns:
            The result of each, or the exception of one that failed; it changed nothing.

        Raises:
            ComposerError: the transaction failed as a whole and nothing was written.
        """
        results: list[Any] = []
        with self._lock:
            with self._store.transaction() as session:
                batch = Batch(session, self.owner, operations)
                for operation in operations:
                    try:
                        results.append(operation.run(batch))
                    except (AttemptClosed, ComposerError) as error:
                        results.append(error)
                beat = time.monotonic()
                due = not self._beat or beat - self._beat >= BEAT_S
                if due:
                    batch.beat()
                batch.flush()
            if due:
                self._beat = beat
        return results

    def do(self, operation: Operation[T]) -> T:
        """Run one operation of ``replay.ledger.rules`` in a durable transaction.

        Raises:
            AttemptClosed: the operation needs an attempt that has ended.
            ComposerError: it did not take place, or (a full disk) nothing was written.
        """
        (result,) = self.apply([operation])
        if isinstance(result, Exception):
            raise result
        value: T = result
        return value

    def erase(self, sessions: Sequence[str]) -> int:
        """Delete what was asked and answered about sessions; return how many replies.

        Every amount stays. See :func:`composer_pipeline.replay.ledger.stores.erase.erase`.
        """
        self.do(rules.adopt_dead())
        with self._lock:
            return erase(self._store, sessions)

    def beat(self) -> None:
        """Say that this owner lives. Writes do it by themselves every 10 s."""
        self._beat = 0.0
        self.apply([])

    # -- questions ---------------------------------------------------------------

    def check_clock(self) -> None:
        """See that the clock was not set back behind what the ledger has recorded.

        Raises:
            ComposerError: it was; days and waits would be wrong.
        """
        with self._lock:
            ahead_s = queries.newest(self._store) / 1_000_000 - time.time()
        if ahead_s > CLOCK_SLACK_S:
            raise ComposerError(
                f"ledger {self.name} was written {ahead_s:.0f} s later than this machine's clock"
                " says it is now; set the clock right, or its days and waits are wrong"
            )

    def status(self) -> dict[str, ScopeStatus]:
        """Return every scope's ceiling and sums."""
        with self._lock:
            return queries.status(self._store)

    def overspent(self) -> dict[str, Pico]:
        """Return scope -> what was charged above the ceiling of that moment; none is expected.

        A ceiling that was set below what was spent is no overspend.
        """
        with self._lock:
            return ceilings.overspent(self._store)

    def sums_that_differ(self) -> list[str]:
        """Return the scopes whose sums are not those of their attempts; none in a whole ledger."""
        with self._lock:
            return queries.sums_that_differ(self._store)

    def kept_bytes(self) -> list[tuple[str, bytes]]:
        """Return (session, bytes) of every reply, and of what attempts keep of theirs."""
        with self._lock:
            return list(queries.kept_bytes(self._store))

    def noted(self) -> dict[tuple[str, str], int]:
        """Return (teacher, day) -> how many questions were ever noted."""
        with self._lock:
            return queries.noted(self._store)

    def run_keys(self, run_scope: str) -> list[RunKey]:
        """Return the keys of a run, the oldest first."""
        with self._lock:
            return queries.run_keys(self._store, run_scope)

    def unsettled_generations(self) -> list[tuple[str, str]]:
        """Return (attempt, generation id) of unknown attempts whose generation is known."""
        with self._lock:
            return queries.unsettled_generations(self._store)

    def unknown_attempts(self, scope: str = "") -> list[UnknownAttempt]:
        """Return the unknown attempts of a scope (of all when empty), the oldest first."""
        with self._lock:
            return queries.unknown_attempts(self._store, scope)

    def quarantined(self) -> dict[str, str]:
        """Return teacher -> why."""
        with self._lock:
            return queries.quarantined(self._store)

    def events(self, kind: str = "") -> list[Event]:
        """Return the events of a kind (all when empty), the oldest first."""
        with self._lock:
            return queries.events(self._store, kind)

    def has_reply(self, key: str) -> bool:
        """Say whether a reply (or a final refusal) is stored for the key."""
        return bool(self.replied([key]))

    def replied(self, keys: Iterable[str]) -> set[str]:
        """Return those of some keys that have a reply or a final refusal, in one query."""
        with self._lock:
            return queries.replied(self._store, keys)

    def metas(self, teacher: str) -> list[dict[str, Any]]:
        """Return each different ``Call.meta`` of a teacher's calls."""
        with self._lock:
            return queries.metas(self._store, teacher)

    def unknown_calls(self) -> set[tuple[str, str]]:
        """Return (state_id, teacher) of calls that may have been paid for and have no reply."""
        with self._lock:
            return queries.unknown_calls(self._store)

    def rows(self, teacher: str, day: str) -> list[dict[str, Any]]:
        """Return the calls of a partition with their reply, or with ``outcome='unknown'``.

        Calls that have neither a reply nor an unknown attempt are left out. ``body`` is
        the raw reply.
        """
        with self._lock:
            return queries.partition(self._store, teacher, day)

    def bought(self, teacher: str, day: str) -> list[tuple[str, dict[str, Any]]]:
        """Return (state_id, ``Call.meta``) of a partition's paid answers, the oldest first."""
        with self._lock:
            return queries.bought(self._store, teacher, day)

    def answered(self, teacher: str, day: str) -> int:
        """Return how many rows of :meth:`rows` have a reply; it only ever grows."""
        with self._lock:
            return queries.answered(self._store, teacher, day)


def open_ledger(target: str | os.PathLike[str]) -> Ledger:
    """Open or create the ledger at a path or a ``postgresql://`` URL.

    Raises:
        InputError: see :class:`Ledger`.
    """
    return Ledger(target)


def existing_ledger(target: str | os.PathLike[str]) -> Ledger | None:
    """Open a ledger; ``None``, and nothing created, where its file does not exist."""
    return Ledger(target) if is_url(target) or Path(target).exists() else None


def _open_store(target: str | os.PathLike[str]) -> Store:
    if is_url(target):
        from composer_pipeline.replay.ledger.stores.postgres import PostgresStore

        return PostgresStore(str(target))
    from composer_pipeline.replay.ledger.stores.sqlite import SqliteStore

    return SqliteStore(target)


def standing_ceilings(target: str | os.PathLike[str], today: date) -> list[str]:
    """Return which scopes that outlive a run have a ceiling now: the month, or everything.

    Args:
        target: path or URL; a ledger that does not exist has none and is not created.
        today: in UTC.
    """
    ledger = existing_ledger(target)
    if ledger is None:
        return []
    with ledger:
        scopes = ledger.status()
    names = ("global", f"month:{today:%Y-%m}")
    return [n for n in names if n in scopes and scopes[n].ceiling is not None]


def budget_report(target: str | os.PathLike[str]) -> dict[str, Any]:
    """Return every scope of a ledger with exact amounts in USD, as decimal text.

    Args:
        target: path or URL; a ledger that does not exist has no scopes and is not created.

    Returns:
        ``ledger`` (its name), ``scopes`` ({scope, ceiling_usd, spent_usd, reserved_usd,
        unknown_usd}; a ceiling of ``None`` is none) and ``quarantined`` (teacher -> why).
    """
    ledger = existing_ledger(target)
    if ledger is None:
        return {"ledger": str(target), "scopes": [], "quarantined": {}}
    with ledger:
        scopes = [
            {
                "scope": name,
                "ceiling_usd": None if held.ceiling is None else to_usd(held.ceiling),
                "spent_usd": to_usd(held.spent),
                "reserved_usd": to_usd(held.reserved),
                "unknown_usd": to_usd(held.unknown),
            }
            for name, held in ledger.status().items()
        ]
        return {"ledger": ledger.name, "scopes": scopes, "quarantined": ledger.quarantined()}
