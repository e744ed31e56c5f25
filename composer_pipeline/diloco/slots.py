"""Claims of slots, one for each start of a slot, created exclusively. No torch.

``slots/<slot>/<attempt>.json`` is written before an attempt does anything, so that no two
processes share an attempt number, and a new supervisor knows earlier starts.
"""

import datetime as dt
import socket
import time
import uuid
from collections.abc import Iterable, Sequence

import msgspec

from composer_pipeline.diloco.log import Commit, OuterLog
from composer_pipeline.errors import InputError

#: Seconds between checks for a free slot.
LOOK_S = 1.0


class Claim(msgspec.Struct, frozen=True):
    """One start of a slot after round ``after``; ``again``: as a restart after a crash."""

    slot: int
    attempt: int
    after: int
    again: bool = False
    host: str = ""


def claims(log: OuterLog) -> list[Claim]:
    """Return all claims of a run, by slot and attempt."""
    found = []
    for entry in log.store.list("slots"):
        data = log.store.get(entry.key)
        if data is not None:
            found.append(msgspec.json.decode(data, type=Claim))
    return sorted(found, key=lambda claim: (claim.slot, claim.attempt))


def claim(log: OuterLog, slot: int, *, again: bool = False) -> int:
    """Claim the next attempt of a slot, whoever had it before, and return its number."""
    attempt = _last_attempt(log, slot) + 1
    while not _create(log, slot, attempt, again):
        attempt += 1
    return attempt


def claim_free(
    log: OuterLog, slots: Sequence[int], *, timeout_s: float, wait_s: float
) -> tuple[int, int]:
    """Claim a slot without a live replica within ``wait_s``; return it and its attempt."""
    deadline = time.monotonic() + wait_s
    while True:
        alive = alive_slots(log, timeout_s)
        for slot in slots:
            # Of two processes that see the same free slot, one creates the attempt.
            attempt = _last_attempt(log, slot) + 1
            if slot not in alive and _create(log, slot, attempt, False):
                return slot, attempt
        if time.monotonic() > deadline:
            taken = ", ".join(map(str, slots)) or "none are for other machines"
            raise InputError(
                f"run {log.run_id} in {log.store.url} has no free slot ({taken}); end a replica,"
                " or name its slot with --slot"
            )
        time.sleep(LOOK_S)


def alive_slots(log: OuterLog, timeout_s: float) -> set[int]:
    """Return the slots with a claim or heartbeat younger than ``timeout_s``."""
    now = store_time(log)
    entries = [*log.store.list("slots"), *log.store.list("members")]
    limit = dt.timedelta(seconds=timeout_s)
    return {int(e.key.split("/")[1]) for e in entries if now - e.last_modified <= limit}


def store_time(log: OuterLog) -> dt.datetime:
    """Return the present by the store's clock, from which other machines' may differ."""
    log.store.put("clock/now.json", uuid.uuid4().hex.encode())
    return log.store.modified("clock/now.json") or store_time(log)  # somebody may have removed it


def _last_attempt(log: OuterLog, slot: int) -> int:
    entries = [*log.store.list(f"slots/{slot}"), *log.store.list(f"members/{slot}")]
    return max((int(e.key.rsplit("/", 1)[1].removesuffix(".json")) for e in entries), default=0)


def _create(log: OuterLog, slot: int, attempt: int, again: bool) -> bool:
    record = Claim(slot, attempt, max(0, log.last_round()), again, socket.gethostname())
    return log.store.create(f"slots/{slot}/{attempt}.json", msgspec.json.encode(record))


def restarts_used(of: Iterable[Claim], slot: int, commits: Iterable[Commit]) -> int:
    """Return how often a slot was restarted since a round last merged it, by all supervisors."""
    since = max((c.round for c in commits if slot in c.slots), default=0)
    return sum(one.slot == slot and one.again and one.after >= since for one in of)
