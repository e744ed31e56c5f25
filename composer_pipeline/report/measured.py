"""What the report says besides what the card counts: replies by teacher, errors, runs.

Belongs here: asking the lake and the run folders. Does not belong here: words
(``report.sections``).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import RESULT, finished
from composer_pipeline.training.runs.identity import dataset_digest


@dataclass(frozen=True)
class Replies:
    """A teacher's replies on the days of the dataset. Latency in milliseconds, cost in USD."""

    teacher: str
    model: str
    family: str
    replies: int
    usable: int
    cost_usd: float
    p50_ms: float | None
    p95_ms: float | None
    tokens: float | None


def replies_by_teacher(lake: Lake, days: Iterable[str]) -> list[Replies]:
    """Return every teacher that answered on some days, by name."""
    rows = _ask(
        lake, "replies", days,
        "SELECT teacher, max(model), max(family), count(*), count(*) FILTER (status = 'ok'),"
        " coalesce(sum(cost_picodollars), 0)::DOUBLE / 1e12, quantile_disc(latency_ms, 0.5),"
        " quantile_disc(latency_ms, 0.95), quantile_disc(completion_tokens, 0.5)"
        " FROM replies WHERE {days} GROUP BY teacher ORDER BY teacher",
    )  # fmt: skip
    return [Replies(*row) for row in rows]


def errors(lake: Lake, days: Iterable[str]) -> list[tuple[str, int, int]]:
    """Return (kind, states whose action failed so, of these with a hint), the most first."""
    rows = _ask(
        lake, "states", days,
        "SELECT error_kind, count(*), count(hint) FROM states"
        " WHERE error_kind IS NOT NULL AND {days}"
        " GROUP BY error_kind ORDER BY 2 DESC, 1",
    )  # fmt: skip
    return [(str(kind), int(states), int(hints)) for kind, states, hints in rows]


def unusable(lake: Lake, days: Iterable[str]) -> list[tuple[str, str, int]]:
    """Return (teacher, status, replies) of replies that cannot vote."""
    rows = _ask(
        lake, "replies", days,
        "SELECT teacher, status, count(*) FROM replies"
        " WHERE status <> 'ok' AND {days}"
        " GROUP BY teacher, status ORDER BY teacher, 3 DESC, status",
    )  # fmt: skip
    return [(str(teacher), str(status), int(count)) for teacher, status, count in rows]


def _ask(lake: Lake, table: str, days: Iterable[str], sql: str) -> list[Any]:
    """Return the rows of a query whose ``{days}`` is the condition; none without table or days."""
    wanted = sorted(days)
    if not wanted or not lake.days(table):
        return []
    marks = ", ".join("?" * len(wanted))
    return list(lake.query(sql.format(days=f"day IN ({marks})"), wanted))


def runs_on(lake: Lake, run_root: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return the finished runs that were trained on the dataset as it is, by name."""
    found = []
    for path in sorted(run_root.glob(f"*/{RESULT}")):
        try:
            result = finished(path.parent)
            recipe = TrainingRecipe.model_validate(result["recipe"])
        except (InputError, ValueError, KeyError):
            continue  # a run of another version, or half written: not one of this dataset
        if dataset_digest(lake, recipe) == result.get("dataset_sha"):
            found.append((path.parent, result))
    return found
