"""The quiescent sweep: what a run's unknown attempts cost, by the provider's own meter.

With a key that only this run uses, and nothing in flight, the unknown attempts must have
cost ``usage - baseline - spent``. The sum is exact; its parts are not known. The attempts'
rows share it in proportion to their reservations; a scope that holds only some of them is
charged the most that those can have cost, so that its ceiling holds too.
"""

from collections import Counter
from collections.abc import Sequence

from composer_pipeline.money import Pico, to_usd
from composer_pipeline.teachers.ledger.transaction import Operation, Transaction
from composer_pipeline.teachers.ledger.values import NotQuiescent, SweepMismatch, SweepResult


def sweep(
    run_scope: str, key_usage: Pico, baseline: Pico, *, grace_s: float = 0.0, since_us: int = 0
) -> Operation[SweepResult]:
    """Charge a run's unknown attempts what they cost, by the meter of the run's own keys.

    ``key_usage`` is what these keys have spent (own provider keys, BYOK, included where costs
    include them), ``baseline`` what they had before the run, read at ``since_us``: what older
    attempts cost is in the baseline, so they stay charged as they are. ``grace_s`` must have
    passed since the last change in the run, at least the provider's timeout plus the delay of
    its meter. Raises NotQuiescent where calls are in flight or the grace is not over, and
    SweepMismatch unless ``0 <= usage - baseline - spent <= charged as unknown``.
    """

    def run(tx: Transaction) -> SweepResult:
        scope = tx.scope(run_scope)
        if scope.reserved or _in_flight(tx, run_scope):
            raise NotQuiescent(f"{run_scope} cannot be swept while calls are in flight")
        unknown = [a for a in tx.unknown_attempts() if run_scope in a.scopes]
        attempts = [attempt for attempt in unknown if attempt.created_us >= since_us]
        age = (tx.now - _touched(tx, run_scope)) / 1_000_000
        if attempts and age < grace_s:
            left = grace_s - age
            raise NotQuiescent(f"{run_scope} can be swept in {left:.0f} s, not before", left)
        worst = sum(attempt.reserve for attempt in attempts)
        value = key_usage - baseline - scope.spent + _settled_late(tx, run_scope, since_us)
        if not 0 <= value <= worst:
            raise SweepMismatch(
                f"{run_scope}: the provider's bill leaves {to_usd(value)} USD for unknown"
                f" attempts, which are charged {to_usd(worst)} USD; is the key used elsewhere?",
                value,
                Pico(worst),
            )
        shares = proportional(value, [attempt.reserve for attempt in attempts])
        reserves: Counter[str] = Counter()
        for attempt in attempts:
            reserves.update(dict.fromkeys(attempt.scopes, attempt.reserve))
        for name, reserve in reserves.items():
            # All scopes that every attempt is in get the sum. Of another one (a teacher, a
            # day) nobody knows its part: it is charged the most that the part can be.
            tx.move([name], unknown=-reserve, spent=min(value, reserve))
        for attempt, cost in zip(attempts, shares, strict=True):
            attempt.state, attempt.cost, attempt.ended_us = "swept", Pico(cost), tx.now
            tx.touch(attempt)
        if attempts:
            tx.event("swept", "", "", f"{run_scope}: {len(attempts)} attempts, {to_usd(value)} USD")
        return SweepResult(len(attempts), Pico(worst), Pico(value), scope.spent)

    return Operation(run, scopes=[run_scope], ends=True)


def set_run_key(run_scope: str, key_hash: str, baseline: Pico) -> Operation[None]:
    """Record that a run uses a key of its own, and the key's usage before; the first one stays."""

    def run(tx: Transaction) -> None:
        tx.later(
            "INSERT INTO run_key (run, key_hash, baseline_pico, created_us) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (run, key_hash) DO NOTHING",
            run_scope, key_hash, baseline, tx.now,
        )  # fmt: skip

    return Operation(run)


def proportional(total: int, weights: Sequence[int]) -> list[int]:
    """Split ``0 <= total <= sum(weights)`` into integers, none above its weight.

    Largest remainders: each part is ``total * weight / sum`` rounded down or up.
    """
    whole = sum(weights)
    if not whole:
        return [0] * len(weights)
    parts = [total * weight // whole for weight in weights]
    order = sorted(range(len(weights)), key=lambda i: total * weights[i] % whole, reverse=True)
    for i in order[: total - sum(parts)]:
        parts[i] += 1
    return parts


def _in_flight(tx: Transaction, run_scope: str) -> bool:
    (rows,) = tx.session.fetch(("SELECT scopes FROM attempt WHERE state = 'sent'", []))
    return any(f'"{run_scope}"' in scopes for (scopes,) in rows)


def _settled_late(tx: Transaction, run_scope: str, since_us: int) -> int:
    """Return what was learned since then of attempts that are older: the baseline holds it."""
    if not since_us:
        return 0
    (rows,) = tx.session.fetch(
        (
            "SELECT scopes, cost FROM attempt"
            " WHERE state = 'done' AND created_us < ? AND ended_us >= ?",
            [since_us, since_us],
        )
    )
    return sum(cost for scopes, cost in rows if f'"{run_scope}"' in scopes)


def _touched(tx: Transaction, run_scope: str) -> int:
    (rows,) = tx.session.fetch(("SELECT touched_us FROM scope WHERE name = ?", [run_scope]))
    return int(rows[0][0]) if rows else 0
