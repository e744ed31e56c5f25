"""A report's fields as a person reads them.

Belongs here: turning any value of a report into lines of text. Does not belong here: which
fields a report has, and its JSON form, which is exact (``--json``).
"""

from collections.abc import Mapping
from typing import Any

from composer_pipeline.money import to_usd

NOTHING = "-"


def readable(value: Any, name: str = "") -> str:
    """Return a value as text: a line for each entry of a mapping or list.

    Args:
        value: plain JSON; numbers are rounded to four digits.
        name: of the field: ``…_picodollars`` is shown in USD.
    """
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {_inline(item, key)}" for key, item in value.items()) or NOTHING
    if isinstance(value, list | tuple):
        return "\n".join(_inline(item, name) for item in value) or NOTHING
    return _inline(value, name)


def _inline(value: Any, name: str) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_inline(item, key)}" for key, item in value.items()) or NOTHING
    if isinstance(value, list | tuple):
        return ", ".join(_inline(item, name) for item in value) or NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name.endswith("picodollars"):
        return f"{to_usd(value)} USD"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return NOTHING if value in (None, "") else str(value)
