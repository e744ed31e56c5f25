"""What may happen to an attempt, and what that does to money, claims and replies.

Belongs here: the one state machine, for every database. Does not belong here: SQL beyond
rare statements, connections, threads.

An attempt goes ``reserved -> sent -> done | released | unknown -> done | swept``. Admission
holds ``spent + reserved + unknown <= ceiling`` in every scope. A settlement writes the cost
and the reply's bytes together. An attempt whose outcome nobody knows stays charged at its
worst case until its generation, the provider's cache or a sweep tells what it cost. An owner
that seemed dead and was not may still settle, release or give up what became unknown.

Each function checks its arguments, prepares bytes, and returns an :class:`Operation`. When it
runs, an operation looks first and changes then, so one that fails has changed nothing.
"""

import os
import threading
from collections.abc import Sequence

import zstandard

from composer_pipeline.replay.ledger.batch import Attempt, Batch, Operation, dump
from composer_pipeline.replay.ledger.values import Admission, AttemptClosed, Call, Reply

VIOLATION = "bound_violation"

_local = threading.local()


def reserve(
    key: str,
    amount: int,
    scopes: Sequence[str],
    call: Call,
    *,
    headroom: int = 0,
    send: bool = False,
    recover_after_s: float = 0.0,
) -> Operation[Admission]:
    """Admit one call, or say why not; see :meth:`Ledger.reserve`."""
    if amount < 0 or headroom < 0:
        raise ValueError("amounts are not negative")
    names = list(dict.fromkeys(scopes))
    note = (key, call.state_id, call.teacher, call.session_id, call.day, dump(call.meta))

    def run(batch: Batch) -> Admission:
        batch.note(*note)
        if outcome := batch.reply(key):
            return Admission("cached", outcome=outcome)
        if why := batch.quarantine(call.teacher):
            return Admission("quarantined", scope=f"teacher:{call.teacher}", why=why)
        if claim := batch.claim(key):
            if not batch.is_dead(claim[0]):
                return Admission("busy")
            _adopt(batch, claim[0])
        if batch.now - batch.lost.get(key, 0) < recover_after_s * 1_000_000:
            return Admission("busy")  # the provider may still be generating the lost one
        for name in names:
            scope = batch.scope(name)
            settled = scope.spent + scope.unknown + amount + headroom
            if scope.ceiling is not None and settled + scope.reserved > scope.ceiling:
                waits = scope.reserved > 0 and settled <= scope.ceiling
                return Admission("wait" if waits else "refused", scope=name)
        attempt = Attempt(
            id=_new_id(batch.now),
            key=key,
            state="sent" if send else "reserved",
            reserve=amount,
            cost=None,
            scopes=names,
            owner=batch.owner,
            generation_id=None,
            detail="",
            created_us=batch.now,
            ended_us=None,
            teacher=call.teacher,
        )
        batch.add_attempt(attempt)
        batch.set_claim(key, attempt.id)
        batch.move(names, reserved=amount)
        return Admission("reserved", attempt.id)

    return Operation(run, key=key, scopes=names)


def mark_sent(attempt_id: str) -> Operation[None]:
    """Say that the bytes are about to leave; see :meth:`Ledger.mark_sent`."""

    def run(batch: Batch) -> None:
        attempt = batch.attempt(attempt_id)
        if not attempt.open:
            raise _closed(attempt)
        attempt.state = "sent"
        batch.touch(attempt)

    return Operation(run, attempt=attempt_id)


def note_generation(attempt_id: str, generation: str) -> Operation[None]:
    """Remember the provider's id of an answer before it is complete."""

    def run(batch: Batch) -> None:
        attempt = batch.attempt(attempt_id)
        if not attempt.open and attempt.state != "unknown":
            raise _closed(attempt)
        attempt.generation_id = generation
        batch.touch(attempt)

    return Operation(run, attempt=attempt_id)


def settle(attempt_id: str, cost: int, reply: Reply, *, source: str = "") -> Operation[bool]:
    """Write a bill and a reply; see :meth:`Ledger.settle`."""
    if cost < 0:
        raise ValueError("a cost is not negative")
    body = pack(reply.body)

    def run(batch: Batch) -> bool:
        attempt = batch.attempt(attempt_id)
        if attempt.open or attempt.state == "unknown":
            held = _charge(batch, attempt, cost, reply.generation_id)
        elif attempt.state == "swept" or (
            attempt.state == "done"
            and attempt.generation_id
            and attempt.generation_id == reply.generation_id
        ):
            held = True  # its money was settled without it; the reply is still wanted
        else:
            raise _closed(attempt)
        price = _settle_source(batch, attempt, source, reply.cost) if source else reply.cost
        _store(batch, attempt.key, reply, body, price)
        return held

    return Operation(run, attempt=attempt_id, ends=True)


