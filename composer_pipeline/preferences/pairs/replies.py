"""A day's replies as a vote takes them: the newest of each teacher, and what all of them were.

Does not belong here: who of them may vote (``preferences.agreement.eligibility``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from composer_pipeline.lake import Lake
from composer_pipeline.preferences.agreement import Reply

#: Columns of `replies` that a vote and its explanation read.
REPLY_COLUMNS = [
    "state_id",
    "family",
    "model",
    "status",
    "detail",
    "action",
    "request_hash",
    "completion_tokens",
    "cost_picodollars",
    "simulated",
    "created_at",
    "control",
    "training_terms",
    "licence",
]


def usable_replies(lake: Lake, day: str) -> dict[str, list[Reply]]:
    """Return state id to its usable replies, the newest of each teacher, sorted by teacher."""
    return usable_of(reply_rows(lake, day))


def usable_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Reply]]:
    """Return :func:`usable_replies` of rows of the table ``replies``."""
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in rows:
        if row["status"] != "ok" or row["action"] is None:
            continue
        key = (row["state_id"], row["teacher"])
        old = newest.get(key)
        if old is None or reply_age(row) > reply_age(old):
            newest[key] = row
    found: dict[str, list[Reply]] = {}
    for (state_id, _), row in sorted(newest.items()):
        found.setdefault(state_id, []).append(Reply.from_row(row))
    return found


@dataclass
class Answers:
    """All replies to a state: how many, their billed cost, and those that cannot vote."""

    count: int = 0
    cost: int = 0
    unusable: list[str] = field(default_factory=list)


def answers_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, Answers]:
    """Return state id to what all its replies were, from rows of the table ``replies``."""
    found: dict[str, Answers] = {}
    for row in sorted(rows, key=lambda row: (row["state_id"], row["teacher"], reply_age(row))):
        mine = found.setdefault(row["state_id"], Answers())
        mine.count += 1
        mine.cost += row["cost_picodollars"] or 0
        if row["status"] != "ok" or row["action"] is None:
            why = row["detail"] or "no reason is recorded"
            mine.unusable.append(f"{row['teacher']}: {row['status']}: {why}")
    return found


def cost_of_states(lake: Lake, day: str) -> dict[str, int]:
    """Return state id to the billed cost of all its replies, usable or not, in picodollars."""
    return {state_id: told.cost for state_id, told in answers_of(reply_rows(lake, day)).items()}


def reply_rows(lake: Lake, day: str) -> list[dict[str, Any]]:
    """Return a day's rows of the table ``replies``."""
    return lake.rows("replies", days=[day], columns=REPLY_COLUMNS)


def reply_age(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return what orders the replies of a teacher to a state; the greatest is the newest."""
    return str(row["created_at"] or ""), str(row["request_hash"])
