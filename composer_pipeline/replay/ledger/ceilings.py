"""Ceilings: set, raised by runs that share one, and what was ever spent above one.

Belongs here: what may happen to a ceiling, and the history that tells which one was in force when
something was admitted. Does not belong here: admission itself (``replay.ledger.rules``), and
which runs share a scope (whoever starts them).

Every change is kept as an event, so a ceiling that is set below what was spent, which is how one
stops spending, is not taken for an overspend.
"""

from decimal import Decimal

from composer_pipeline.money import Pico, ceiling_of
from composer_pipeline.replay.ledger.batch import Batch, Operation
from composer_pipeline.replay.ledger.stores.rows import read_list
from composer_pipeline.replay.ledger.stores.store import Store

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
        if ceiling is not None and held > ceiling and (most := _most_above(store, name, ceiling))
    }


def _most_above(store: Store, name: str, ceiling: int) -> Pico:
    """Return the most that a scope was ever charged above its ceiling of that moment."""
    history: list[tuple[int, int | None]] = [
        (at, None if detail == _NONE else int(detail))
        for at, detail in store.read(_HISTORY, (CEILING, name))[1]
    ]
    # A ledger of before this history: its ceiling stands for all of the past.
    history = history or [(0, ceiling)]
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