def release(attempt_id: str, detail: str, refusal: Reply | None = None) -> Operation[None]:
    """Give a reservation back; see :meth:`Ledger.release`."""
    body = pack(refusal.body) if refusal else b""

    def run(batch: Batch) -> None:
        attempt = batch.attempt(attempt_id)
        if not attempt.open and attempt.state != "unknown":
            raise _closed(attempt)
        _end(batch, attempt, "released", detail, cost=0)
        if refusal:
            _store(batch, attempt.key, refusal, body, refusal.cost)

    return Operation(run, attempt=attempt_id, ends=True)


def mark_unknown(
    attempt_id: str, detail: str, *, raw: bytes | None = None, generation: str = ""
) -> Operation[None]:
    """Keep the worst case charged; see :meth:`Ledger.mark_unknown`."""
    packed = None if raw is None else pack(raw)

    def run(batch: Batch) -> None:
        attempt = batch.attempt(attempt_id)
        if not attempt.open and attempt.state != "unknown":
            raise _closed(attempt)
        _end(batch, attempt, "unknown", detail or "unknown")
        attempt.generation_id = generation or attempt.generation_id
        attempt.raw = packed

    return Operation(run, attempt=attempt_id, ends=True)


def reconcile(attempt_id: str, cost: int) -> Operation[bool]:
    """Settle an unknown attempt by its generation; see :meth:`Ledger.reconcile`."""
    if cost < 0:
        raise ValueError("a cost is not negative")

    def run(batch: Batch) -> bool:
        attempt = batch.attempt(attempt_id)
        if attempt.state != "unknown":
            return True
        held = _charge(batch, attempt, cost, "")
        batch.later("UPDATE reply SET cost = ? WHERE key = ? AND cost IS NULL", cost, attempt.key)
        return held

    return Operation(run, attempt=attempt_id, ends=True)


def adopt_dead() -> Operation[int]:
    """Take over what dead owners left; see :meth:`Ledger.adopt_dead`."""

    def run(batch: Batch) -> int:
        owners, beats = batch.session.fetch(
            ("SELECT DISTINCT owner FROM attempt WHERE state IN ('reserved', 'sent')", []),
            ("SELECT id FROM owner", []),
        )
        open_owners = {owner for (owner,) in owners}
        for owner in sorted({owner for (owner,) in beats} - open_owners):
            if batch.is_dead(owner):
                batch.later("DELETE FROM owner WHERE id = ?", owner)
        return sum(_adopt(batch, owner) for owner in sorted(open_owners) if batch.is_dead(owner))

    return Operation(run, ends=True)


def leave(owner: str) -> Operation[int]:
    """Give up what this owner still has in flight, as if it had died."""

    def run(batch: Batch) -> int:
        batch.later("DELETE FROM owner WHERE id = ?", owner)
        return _adopt(batch, owner)

    return Operation(run, ends=True)


def outcome(key: str, call: Call) -> Operation[str]:
    """Return what is stored for a key and note that it answers a call."""
    note = (key, call.state_id, call.teacher, call.session_id, call.day, dump(call.meta))

    def run(batch: Batch) -> str:
        found = batch.reply(key)
        if found:
            batch.note(*note)
        return found

    return Operation(run, key=key)


def set_ceiling(name: str, pico: int | None) -> Operation[None]:
    """Set or lift a scope's ceiling."""

    def run(batch: Batch) -> None:
        batch.scope(name).ceiling = pico
        batch.later(
            "INSERT INTO scope (name, ceiling) VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET ceiling = excluded.ceiling",
            name, pico,
        )  # fmt: skip

    return Operation(run, scopes=[name], ends=True)


def quarantine(teacher: str, why: str) -> Operation[None]:
    """Refuse a teacher; see :meth:`Ledger.quarantine`."""
    return Operation(lambda batch: batch.set_quarantine(teacher, why))


def lift_quarantine(teacher: str) -> Operation[bool]:
    """Admit a teacher again; see :meth:`Ledger.lift_quarantine`."""

    def run(batch: Batch) -> bool:
        there = bool(batch.quarantine(teacher))
        if there:
            batch.forget_quarantine(teacher)
            batch.event("quarantine_lifted", teacher, "", "")
        return there

    return Operation(run, ends=True)


