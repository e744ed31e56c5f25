"""How an attempt ends: its money, its claim, its reply, and the attempt that paid for a hit.

Belongs here: the changes that several operations share, and what is to be asked again of
attempts that ended without an answer. Does not belong here: when an operation is allowed
(``replay.ledger.rules``).
"""

import threading
from collections.abc import Sequence
from typing import Literal

import zstandard

from composer_pipeline.money import NOTHING, Pico
from composer_pipeline.replay.ledger.batch import Batch
from composer_pipeline.replay.ledger.stores.rows import Attempt
from composer_pipeline.replay.ledger.values import Admission, Asked, AttemptClosed, CacheHit, Reply

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
    if claim and (claim[1] == attempt.id or (not claim[1] and claim[0] == attempt.owner)):
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
    # A ledger of version 1 has claims that name no attempt.
    (stray,) = batch.session.fetch(("SELECT key FROM claim WHERE owner = ?", [owner]))
    for (key,) in stray:
        claim = batch.claim(key)
        if claim and claim[0] == owner:
            batch.set_claim(key, None)
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
