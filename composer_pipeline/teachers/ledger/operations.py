"""Every operation on a ledger: what may happen to an attempt, and what it does to money.

An attempt goes ``sent -> done | released | unknown -> done | swept``. Admission holds
``spent + reserved + unknown <= ceiling`` in every scope. A settlement writes the cost and the
reply's bytes together. An attempt whose outcome is unknown stays charged at its worst case until
its generation, the provider's cache or a sweep tells what it cost. An owner that seemed dead and
was not may still settle, release or give up what became unknown.

Each function checks its arguments, prepares bytes, and returns an :class:`Operation` for
``Ledger.do``. An operation looks first and changes then, so one that fails has changed nothing.
"""

import os
import threading
from collections.abc import Sequence
from decimal import Decimal
from typing import Literal

import zstandard

from composer_pipeline.money import NOTHING, Pico, ceiling_of
from composer_pipeline.teachers.ledger.transaction import Operation, Transaction
from composer_pipeline.teachers.ledger.values import (
    Admission,
    Attempt,
    AttemptClosed,
    Bill,
    CacheHit,
    Call,
    Reply,
    dump,
)

#: Events whose ``teacher`` is a scope: its ceiling was set, and a run asked for at least so much.
CEILING, REQUESTED = "ceiling", "ceiling_requested"
#: ``detail`` of the event where a ceiling was lifted.
LIFTED = "none"
#: The ceilings that a scope had, or those that were requested for it, the oldest first.
CEILING_HISTORY = (
    "SELECT at_us, detail FROM event WHERE kind = ? AND teacher = ? ORDER BY at_us, id"
)
VIOLATION = "bound_violation"
#: Not where another attempt, whose cost is not known yet, is the one that brought the reply.
_COST_LEARNED = (
    "UPDATE reply SET cost = ? WHERE key = ? AND cost IS NULL AND NOT EXISTS ("
    "SELECT 1 FROM attempt WHERE attempt.key = reply.key AND attempt.detail <> ''"
    " AND attempt.state = 'unknown' AND attempt.generation_id = reply.generation_id)"
)

_local = threading.local()

# -- ceilings ----------------------------------------------------------------------------


def set_ceiling(name: str, usd: Decimal | None) -> Operation[None]:
    """Set or (``None``) lift the ceiling of a scope; the next admission reads it."""
    pico = None if usd is None else ceiling_of(usd, f"the ceiling of {name}")
    return Operation(lambda tx: _set_ceiling(tx, name, pico), scopes=[name], ends=True)


def raise_ceiling(name: str, usd: Decimal) -> Operation[Pico | None]:
    """Raise the ceiling of a scope that several runs share; return the one now in force.

    It rises only to an amount above every one that a run requested before: so a run that starts
    later neither lowers the ceiling nor undoes what a person has set meanwhile.
    """
    pico = ceiling_of(usd, f"the ceiling of {name}")

    def run(tx: Transaction) -> Pico | None:
        (rows,) = tx.session.fetch((CEILING_HISTORY, [REQUESTED, name]))
        highest = max((int(detail) for _, detail in rows), default=None)
        scope = tx.scope(name)
        if highest is not None and pico <= highest:
            return scope.ceiling
        tx.event(REQUESTED, name, "", str(pico))
        lifted = highest is not None and scope.ceiling is None
        if not lifted and (scope.ceiling is None or scope.ceiling < pico):
            _set_ceiling(tx, name, pico)
        return scope.ceiling

    return Operation(run, scopes=[name], ends=True)


def _set_ceiling(tx: Transaction, name: str, pico: Pico | None) -> None:
    tx.scope(name).ceiling = pico
    tx.event(CEILING, name, "", LIFTED if pico is None else str(pico))
    tx.later(
        "INSERT INTO scope (name, ceiling) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET ceiling = excluded.ceiling",
        name, pico,
    )  # fmt: skip


# -- one attempt -------------------------------------------------------------------------