def pack(data: bytes) -> bytes:
    """Compress bytes for storage."""
    compressor = getattr(_local, "compressor", None)
    if compressor is None:
        # One for each thread: it is expensive to make and must not be shared.
        compressor = _local.compressor = zstandard.ZstdCompressor(level=3)
    packed: bytes = compressor.compress(data)
    return packed


def violated(batch: Batch, attempt: Attempt, cost: int) -> None:
    """Record that a bill passed its worst case, and refuse the teacher from now on."""
    teacher = attempt.teacher or next(
        (n.removeprefix("teacher:") for n in attempt.scopes if n.startswith("teacher:")), ""
    )
    why = f"a bill of {cost} picodollars passed its worst case of {attempt.reserve}"
    attempt.detail = VIOLATION
    batch.event(VIOLATION, teacher, attempt.id, why)
    if teacher:
        batch.set_quarantine(teacher, f"{VIOLATION}: {why}")


def _charge(batch: Batch, attempt: Attempt, cost: int, generation: str) -> bool:
    detail = "" if attempt.open else f"was unknown: {attempt.detail}"
    _end(batch, attempt, "done", detail, cost=cost)
    attempt.generation_id = generation or attempt.generation_id
    if cost > attempt.reserve:
        violated(batch, attempt, cost)
    return cost <= attempt.reserve


def _settle_source(batch: Batch, hit: Attempt, source: str, cost: int | None) -> int | None:
    """Settle the attempt that bought what a cache hit returned; return what it cost."""
    candidates = [a for a in batch.troubled_attempts(hit.key) if a.id != hit.id]
    named = [a for a in candidates if a.generation_id == source]
    for attempt in named:
        if attempt.state == "done" and attempt.cost is not None:
            return attempt.cost
    nameless = [a for a in candidates if a.generation_id is None]
    swept = [a for a in named + nameless if a.state == "swept"]
    if swept:
        # A sweep may have charged it already. An attempt that is still unknown stays so:
        # only the next sweep can tell whether it was billed besides.
        return cost
    for attempt in named + nameless:
        if attempt.state != "unknown":
            continue
        if cost is None:  # asked for later, by its generation
            attempt.generation_id = source
            batch.touch(attempt)
        else:
            _charge(batch, attempt, cost, source)
        return cost
    return 0  # bought through another ledger: nothing of it is charged here


def _adopt(batch: Batch, owner: str) -> int:
    attempts = batch.open_attempts(owner)
    for attempt in attempts:
        state = "unknown" if attempt.state == "sent" else "released"
        _end(batch, attempt, state, "owner died")
        batch.event("adopted", attempt.teacher, attempt.id, f"{state}: {owner}")
    (stray,) = batch.session.fetch(("SELECT key FROM claim WHERE owner = ?", [owner]))
    for (key,) in stray:
        claim = batch.claim(key)
        if claim and claim[0] == owner:
            batch.set_claim(key, None)
    return len(attempts)


def _end(
    batch: Batch, attempt: Attempt, state: str, detail: str, *, cost: int | None = None
) -> None:
    """Move an open or unknown attempt to its end, with its money and its claim."""
    held = {"unknown": -attempt.reserve} if attempt.state == "unknown" else {
        "reserved": -attempt.reserve
    }  # fmt: skip
    if state == "unknown":
        held["unknown"] = held.get("unknown", 0) + attempt.reserve
        batch.lost[attempt.key] = max(attempt.created_us, batch.lost.get(attempt.key, 0))
    batch.move(attempt.scopes, **held, spent=cost or 0)
    claim = batch.claim(attempt.key)
    if claim and (claim[1] == attempt.id or (not claim[1] and claim[0] == attempt.owner)):
        batch.set_claim(attempt.key, None)
    attempt.state, attempt.detail, attempt.cost = state, detail, cost
    attempt.ended_us = batch.now
    batch.touch(attempt)


def _store(batch: Batch, key: str, reply: Reply, body: bytes, cost: int | None) -> None:
    rest = (reply.http_status, body, cost, reply.generation_id, reply.latency_ms)
    batch.store_reply(key, reply.outcome, (*rest, reply.obtained, reply.detail))


def _new_id(now: int) -> str:
    """Ids that grow with time, so that rows of one moment lie in few pages."""
    return f"{now:016x}{os.urandom(8).hex()}"


def _closed(attempt: Attempt) -> AttemptClosed:
    return AttemptClosed(f"attempt {attempt.id} is not open: {attempt.state} {attempt.detail}")
