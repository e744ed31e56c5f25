"""What every stage has in common: its progress callback and its report."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

#: Called as (label, done, total) while a stage works; ``total`` is 0 where it is not known.
Progress = Callable[[str, int, int], None]


class Report:
    """What a stage did: a record of numbers that a program can read."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values; exact amounts and paths are text."""
        data: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str, str_keys=True)
        return data


def add_counts(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Return the sum of counts by name, sorted by name."""
    total: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            total[name] = total.get(name, 0) + count
    return dict(sorted(total.items()))
