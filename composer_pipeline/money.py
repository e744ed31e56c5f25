"""Exact money: int64 picodollars (1e-12 USD) and decimal USD, never a float.

An amount is a :data:`Pico` and not an ``int``, so that a type checker finds a count of tokens that
is charged by mistake. A sum is written ``Pico(a + b)``.
"""

from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Any, NewType

from composer_pipeline.errors import InputError

#: An amount in picodollars; below 2**62, so that a sum of two fits in a database's integer.
Pico = NewType("Pico", int)
#: Picodollars in a dollar; ``amount / PICO`` is the exact ``Decimal`` in USD.
PICO = Decimal(10) ** 12
NOTHING = Pico(0)


def to_pico(usd: Decimal | str | int) -> Pico:
    """Convert USD to picodollars, rounded up; never through a float."""
    try:
        pico = int((Decimal(usd) * PICO).to_integral_value(ROUND_CEILING))
    except (InvalidOperation, OverflowError, ValueError) as error:
        raise InputError(f"{usd!r} is not an amount in USD") from error
    if abs(pico) >= 2**62:
        raise InputError(f"{usd} USD is more than the ledger can hold")
    return Pico(pico)


def to_usd(pico: int) -> str:
    """Return picodollars (also a difference of two amounts) as exact decimal text in USD."""
    text = f"{Decimal(pico) / PICO:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def ceiling_of(given: Decimal | str | int, what: str) -> Pico:
    """Return a ceiling in picodollars; it must be above 0 USD."""
    try:
        usd = Decimal(given)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise InputError(f"{what} {given!r} is no amount in USD, such as '1.50'") from error
    pico = to_pico(usd) if usd.is_finite() else NOTHING
    if pico <= 0:
        raise InputError(f"{what} must be above 0 USD, not {usd}")
    return pico


def billed_pico(charged: Pico, upstream: Pico = NOTHING, is_byok: bool = False) -> Pico:
    """Return what a call cost the user."""
    # With an own provider key (BYOK) the upstream cost is paid besides what OpenRouter charges;
    # otherwise it is part of it and must not be added.
    return Pico(charged + upstream) if is_byok else charged


def pico_or_none(value: Any) -> Pico | None:
    """Return an amount in USD from decoded JSON as picodollars, or ``None`` if it is not one."""
    if isinstance(value, bool) or not isinstance(value, Decimal | int | str):
        return None
    if isinstance(value, str) and len(value) > 100:
        return None
    try:
        amount = Decimal(value)
        if not amount.is_finite() or amount.adjusted() > 12:
            return None
        pico = to_pico(amount)
    except (ArithmeticError, ValueError, InputError):
        return None
    return pico if pico >= 0 else None