def reserve(
    key: str,
    amount: Pico,
    scopes: Sequence[str],
    call: Call,
    *,
    digest: str = "",
    headroom: Pico = NOTHING,
    recover_after_s: float = 0.0,
) -> Operation[Admission]:
    """Admit one call, which must be sent then, or return why not.

    ``amount`` is the worst case, charged to all ``scopes`` or to none; ``headroom`` is left free
    for recoveries. ``digest`` names the exact bytes, the key does where it is empty. The answer
    is ``busy`` while an unknown attempt of the key is younger than ``recover_after_s``, whoever
    lost it: until its generation has ended, the same bytes are bought again, and then they are
    a hit of the response cache.
    """
    if amount < 0 or headroom < 0:
        raise ValueError("amounts are not negative")
    names = list(dict.fromkeys(scopes))
    row = _call_row(key, call)

    def run(tx: Transaction) -> Admission:
        if stored := tx.reply(key):
            tx.record_call(*row)
            return Admission("cached", outcome=stored)
        if why := tx.quarantine(call.teacher):
            return Admission("quarantined", scope=f"teacher:{call.teacher}", why=why)
        if claim := tx.claim(key):
            if not tx.is_dead(claim[0]):
                return Admission("busy")
            _adopt(tx, claim[0])
        tx.record_call(*row)
        lost_us = tx.now - tx.lost.get(key, 0)
        # A clock that was set back is not waited for; the next start reports it.
        if 0 <= lost_us < recover_after_s * 1_000_000:
            return Admission("busy")  # the provider may still be generating the lost one
        for name in names:
            scope = tx.scope(name)
            settled = scope.spent + scope.unknown + amount + headroom
            if scope.ceiling is not None and settled + scope.reserved > scope.ceiling:
                waits = scope.reserved > 0 and settled <= scope.ceiling
                return Admission("wait" if waits else "refused", scope=name)
        attempt = Attempt(
            id=_new_id(tx.now), key=key, state="sent", reserve=amount,
            cost=None, scopes=names, owner=tx.owner, generation_id=None, detail="",
            created_us=tx.now, ended_us=None, teacher=call.teacher, digest=digest or key,
        )  # fmt: skip
        tx.add_attempt(attempt)
        tx.set_claim(key, attempt.id)
        tx.move(names, reserved=amount)
        return Admission("reserved", attempt.id)

    return Operation(run, keys=[key], scopes=names, admits=True)


def settle(attempt_id: str, paid: Bill | CacheHit, reply: Reply) -> Operation[bool]:
    """Write what an answer cost and its bytes; raise AttemptClosed if it ended before.

    A :class:`CacheHit` costs its attempt nothing; it settles one earlier unknown attempt of
    the key with what the source cost, or stores the source on it (``unsettled_generations``)
    where that is not known yet. Returns False where a bill passed its reservation, which
    quarantines the teacher.
    """
    cost = paid.cost if isinstance(paid, Bill) else NOTHING
    if cost < 0:
        raise ValueError("a cost is not negative")
    body = _pack(reply.body)

    def run(tx: Transaction) -> bool:
        attempt = tx.attempt(attempt_id)
        if attempt.open or attempt.state == "unknown":
            within = _charge(tx, attempt, cost, reply.generation_id)
        elif attempt.state == "swept" or (
            attempt.state == "done"
            and attempt.generation_id
            and attempt.generation_id == reply.generation_id
        ):
            within = True  # its money was settled without it; the reply is still wanted
        else:
            raise _closed(attempt)
        if isinstance(paid, Bill):
            _store(tx, attempt.key, "billed", reply, body, cost, "bought")
        else:
            price = _settle_source(tx, attempt, paid)
            _store(tx, attempt.key, "billed", reply, body, price, "recovered")
        return within

    return Operation(run, attempt=attempt_id, ends=True)


