"""The rows of the ledger that operations change, and how they are written.

Belongs here: structs and their columns. Does not belong here: loading and writing them
(``replay.ledger.batch``).
"""

from typing import Any

import msgspec

from composer_pipeline.money import NOTHING, Pico

#: The columns of ``attempt``, in the order of :class:`Attempt`.
COLUMNS = (
    "id, key, state, reserve, cost, scopes, owner, generation_id, detail, created_us,"
    " ended_us, teacher, digest, cap"
)


class Attempt(msgspec.Struct):
    """One row of ``attempt``; ``raw`` only where this batch writes it."""

    id: str
    key: str
    state: str
    reserve: Pico
    cost: Pico | None
    scopes: list[str]
    owner: str
    generation_id: str | None
    detail: str
    created_us: int
    ended_us: int | None
    teacher: str
    #: Names the exact bytes that were sent; empty where nobody knows them any more.
    digest: str
    #: The part of them that the key leaves out.
    cap: str
    raw: bytes | None = None

    @property
    def open(self) -> bool:
        """Whether it is in flight, as far as the ledger knows."""
        return self.state in ("reserved", "sent")


class Scope(msgspec.Struct):
    """One row of ``scope``."""

    ceiling: Pico | None
    spent: Pico = NOTHING
    reserved: Pico = NOTHING
    unknown: Pico = NOTHING


def inserted(a: Attempt | None) -> tuple[Any, ...]:
    """Return the values of a new attempt, in the order of its columns and ``raw``."""
    assert a is not None
    return (
        a.id, a.key, a.state, a.reserve, a.cost, dump(a.scopes), a.owner, a.generation_id,
        a.detail, a.created_us, a.ended_us, a.teacher, a.digest, a.cap, a.raw,
    )  # fmt: skip


def updated(a: Attempt | None) -> tuple[Any, ...]:
    """Return the values that may have changed, and the id."""
    assert a is not None
    return (a.state, a.cost, a.generation_id, a.detail, a.raw, a.ended_us, a.id)


def dump(value: Any) -> str:
    """Return a value as JSON text."""
    return msgspec.json.encode(value).decode()


_decoder = msgspec.json.Decoder(list[str])


def read_list(text: str) -> list[str]:
    """Read a list of names that :func:`dump` wrote."""
    return _decoder.decode(text)
