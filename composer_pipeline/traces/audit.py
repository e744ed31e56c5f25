"""What parsing a day met: unknown record types, kinds of errors, kinds of redactions.

Belongs here: adding up what the tables of one day say. Does not belong here: the numbers
of a parse (``traces.parse``).
"""

import json
from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

from composer_pipeline.lake import Lake

_Key = TypeVar("_Key", str, tuple[str, str])
Rows = list[dict[str, str | int]]


def day_audit(lake: Lake, day: str, redactions: Mapping[str, int]) -> dict[str, Rows]:
    """Return the audit tables of a day, each sorted, the most frequent first.

    Args:
        lake: the lake.
        day: ``YYYY-MM-DD``, parsed.
        redactions: replacements by kind; originals are nowhere.

    Returns:
        ``unknown_record_types`` (type, records), ``error_kinds`` (error_kind, source,
        states, hints) and ``redactions_by_kind`` (kind, replacements).
    """
    unknown: Counter[str] = Counter()
    for row in lake.rows("sessions", days=[day], columns=["unknown_types"]):
        unknown.update(json.loads(row["unknown_types"] or "{}"))
    states: Counter[tuple[str, str]] = Counter()
    hints: Counter[tuple[str, str]] = Counter()
    columns = ["error_kind", "hint_source", "hint"]
    for row in lake.rows("states", days=[day], columns=columns):
        if row["error_kind"] is not None:
            key = row["error_kind"], row["hint_source"] or ""
            states[key] += 1
            hints[key] += row["hint"] is not None
    return {
        "unknown_record_types": [{"type": t, "records": n} for t, n in _sorted(unknown)],
        "error_kinds": [
            {"error_kind": kind, "source": source, "states": n, "hints": hints[kind, source]}
            for (kind, source), n in _sorted(states)
        ],
        "redactions_by_kind": [
            {"kind": kind, "replacements": n} for kind, n in _sorted(Counter(redactions))
        ],
    }


def _sorted(counts: Counter[_Key]) -> list[tuple[_Key, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