def release(attempt_id: str, detail: str, refusal: Reply | None = None) -> Operation[None]:
    """Give a reservation back: the attempt is known not to be billed.

    ``refusal`` is stored as the key's reply where asking again would change nothing.
    """
    body = _pack(refusal.body) if refusal else b""

    def run(tx: Transaction) -> None:
        attempt = _open_or_unknown(tx, attempt_id)
        _end(tx, attempt, "released", detail, cost=NOTHING)
        if refusal:
            _store(tx, attempt.key, "refused", refusal, body, NOTHING, "bought")

    return Operation(run, attempt=attempt_id, ends=True)


def mark_unknown(
    attempt_id: str, detail: str, *, raw: bytes | None = None, generation: str = ""
) -> Operation[None]:
    """Keep the worst case charged: nobody knows whether it was billed.

    ``raw`` is what came of the answer, ``generation`` the provider's id of it, where one came.
    """
    packed = None if raw is None else _pack(raw)

    def run(tx: Transaction) -> None:
        attempt = _open_or_unknown(tx, attempt_id)
        _end(tx, attempt, "unknown", detail or "unknown")
        attempt.generation_id = generation or attempt.generation_id
        attempt.raw = packed

    return Operation(run, attempt=attempt_id, ends=True)


def keep(attempt_id: str, reply: Reply) -> Operation[None]:
    """Keep the bytes of an answer whose cost is not known yet: its worst case stays charged.

    The key has a reply then, so it is not asked again; its generation or a sweep may still
    tell what it cost.
    """
    body = _pack(reply.body)

    def run(tx: Transaction) -> None:
        attempt = _open_or_unknown(tx, attempt_id)
        _end(tx, attempt, "unknown", reply.detail or "no cost")
        attempt.generation_id = reply.generation_id or attempt.generation_id
        _store(tx, attempt.key, "billed", reply, body, None, "bought")

    return Operation(run, attempt=attempt_id, ends=True)


def reconcile(attempt_id: str, cost: Pico) -> Operation[bool]:
    """Settle an attempt, if it is still unknown, with its generation's cost.

    The cost is all that the user was billed (``money.billed_pico``). Returns False where it
    passes the reservation.
    """
    if cost < 0:
        raise ValueError("a cost is not negative")

    def run(tx: Transaction) -> bool:
        attempt = tx.attempt(attempt_id)
        if attempt.state != "unknown":
            return True
        within = _charge(tx, attempt, cost, "")
        tx.later(_COST_LEARNED, cost, attempt.key)
        return within

    return Operation(run, attempt=attempt_id, ends=True)


def restore(
    key: str,
    call: Call,
    reply: Reply,
    outcome: Literal["billed", "refused"],
    cost: Pico | None,
    scopes: Sequence[str],
    at_us: int,
) -> Operation[bool]:
    """Write a reply that a lost ledger held, with its bill if known; return if it was missing."""
    body = _pack(reply.body)
    names = list(dict.fromkeys(scopes))

    def run(tx: Transaction) -> bool:
        tx.record_call(*_call_row(key, call))
        if tx.reply(key):
            return False
        if cost is not None:
            attempt = Attempt(
                id=_new_id(at_us), key=key, state="done", reserve=cost, cost=cost, scopes=names,
                owner=tx.owner, generation_id=reply.generation_id or None, detail="",
                created_us=at_us, ended_us=at_us, teacher=call.teacher,
                digest="",  # the lake does not keep it
            )  # fmt: skip
            tx.add_attempt(attempt)
            tx.move(names, spent=cost)
        _store(tx, key, outcome, reply, body, cost, "bought")
        tx.later("UPDATE reply SET created_us = ? WHERE key = ?", at_us, key)
        return True

    return Operation(run, keys=[key], scopes=names, ends=True)


