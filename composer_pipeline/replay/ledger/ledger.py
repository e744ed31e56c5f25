"""The budget ledger: what may be spent, what was spent, and every reply that was paid for.

Belongs here: opening a ledger and its methods, one durable transaction each. Does not belong
here: the state machine (``replay.ledger.rules``), databases (``replay.ledger.sqlite``,
``replay.ledger.postgres``), many operations in one transaction (``replay.ledger.group_commit``),
HTTP, prices of models, and what a reply means.

Any number of processes share a ceiling exactly: ``spent + reserved + unknown`` of a scope
never passes its ceiling by admission. Money is int64 picodollars (1e-12 USD).
"""

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.money import to_pico, to_usd
from composer_pipeline.replay.ledger import queries, rules
from composer_pipeline.replay.ledger import sweep as ledger_sweep
from composer_pipeline.replay.ledger.batch import BEAT_S, Batch, Operation
from composer_pipeline.replay.ledger.place import (
    LEDGER_VARIABLE,
    check_scope,
    is_url,
    ledger_target,
)
from composer_pipeline.replay.ledger.process_identity import new_owner, retire
from composer_pipeline.replay.ledger.store import Store
from composer_pipeline.replay.ledger.values import (
    Admission,
    AttemptClosed,
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
                batch = Batch(session, self.owner)
                batch.prefetch(operations)
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

    def _do(self, operation: Operation[T]) -> T:
        (result,) = self.apply([operation])
        if isinstance(result, Exception):
            raise result
        value: T = result
        return value

    # -- ceilings ----------------------------------------------------------------

    def set_ceiling(self, scope: str, usd: Decimal | None) -> None:
        """Set or (``None``) lift the ceiling of a scope; the next admission reads it.

        Raises:
            InputError: the ceiling is no positive amount.
        """
        pico = None if usd is None else to_pico(usd)
        if pico is not None and pico <= 0:
            raise InputError(f"the ceiling of {scope} must be above 0 USD")
        self._do(rules.set_ceiling(scope, pico))

    def status(self) -> dict[str, ScopeStatus]:
        """Return every scope's ceiling and sums."""
        with self._lock:
            return queries.status(self._store)

    # -- the state machine -------------------------------------------------------

    def reserve(
        self,
        key: str,
        amount: int,
        scopes: Sequence[str],
        call: Call,
        *,
        headroom: int = 0,
        send: bool = False,
        recover_after_s: float = 0.0,
    ) -> Admission:
        """Admit one call in one transaction, or say why not.

        Args:
            key: hash of the exact bytes to send.
            amount: worst case in picodollars; charged to all ``scopes`` or to none.
            scopes: names such as ``run:…``, ``day:2026-11-16``, ``teacher:…``, ``global``.
            call: remembered for the lake, also where a reply is already there.
            headroom: picodollars to leave free, for recoveries.
            send: mark it sent in the same transaction.
            recover_after_s: answer ``busy`` while an unknown attempt of the key is younger,
                whoever lost it: until its generation has ended, the same bytes are bought
                again, and after that they are a hit of the response cache.
        """
        return self._do(
            rules.reserve(
                key, amount, scopes, call,
                headroom=headroom, send=send, recover_after_s=recover_after_s,
            )
        )  # fmt: skip

    def mark_sent(self, attempt: str) -> None:
        """Say that the bytes are about to leave; from here on money may be owed.

        Raises:
            AttemptClosed: it was adopted meanwhile; do not send.
        """
        self._do(rules.mark_sent(attempt))

    def note_generation(self, attempt: str, generation: str) -> None:
        """Journal the provider's id of an answer as soon as it is known."""
        self._do(rules.note_generation(attempt, generation))

    def settle(self, attempt: str, cost: int, reply: Reply, *, source: str = "") -> bool:
        """Write the billed cost and the reply's bytes in one transaction.

        Args:
            attempt: the attempt that was answered.
            cost: what this attempt was billed, in picodollars (0 for a cache hit).
            reply: the reply; ``reply.cost`` is what the answer cost in the end.
            source: generation that was billed for a cache hit. It settles one earlier
                unknown attempt of the key with ``reply.cost``, or is noted on it for
                :meth:`unsettled_generations` where that is still ``None``.

        Returns:
            False when the cost passed the reservation (a bound violation). The teacher is
            then quarantined.

        Raises:
            AttemptClosed: the attempt was settled or released before.
        """
        return self._do(rules.settle(attempt, cost, reply, source=source))

    def reconcile(self, attempt: str, cost: int) -> bool:
        """Settle an unknown attempt whose generation's cost has become known.

        Args:
            attempt: nothing happens where it is not unknown any more.
            cost: all that it cost the user, see :func:`composer_pipeline.money.billed_pico`.

        Returns:
            False when the cost passed the reservation; the teacher is then quarantined.
        """
        return self._do(rules.reconcile(attempt, cost))

    def release(self, attempt: str, detail: str, refusal: Reply | None = None) -> None:
        """Give the reservation back: the attempt is known not to be billed.

        ``refusal`` is stored as the key's reply where asking again would change nothing.

        Raises:
            AttemptClosed: the attempt is not open.
        """
        self._do(rules.release(attempt, detail, refusal))

    def mark_unknown(
        self, attempt: str, detail: str, *, raw: bytes | None = None, generation: str = ""
    ) -> None:
        """Keep the worst case charged: nobody knows whether it was billed.

        Raises:
            AttemptClosed: the attempt is not open.
        """
        self._do(rules.mark_unknown(attempt, detail, raw=raw, generation=generation))

    def adopt_dead(self) -> int:
        """Take over what dead owners left: unsent is released, sent becomes unknown."""
        return self._do(rules.adopt_dead())

    def beat(self) -> None:
        """Say that this owner lives. Writes do it by themselves every 10 s."""
        self._beat = 0.0
        self.apply([])

    # -- the provider's bill -----------------------------------------------------

    def set_run_key(self, run_scope: str, key_hash: str, baseline_pico: int) -> None:
        """Remember that a run uses a key of its own, and the key's usage before the run.

        Args:
            run_scope: ``run:…``.
            key_hash: a hash of the key, or the provider's; never the key.
            baseline_pico: the key's usage in picodollars. The first one given stays.
        """
        self._do(ledger_sweep.set_run_key(run_scope, key_hash, baseline_pico))

    def run_keys(self, run_scope: str) -> list[RunKey]:
        """Return the keys of a run, the oldest first."""
        with self._lock:
            return queries.run_keys(self._store, run_scope)

    def sweep(
        self, run_scope: str, key_usage_pico: int, baseline_pico: int, *, grace_s: float = 0.0
    ) -> SweepResult:
        """Charge a run's unknown attempts what they cost, by the meter of the run's own keys.

        Args:
            run_scope: ``run:…``; all its calls used keys that nothing else used.
            key_usage_pico: usage of these keys now, in picodollars, own provider keys
                (BYOK) included where costs include them.
            baseline_pico: their usage before the run.
            grace_s: seconds since the last change in the run; at least the provider's
                timeout plus the delay of its meter.

        Returns:
            What was swept. With nothing unknown, that usage and ledger agree exactly.

        Raises:
            NotQuiescent: calls are in flight, or the grace is not over.
            SweepMismatch: not ``0 <= usage - baseline - spent <= charged as unknown``.
        """
        return self._do(ledger_sweep.sweep(run_scope, key_usage_pico, baseline_pico, grace_s))

    def unsettled_generations(self) -> list[tuple[str, str]]:
        """Return (attempt, generation id) of unknown attempts whose generation is known."""
        with self._lock:
            return queries.unsettled_generations(self._store)

    def unknown_attempts(self, scope: str = "") -> list[UnknownAttempt]:
        """Return the unknown attempts of a scope (of all when empty), the oldest first."""
        with self._lock:
            return queries.unknown_attempts(self._store, scope)

    # -- quarantine and events ---------------------------------------------------

    def quarantine(self, teacher: str, why: str) -> None:
        """Refuse every admission of a teacher until it is lifted."""
        self._do(rules.quarantine(teacher, why))

    def lift_quarantine(self, teacher: str) -> bool:
        """Admit a teacher again; return whether it was quarantined."""
        return self._do(rules.lift_quarantine(teacher))

    def quarantined(self) -> dict[str, str]:
        """Return teacher -> why."""
        with self._lock:
            return queries.quarantined(self._store)

    def events(self, kind: str = "") -> list[Event]:
        """Return the events of a kind (all when empty), the oldest first."""
        with self._lock:
            return queries.events(self._store, kind)

    # -- questions ---------------------------------------------------------------

    def has_reply(self, key: str) -> bool:
        """Say whether a reply (or a final refusal) is stored for the key."""
        with self._lock:
            return queries.has_reply(self._store, key)

    def outcome(self, key: str, call: Call) -> str:
        """Return ``billed``, ``refused`` or nothing, and note that it also answers ``call``."""
        with self._lock:
            found, noted = queries.answer(self._store, key, call)
        if found and not noted:
            self._do(rules.outcome(key, call))
        return found

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
        from composer_pipeline.replay.ledger.postgres import PostgresStore

        return PostgresStore(str(target))
    from composer_pipeline.replay.ledger.sqlite import SqliteStore

    return SqliteStore(target)


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
