"""Exact money: int64 picodollars (1e-12 USD) and decimal USD, never a float.

Belongs here: conversions. Does not belong here: prices and budgets (``replay.ledger.ledger``).
"""

from decimal import ROUND_CEILING, Decimal, InvalidOperation

from composer_pipeline.errors import InputError

PICO = Decimal(10) ** 12


def to_pico(usd: Decimal | str | int) -> int:
    """Convert USD to picodollars, rounded up; never through a float.

    Raises:
        InputError: not an amount, or one outside int64 picodollars.
    """
    try:
        pico = int((Decimal(usd) * PICO).to_integral_value(ROUND_CEILING))
    except (InvalidOperation, OverflowError, ValueError) as error:
        raise InputError(f"{usd!r} is not an amount in USD") from error
    if abs(pico) >= 2**62:
        raise InputError(f"{usd} USD is more than the ledger can hold")
    return pico


def to_usd(pico: int) -> str:
    """Return picodollars as an exact decimal string in USD."""
    text = f"{Decimal(pico) / PICO:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def billed_pico(charged: int, upstream: int = 0, is_byok: bool = False) -> int:
    """Return what a call cost the user in picodollars.

    With an own provider key (BYOK) the upstream cost is paid to the provider besides what
    OpenRouter charges; otherwise it is part of it and must not be added.
    """
    return charged + upstream if is_byok else charged