def forget(key: str) -> Operation[None]:
    """Let a key be asked again; its bytes stay with the attempt that bought them."""

    def run(tx: Transaction) -> None:
        tx.later(
            "UPDATE attempt SET raw = (SELECT body FROM reply WHERE reply.key = attempt.key)"
            " WHERE key = ? AND raw IS NULL AND state IN ('done', 'unknown', 'swept')",
            key,
        )
        # What was paid for may be had again, so its attempts count as in trouble.
        tx.later(
            "UPDATE attempt SET detail = 'reply forgotten'"
            " WHERE key = ? AND detail = '' AND state = 'done'",
            key,
        )
        tx.forget_reply(key)

    return Operation(run, keys=[key], ends=True)


def outcome(key: str, call: Call) -> Operation[str]:
    """Return ``billed``, ``refused`` or nothing, and record that the reply answers a call."""

    def run(tx: Transaction) -> str:
        stored = tx.reply(key)
        if stored:
            tx.record_call(*_call_row(key, call))
        return stored

    return Operation(run, keys=[key])


# -- owners and quarantines --------------------------------------------------------------


def adopt_dead() -> Operation[int]:
    """Count what dead owners left in flight as unknown; return how many attempts."""

    def run(tx: Transaction) -> int:
        owners, beats = tx.session.fetch(
            ("SELECT DISTINCT owner FROM attempt WHERE state = 'sent'", []),
            ("SELECT id FROM owner", []),
        )
        open_owners = {owner for (owner,) in owners}
        for owner in sorted({owner for (owner,) in beats} - open_owners):
            if tx.is_dead(owner):
                tx.later("DELETE FROM owner WHERE id = ?", owner)
        return sum(_adopt(tx, owner) for owner in sorted(open_owners) if tx.is_dead(owner))

    return Operation(run, ends=True)


def leave(owner: str) -> Operation[int]:
    """Give up what this owner still has in flight, as if it had died."""

    def run(tx: Transaction) -> int:
        tx.later("DELETE FROM owner WHERE id = ?", owner)
        return _adopt(tx, owner)

    return Operation(run, ends=True)


def lift_quarantine(teacher: str) -> Operation[bool]:
    """Admit a teacher again; return whether it was quarantined."""

    def run(tx: Transaction) -> bool:
        lifted = tx.lift_quarantine(teacher)
        if lifted:
            tx.event("quarantine_lifted", teacher, "", "")
        return lifted

    return Operation(run, ends=True)


# -- the steps of operations -------------------------------------------------------------


def _pack(data: bytes) -> bytes:
    compressor = getattr(_local, "compressor", None)
    if compressor is None:
        # One for each thread: it is expensive to make and must not be shared.
        compressor = _local.compressor = zstandard.ZstdCompressor(level=3)
    packed: bytes = compressor.compress(data)
    return packed


def _new_id(now: int) -> str:
    """Return an id that grows with time, so that rows of one moment lie in few pages."""
    return f"{now:016x}{os.urandom(8).hex()}"


def _call_row(key: str, call: Call) -> tuple[str, str, str, str, str, str]:
    return key, call.state_id, call.teacher, call.session_id, call.day, dump(call.meta)


def _closed(attempt: Attempt) -> AttemptClosed:
    return AttemptClosed(f"attempt {attempt.id} is not open: {attempt.state} {attempt.detail}")


def _open_or_unknown(tx: Transaction, attempt_id: str) -> Attempt:
    attempt = tx.attempt(attempt_id)
    if not attempt.open and attempt.state != "unknown":
        raise _closed(attempt)
    return attempt


def _adopt(tx: Transaction, owner: str) -> int:
    """Count what an owner left in flight as unknown; return how many attempts."""
    attempts = tx.open_attempts(owner)
    for attempt in attempts:
        _end(tx, attempt, "unknown", "owner died")
        tx.event("adopted", attempt.teacher, attempt.id, owner)
    return len(attempts)


