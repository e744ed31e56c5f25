"""What may happen to an attempt, and what that does to money, claims and replies.

Belongs here: every operation on a ledger, as ``ledger.do(rules.settle(...))`` runs it, and
the one state machine, for every database. Does not belong here: how an attempt ends
(``replay.ledger.endings``), what may happen to a ceiling (``replay.ledger.ceilings``), SQL
beyond rare statements, connections, threads.

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
from decimal import Decimal
from typing import Literal

import zstandard

from composer_pipeline.money import NOTHING, Pico, ceiling_of
from composer_pipeline.teachers.ledger.transaction import Batch, Operation
from composer_pipeline.teachers.ledger.values import (
    Admission,
    Asked,
    Attempt,
    AttemptClosed,
    Bill,
    CacheHit,
    Call,
    Reply,
    Store,
    dump,
    read_list,
)

#: Events: a ceiling from now on, and an amount that a run was told. Their ``teacher`` is the scope.
CEILING, TOLD = "ceiling", "ceiling_told"
_HISTORY = "SELECT at_us, detail FROM event WHERE kind = ? AND teacher = ? ORDER BY at_us, id"
_NONE = "none"


def set_ceiling(name: str, usd: Decimal | None) -> Operation[None]:
    """Set or (``None``) lift the ceiling of a scope; the next admission reads it.

    Raises:
        InputError: the ceiling is no amount above 0 USD.
    """
    pico = None if usd is None else ceiling_of(usd, f"the ceiling of {name}")
    return Operation(lambda batch: _set(batch, name, pico), scopes=[name], ends=True)


def raise_ceiling(name: str, usd: Decimal) -> Operation[Pico | None]:
    """Raise the ceiling of a scope that several runs share to what one of them was told.

    It rises only to an amount above every one that runs were told before: so a run that starts
    later neither lowers the ceiling, nor undoes what a person has set meanwhile.

    Args:
        name: the scope.
        usd: what the run was told. The operation answers the ceiling that is in force now,
            ``None`` for none.

    Raises:
        InputError: the ceiling is no amount above 0 USD.
    """
    pico = ceiling_of(usd, f"the ceiling of {name}")

    def run(batch: Batch) -> Pico | None:
        (rows,) = batch.session.fetch((_HISTORY, [TOLD, name]))
        highest = max((int(detail) for _, detail in rows), default=None)
        scope = batch.scope(name)
        if highest is not None and pico <= highest:
            return scope.ceiling
        batch.event(TOLD, name, "", str(pico))
        lifted = highest is not None and scope.ceiling is None
        if not lifted and (scope.ceiling is None or scope.ceiling < pico):
            _set(batch, name, pico)
        return scope.ceiling

    return Operation(run, scopes=[name], ends=True)


def _set(batch: Batch, name: str, pico: Pico | None) -> None:
    batch.scope(name).ceiling = pico
    batch.event(CEILING, name, "", _NONE if pico is None else str(pico))
    batch.later(
        "INSERT INTO scope (name, ceiling) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET ceiling = excluded.ceiling",
        name, pico,
    )  # fmt: skip


def overspent(store: Store) -> dict[str, Pico]:
    """Return scope -> the most that was charged above the ceiling that was in force then.

    A scope within its ceiling of now is in order. Of another one the history is gone through:
    each admission, and each bill above its reservation, against the ceiling of that moment.
    """
    scopes = store.read("SELECT name, ceiling, spent + reserved + unknown FROM scope")[1]
    return {
        name: most
        for name, ceiling, held in scopes
        if ceiling is not None and held > ceiling and (most := _most_above(store, name))
    }


def _most_above(store: Store, name: str) -> Pico:
    """Return the most that a scope was ever charged above its ceiling of that moment."""
    history: list[tuple[int, int | None]] = [
        (at, None if detail == _NONE else int(detail))
        for at, detail in store.read(_HISTORY, (CEILING, name))[1]
    ]
    changes: list[tuple[int, int]] = []
    rows = store.read("SELECT scopes, created_us, ended_us, state, reserve, cost FROM attempt")[1]
    for scopes, created, ended, state, reserve, cost in rows:
        if name not in read_list(scopes):
            continue
        changes.append((created, reserve))
        if state in ("done", "swept", "released"):
            changes.append((ended or created, (cost or 0) - reserve))
    most = held = 0
    at = -1
    in_force: int | None = None
    # What was given back at a moment comes before what was admitted then.
    for moment, change in sorted(changes):
        while at + 1 < len(history) and history[at + 1][0] <= moment:
            at += 1
            in_force = history[at][1]
        held += change
        if change > 0 and in_force is not None:
            most = max(most, held - in_force)
    return Pico(most)


VIOLATION = "bound_violation"

_local = threading.local()


def pack(data: bytes) -> bytes:
    """Compress bytes for storage."""
    compressor = getattr(_local, "compressor", None)
    if compressor is None:
        # One for each thread: it is expensive to make and must not be shared.
        compressor = _local.compressor = zstandard.ZstdCompressor(level=3)
    packed: bytes = compressor.compress(data)
    return packed


def end(
    batch: Batch, attempt: Attempt, state: str, detail: str, *, cost: Pico | None = None
) -> None:
    """Move an open or unknown attempt to its end, with its money and its claim."""
    was_unknown = attempt.state == "unknown"
    batch.move(
        attempt.scopes,
        reserved=0 if was_unknown else -attempt.reserve,
        unknown=attempt.reserve * ((state == "unknown") - was_unknown),
        spent=cost or 0,
    )
    if state == "unknown":
        batch.lost[attempt.key] = max(attempt.created_us, batch.lost.get(attempt.key, 0))
    # Only its own claim: another attempt may have claimed the key since this one was adopted.
    claim = batch.claim(attempt.key)
    if claim and claim[1] == attempt.id:
        batch.set_claim(attempt.key, None)
    attempt.state, attempt.detail, attempt.cost = state, detail, cost
    attempt.ended_us = batch.now
    batch.touch(attempt)


def charge(batch: Batch, attempt: Attempt, cost: Pico, generation: str) -> bool:
    """End an attempt with its bill; say whether that is within the reservation."""
    detail = "" if attempt.open else f"was unknown: {attempt.detail}"
    end(batch, attempt, "done", detail, cost=cost)
    attempt.generation_id = generation or attempt.generation_id
    if cost > attempt.reserve:
        _violated(batch, attempt, cost)
    return cost <= attempt.reserve


def settle_source(batch: Batch, hit: Attempt, paid: CacheHit) -> Pico | None:
    """Settle the attempt that bought what a cache hit returned; return what it cost.

    The provider's cache goes by the exact bytes, so only an attempt with the very bytes of the
    hit can have bought it. Where one with other bytes has the source's name, that tells what
    the source cost and settles nothing: its own name settles that one.
    """
    others = [a for a in batch.troubled_attempts(hit.key) if a.digest != hit.digest]
    candidates = [a for a in batch.same_bytes(hit.digest) if a.id != hit.id]
    named = [a for a in others + candidates if a.generation_id == paid.source]
    for attempt in named:
        if attempt.state == "done" and attempt.cost is not None:
            return attempt.cost
    if any(attempt in others for attempt in named):
        return paid.source_cost
    nameless = _may_have_bought(batch, hit, [a for a in candidates if a.generation_id is None])
    if any(a.state == "swept" for a in named + nameless):
        # A sweep may have charged it already. An attempt that is still unknown stays so:
        # only the next sweep can tell whether it was billed besides.
        return paid.source_cost
    for attempt in named + nameless:
        if attempt.state != "unknown":
            continue
        if paid.source_cost is None:  # asked for later, by its generation
            attempt.generation_id = paid.source
            batch.touch(attempt)
        else:
            charge(batch, attempt, paid.source_cost, paid.source)
        return paid.source_cost
    return NOTHING  # bought through another ledger: nothing of it is charged here


def _may_have_bought(batch: Batch, hit: Attempt, candidates: list[Attempt]) -> list[Attempt]:
    """Return the attempts that may have bought what a hit returned: its own run's, if any.

    Another run's come into question only where this one has lost none, and where its key is
    not its own: a response cache belongs to the key.
    """
    runs = {scope for scope in hit.scopes if scope.startswith("run:")}
    mine = [attempt for attempt in candidates if runs.intersection(attempt.scopes)]
    if mine or not candidates:
        return mine
    for run in sorted(runs):
        (own_keys,) = batch.session.fetch(("SELECT key_hash FROM run_key WHERE run = ?", [run]))
        if own_keys:
            return []
    return candidates


def store(
    batch: Batch,
    key: str,
    outcome: Literal["billed", "refused"],
    reply: Reply,
    body: bytes,
    cost: Pico | None,
    obtained: Literal["bought", "recovered"],
) -> None:
    """Store a reply with its packed bytes; ``cost`` is what the answer cost in the end."""
    rest = (reply.http_status, body, cost, reply.generation_id, reply.latency_ms)
    batch.store_reply(key, outcome, (*rest, obtained, reply.detail))


def adopt(batch: Batch, owner: str) -> int:
    """End what an owner left: unsent is released, sent becomes unknown; return how many."""
    attempts = batch.open_attempts(owner)
    for attempt in attempts:
        state = "unknown" if attempt.state == "sent" else "released"
        end(batch, attempt, state, "owner died")
        batch.event("adopted", attempt.teacher, attempt.id, f"{state}: {owner}")
    return len(attempts)


def in_flight(batch: Batch, keys: Sequence[str]) -> bool:
    """Say whether somebody asks one of the keys now; what the dead claim is adopted."""
    claims = [claim for claim in map(batch.claim, keys) if claim]
    if any(not batch.is_dead(owner) for owner, _ in claims):
        return True
    for owner, _ in claims:
        adopt(batch, owner)
    return False


def other_bytes(batch: Batch, asked: Asked, digest: str, keys: Sequence[str]) -> Admission | None:
    """Say with which bytes to ask instead; nothing where those of the call are the right ones.

    A call that may have been paid for is asked again with its own bytes under its own key:
    only those are answered from the provider's cache, and only for as long as it keeps them.
    """
    lost = [a for a in batch.unresolved(keys) if a.digest and a.digest not in asked.tried]
    if any((a.key, a.digest) == (asked.key, digest) for a in lost):
        return None
    kept_us = asked.kept_s * 1_000_000
    lost = [a for a in lost if a.digest == digest or batch.now - a.created_us < kept_us]
    if lost:
        one = max(lost, key=lambda a: (a.digest == digest, a.created_us))
        return Admission("resume", key=one.key, digest=one.digest, cap=one.cap)
    return Admission("resume", key=keys[0]) if asked.key != keys[0] else None


def closed(attempt: Attempt) -> AttemptClosed:
    """Return the error of an operation on an attempt that has ended."""
    return AttemptClosed(f"attempt {attempt.id} is not open: {attempt.state} {attempt.detail}")


def _violated(batch: Batch, attempt: Attempt, cost: Pico) -> None:
    """Record that a bill passed its worst case, and refuse the teacher from now on."""
    teacher = attempt.teacher or next(
        (n.removeprefix("teacher:") for n in attempt.scopes if n.startswith("teacher:")), ""
    )
    why = f"a bill of {cost} picodollars passed its worst case of {attempt.reserve}"
    attempt.detail = VIOLATION
    batch.event(VIOLATION, teacher, attempt.id, why)
    if teacher:
        batch.set_quarantine(teacher, f"{VIOLATION}: {why}")


#: Not where another attempt, whose cost is not known yet, is the one that brought the reply.
_COST_LEARNED = (
    "UPDATE reply SET cost = ? WHERE key = ? AND cost IS NULL AND NOT EXISTS ("
    "SELECT 1 FROM attempt WHERE attempt.key = reply.key AND attempt.detail <> ''"
    " AND attempt.state = 'unknown' AND attempt.generation_id = reply.generation_id)"
)

# -- one attempt -------------------------------------------------------------------------


def reserve(
    key: str | Asked,
    amount: Pico,
    scopes: Sequence[str],
    call: Call,
    *,
    headroom: Pico = NOTHING,
    send: bool = False,
    recover_after_s: float = 0.0,
) -> Operation[Admission]:
    """Admit one call, or say why not.

    Args:
        key: what is asked. A name alone covers the exact bytes to send.
        amount: worst case; charged to all ``scopes`` or to none.
        scopes: names such as ``run:…``, ``day:2026-11-16``, ``teacher:…``, ``global``.
        call: remembered for the lake, also where a reply is already there.
        headroom: what to leave free, for recoveries.
        send: mark it sent in the same transaction.
        recover_after_s: answer ``busy`` while an unknown attempt of the key is younger,
            whoever lost it: until its generation has ended, the same bytes are bought
            again, and after that they are a hit of the response cache.
    """
    if amount < 0 or headroom < 0:
        raise ValueError("amounts are not negative")
    names = list(dict.fromkeys(scopes))
    asked = key if isinstance(key, Asked) else Asked(key)
    keys = asked.keys or (asked.key,)
    digest = asked.digest or asked.key
    note = (call.state_id, call.teacher, call.session_id, call.day, dump(call.meta))

    def run(batch: Batch) -> Admission:
        if answered := _answered(batch, keys):
            batch.note(answered, *note)
            return Admission("cached", outcome=batch.reply(answered), key=answered)
        if why := batch.quarantine(call.teacher):
            return Admission("quarantined", scope=f"teacher:{call.teacher}", why=why)
        if in_flight(batch, keys):
            return Admission("busy")
        if other := other_bytes(batch, asked, digest, keys):
            return other
        batch.note(asked.key, *note)
        lost_us = batch.now - max(batch.lost.get(one, 0) for one in keys)
        # A clock that was set back is not waited for; at the next start it is told.
        if 0 <= lost_us < recover_after_s * 1_000_000:
            return Admission("busy")  # the provider may still be generating the lost one
        for name in names:
            scope = batch.scope(name)
            settled = scope.spent + scope.unknown + amount + headroom
            if scope.ceiling is not None and settled + scope.reserved > scope.ceiling:
                waits = scope.reserved > 0 and settled <= scope.ceiling
                return Admission("wait" if waits else "refused", scope=name)
        attempt = Attempt(
            id=_new_id(batch.now),
            key=asked.key,
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
            digest=digest,
            cap=asked.cap,
        )
        batch.add_attempt(attempt)
        batch.set_claim(asked.key, attempt.id)
        batch.move(names, reserved=amount)
        return Admission("reserved", attempt.id)

    return Operation(run, keys=keys, scopes=names, admits=True)


def _answered(batch: Batch, keys: Sequence[str]) -> str:
    return next((key for key in keys if batch.reply(key)), "")


def mark_sent(attempt_id: str) -> Operation[None]:
    """Say that the bytes are about to leave; from here on money may be owed.

    Raises AttemptClosed where it was adopted meanwhile; it must not be sent then.
    """

    def run(batch: Batch) -> None:
        attempt = batch.attempt(attempt_id)
        if not attempt.open:
            raise closed(attempt)
        attempt.state = "sent"
        batch.touch(attempt)

    return Operation(run, attempt=attempt_id)


def settle(attempt_id: str, paid: Bill | CacheHit, reply: Reply) -> Operation[bool]:
    """Write what an answer cost and its bytes, in one transaction.

    A :class:`CacheHit` costs its attempt nothing; it settles one earlier unknown attempt of
    the key with what the source cost, or notes the source on it (``unsettled_generations``)
    where that is not told yet.

    The operation answers False where a bill passed its reservation (a bound violation), which
    quarantines the teacher, and raises AttemptClosed where the attempt was settled or
    released before.
    """
    cost = paid.cost if isinstance(paid, Bill) else NOTHING
    if cost < 0:
        raise ValueError("a cost is not negative")
    body = pack(reply.body)

    def run(batch: Batch) -> bool:
        attempt = batch.attempt(attempt_id)
        if attempt.open or attempt.state == "unknown":
            held = charge(batch, attempt, cost, reply.generation_id)
        elif attempt.state == "swept" or (
            attempt.state == "done"
            and attempt.generation_id
            and attempt.generation_id == reply.generation_id
        ):
            held = True  # its money was settled without it; the reply is still wanted
        else:
            raise closed(attempt)
        if isinstance(paid, Bill):
            store(batch, attempt.key, "billed", reply, body, cost, "bought")
        else:
            price = settle_source(batch, attempt, paid)
            store(batch, attempt.key, "billed", reply, body, price, "recovered")
        return held

    return Operation(run, attempt=attempt_id, ends=True)


def release(attempt_id: str, detail: str, refusal: Reply | None = None) -> Operation[None]:
    """Give a reservation back: the attempt is known not to be billed.

    ``refusal`` is stored as the key's reply where asking again would change nothing. Raises
    AttemptClosed where the attempt is not open.
    """
    body = pack(refusal.body) if refusal else b""

    def run(batch: Batch) -> None:
        attempt = _open_or_unknown(batch, attempt_id)
        end(batch, attempt, "released", detail, cost=NOTHING)
        if refusal:
            store(batch, attempt.key, "refused", refusal, body, NOTHING, "bought")

    return Operation(run, attempt=attempt_id, ends=True)


def mark_unknown(
    attempt_id: str, detail: str, *, raw: bytes | None = None, generation: str = ""
) -> Operation[None]:
    """Keep the worst case charged: nobody knows whether it was billed.

    Args:
        attempt_id: raises AttemptClosed where it is not open.
        detail: why nobody knows.
        raw: what came of the answer.
        generation: the provider's id of it, where one came.
    """
    packed = None if raw is None else pack(raw)

    def run(batch: Batch) -> None:
        attempt = _open_or_unknown(batch, attempt_id)
        end(batch, attempt, "unknown", detail or "unknown")
        attempt.generation_id = generation or attempt.generation_id
        attempt.raw = packed

    return Operation(run, attempt=attempt_id, ends=True)


def keep(attempt_id: str, reply: Reply) -> Operation[None]:
    """Keep the bytes of an answer whose cost nobody knows yet: its worst case stays charged.

    The key has a reply then, so it is not asked again; its generation or a sweep may still
    tell what it cost. Raises AttemptClosed where the attempt is not open.
    """
    body = pack(reply.body)

    def run(batch: Batch) -> None:
        attempt = _open_or_unknown(batch, attempt_id)
        end(batch, attempt, "unknown", reply.detail or "no cost")
        attempt.generation_id = reply.generation_id or attempt.generation_id
        store(batch, attempt.key, "billed", reply, body, None, "bought")

    return Operation(run, attempt=attempt_id, ends=True)


def reconcile(attempt_id: str, cost: Pico) -> Operation[bool]:
    """Settle an unknown attempt whose generation's cost has become known.

    Args:
        attempt_id: nothing happens where it is not unknown any more.
        cost: all that it cost the user, see :func:`composer_pipeline.money.billed_pico`. The
            operation answers False where that passes the reservation.
    """
    if cost < 0:
        raise ValueError("a cost is not negative")

    def run(batch: Batch) -> bool:
        attempt = batch.attempt(attempt_id)
        if attempt.state != "unknown":
            return True
        held = charge(batch, attempt, cost, "")
        batch.later(_COST_LEARNED, cost, attempt.key)
        return held

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
    """Write a reply that a lost ledger held, with its bill; answer whether it was missing.

    Args:
        key: of the reply.
        call: the question it answers.
        reply: the answer, as the lake kept it.
        outcome: what it was.
        cost: its bill; ``None`` where nobody ever learned it, which charges nothing.
        scopes: what the bill is charged to.
        at_us: when it was settled.
    """
    body = pack(reply.body)
    names = list(dict.fromkeys(scopes))

    def run(batch: Batch) -> bool:
        batch.note(key, call.state_id, call.teacher, call.session_id, call.day, dump(call.meta))
        if batch.reply(key):
            return False
        if cost is not None:
            batch.add_attempt(
                Attempt(
                    id=_new_id(at_us),
                    key=key,
                    state="done",
                    reserve=cost,
                    cost=cost,
                    scopes=names,
                    owner=batch.owner,
                    generation_id=reply.generation_id or None,
                    detail="",
                    created_us=at_us,
                    ended_us=at_us,
                    teacher=call.teacher,
                    digest="",
                    cap="",
                )
            )
            batch.move(names, spent=cost)
        store(batch, key, outcome, reply, body, cost, "bought")
        batch.later("UPDATE reply SET created_us = ? WHERE key = ?", at_us, key)
        return True

    return Operation(run, keys=[key], scopes=names, ends=True)


def forget(key: str) -> Operation[None]:
    """Let a key be asked again; its bytes stay with the attempt that bought them."""

    def run(batch: Batch) -> None:
        batch.later(
            "UPDATE attempt SET raw = (SELECT body FROM reply WHERE reply.key = attempt.key)"
            " WHERE key = ? AND raw IS NULL AND state IN ('done', 'unknown', 'swept')",
            key,
        )
        # What was paid for may be had again: its attempts are what may be asked for.
        batch.later(
            "UPDATE attempt SET detail = 'reply forgotten'"
            " WHERE key = ? AND detail = '' AND state = 'done'",
            key,
        )
        batch.later("DELETE FROM reply WHERE key = ?", key)
        batch.replies[key] = ""

    return Operation(run, keys=[key], ends=True)


def outcome(key: str | Asked, call: Call) -> Operation[str]:
    """Answer ``billed``, ``refused`` or nothing, and note that the reply answers a call."""
    note = (call.state_id, call.teacher, call.session_id, call.day, dump(call.meta))
    keys = [key] if isinstance(key, str) else key.keys or (key.key,)

    def run(batch: Batch) -> str:
        answered = _answered(batch, keys)
        if answered:
            batch.note(answered, *note)
        return batch.reply(answered) if answered else ""

    return Operation(run, keys=keys)


# -- owners, quarantine --------------------------------------------------------


def adopt_dead() -> Operation[int]:
    """Take over what dead owners left: unsent is released, sent becomes unknown."""

    def run(batch: Batch) -> int:
        owners, beats = batch.session.fetch(
            ("SELECT DISTINCT owner FROM attempt WHERE state IN ('reserved', 'sent')", []),
            ("SELECT id FROM owner", []),
        )
        open_owners = {owner for (owner,) in owners}
        for owner in sorted({owner for (owner,) in beats} - open_owners):
            if batch.is_dead(owner):
                batch.later("DELETE FROM owner WHERE id = ?", owner)
        return sum(adopt(batch, owner) for owner in sorted(open_owners) if batch.is_dead(owner))

    return Operation(run, ends=True)


def leave(owner: str) -> Operation[int]:
    """Give up what this owner still has in flight, as if it had died."""

    def run(batch: Batch) -> int:
        batch.later("DELETE FROM owner WHERE id = ?", owner)
        return adopt(batch, owner)

    return Operation(run, ends=True)


def quarantine(teacher: str, why: str) -> Operation[None]:
    """Refuse every admission of a teacher until it is lifted."""
    return Operation(lambda batch: batch.set_quarantine(teacher, why))


def lift_quarantine(teacher: str) -> Operation[bool]:
    """Admit a teacher again; answer whether it was quarantined."""

    def run(batch: Batch) -> bool:
        there = bool(batch.quarantine(teacher))
        if there:
            batch.forget_quarantine(teacher)
            batch.event("quarantine_lifted", teacher, "", "")
        return there

    return Operation(run, ends=True)


def _open_or_unknown(batch: Batch, attempt_id: str) -> Attempt:
    attempt = batch.attempt(attempt_id)
    if not attempt.open and attempt.state != "unknown":
        raise closed(attempt)
    return attempt


def _new_id(now: int) -> str:
    """Ids that grow with time, so that rows of one moment lie in few pages."""
    return f"{now:016x}{os.urandom(8).hex()}"
