"""Why a question is open although its teacher answered the same state before.

Belongs here: comparing what a call was recorded with and what would be asked now. Does not
belong here: which questions are open (``replay.plan.strategies``).

A reply is found again by the hash of what was asked, so a token limit that changed makes
every call of a teacher new; a price cap is no part of that. Only what the ledger recorded can
be named: ledgers older than the recorded settings tell the model, the tools and the converter
alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from composer_pipeline.replay.ledger import Ledger

#: What is left where everything that was recorded is as it was.
MESSAGES = "messages of the state"
#: What is left where the settings of the earlier call were not recorded.
UNRECORDED = "not recorded then: messages of the state, endpoint, max_tokens, max_price or others"

#: ``Call.meta`` that decides the body -> its name in a report, and whether values are shown.
_META = {
    "model": ("model", True),
    "converter_version": ("converter_version", True),
    "toolset": ("tools", False),
}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what differs between two ``Call.meta`` of one state and teacher; never nothing.

    Args:
        before: of an earlier call, as the ledger recorded it.
        now: of the call that would be made.
    """
    found = []
    for field, (name, shown) in _META.items():
        old, new = before.get(field), now[field]
        if old is not None and old != new:
            found.append(f"{name} {old} -> {new}" if shown else name)
    settings = before.get("settings")
    if settings is None:
        return tuple(found) or (UNRECORDED,)
    for name in sorted(settings.keys() | now["settings"].keys()):
        old, new = settings.get(name), now["settings"].get(name)
        # Caps were recorded while they were part of the keys.
        if old != new and not name.startswith("max_price."):
            found.append(f"{name} {_word(old)} -> {_word(new)}")
    return tuple(found) or (MESSAGES,)


def explain(
    ledger: Ledger, teacher: str, opened: Iterable[tuple[str, str, Mapping[str, Any]]]
) -> tuple[int, dict[str, int]]:
    """Count the open questions that were paid for before under other settings, and say which.

    Where a state was answered more than once, the call with the fewest differences counts,
    and of these the latest.

    Args:
        ledger: has the earlier calls.
        teacher: name of the teacher.
        opened: (day, state_id, ``Call.meta``) of each open question.

    Returns:
        How many, and change -> at how many of them, the most frequent first.
    """
    days: dict[str, dict[str, Mapping[str, Any]]] = {}
    for day, state, meta in opened:
        days.setdefault(day, {})[state] = meta
    again, counted = 0, Counter[str]()
    for day, asked in days.items():
        nearest: dict[str, tuple[str, ...]] = {}
        for state, before in ledger.bought(teacher, day):
            if state in asked:
                found = changes(before, asked[state])
                if state not in nearest or _weight(found) <= _weight(nearest[state]):
                    nearest[state] = found
        again += len(nearest)
        for found in nearest.values():
            counted.update(found)
    return again, dict(sorted(counted.items(), key=lambda pair: (-pair[1], pair[0])))


def _weight(found: tuple[str, ...]) -> tuple[bool, int]:
    return found == (UNRECORDED,), len(found)


def _word(value: Any) -> str:
    return "unset" if value is None else str(value)