def _end(
    tx: Transaction, attempt: Attempt, state: str, detail: str, *, cost: Pico | None = None
) -> None:
    """Move an open or unknown attempt to its end, with its money and its claim."""
    was_unknown = attempt.state == "unknown"
    tx.move(
        attempt.scopes,
        reserved=0 if was_unknown else -attempt.reserve,
        unknown=attempt.reserve * ((state == "unknown") - was_unknown),
        spent=cost or 0,
    )
    if state == "unknown":
        tx.lost[attempt.key] = max(attempt.created_us, tx.lost.get(attempt.key, 0))
    # Only its own claim: another attempt may have claimed the key since this one was adopted.
    claim = tx.claim(attempt.key)
    if claim and claim[1] == attempt.id:
        tx.set_claim(attempt.key, None)
    attempt.state, attempt.detail, attempt.cost = state, detail, cost
    attempt.ended_us = tx.now
    tx.touch(attempt)


def _charge(tx: Transaction, attempt: Attempt, cost: Pico, generation: str) -> bool:
    """End an attempt with its bill; return whether that is within the reservation."""
    detail = "" if attempt.open else f"was unknown: {attempt.detail}"
    _end(tx, attempt, "done", detail, cost=cost)
    attempt.generation_id = generation or attempt.generation_id
    if cost <= attempt.reserve:
        return True
    why = f"a bill of {cost} picodollars passed its worst case of {attempt.reserve}"
    attempt.detail = VIOLATION
    tx.event(VIOLATION, attempt.teacher, attempt.id, why)
    tx.set_quarantine(attempt.teacher, f"{VIOLATION}: {why}")
    return False


def _store(
    tx: Transaction,
    key: str,
    outcome: Literal["billed", "refused"],
    reply: Reply,
    body: bytes,
    cost: Pico | None,
    obtained: Literal["bought", "recovered"],
) -> None:
    """Store a reply with its packed bytes; ``cost`` is what the answer cost in the end."""
    rest = (reply.http_status, body, cost, reply.generation_id, reply.latency_ms)
    tx.store_reply(key, outcome, (*rest, obtained, reply.detail))


def _settle_source(tx: Transaction, hit: Attempt, paid: CacheHit) -> Pico | None:
    """Settle the attempt that bought what a cache hit returned; return what it cost.

    The provider's cache is keyed by the exact bytes, so only an attempt with the digest of the hit
    can have bought it. One with another digest (another price cap) that has the source's name
    tells what the source cost and settles nothing: its own name settles that one.
    """
    troubled = [a for a in tx.troubled_attempts(hit.key) if a.id != hit.id]
    others = [a for a in troubled if a.digest != hit.digest]
    candidates = [a for a in troubled if a.digest == hit.digest]
    named = [a for a in others + candidates if a.generation_id == paid.source]
    for attempt in named:
        if attempt.state == "done" and attempt.cost is not None:
            return attempt.cost
    if any(attempt in others for attempt in named):
        return paid.source_cost
    nameless = _may_have_bought(tx, hit, [a for a in candidates if a.generation_id is None])
    if any(a.state == "swept" for a in named + nameless):
        # A sweep may have charged it already. An attempt that is still unknown stays so:
        # only the next sweep can tell whether it was billed besides.
        return paid.source_cost
    for attempt in named + nameless:
        if attempt.state != "unknown":
            continue
        if paid.source_cost is None:  # asked for later, by its generation
            attempt.generation_id = paid.source
            tx.touch(attempt)
        else:
            _charge(tx, attempt, paid.source_cost, paid.source)
        return paid.source_cost
    return NOTHING  # bought through another ledger: nothing of it is charged here


def _may_have_bought(tx: Transaction, hit: Attempt, candidates: list[Attempt]) -> list[Attempt]:
    """Return the attempts that may have bought what a hit returned: its own run's, if any.

    Another run's are considered only where this one has lost none, and where its key is not its
    own: a response cache belongs to the key.
    """
    runs = {scope for scope in hit.scopes if scope.startswith("run:")}
    own = [attempt for attempt in candidates if runs.intersection(attempt.scopes)]
    if own or not candidates:
        return own
    for run in sorted(runs):
        (own_keys,) = tx.session.fetch(("SELECT key_hash FROM run_key WHERE run = ?", [run]))
        if own_keys:
            return []
    return candidates
