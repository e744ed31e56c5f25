"""What a replay did, on one screen.

Belongs here: which figures a person sees, and in which words. Does not belong here: the figures
(``replay.engine.report``); ``--json`` and ``--verbose`` have all of them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from composer_pipeline.cli.views.table import Table
from composer_pipeline.money import PICO

if TYPE_CHECKING:
    from composer_pipeline.replay.engine import ReplayReport

#: Rows of each table; the screen has 40 lines.
TEACHERS, DAYS, REASONS = 8, 6, 5
#: Characters of a reason: the lines of a screen have 80.
_REASON = 64


def replay_view(report: "ReplayReport", go_on: str) -> Iterator[RenderableType]:
    """Yield what to print: the sum, teachers, days, reasons, and where it stopped.

    Args:
        report: the report.
        go_on: the command that goes on where a ceiling stopped the run.
    """
    bought = report.replies - report.cached
    yield Text(
        f"{'simulated ' if report.simulated else ''}replay of {report.states} states:"
        f" {_usd(report.spent_usd)} of {_usd(report.ceiling_usd)} spent,"
        f" {bought} replies bought, {report.cached} were there"
    )
    if report.reserved_usd:
        yield Text(f"{_usd(report.reserved_usd)} more are held for replies of unknown outcome")
    yield _teachers(report)
    yield _days(report.by_day_teacher)
    reasons = _reasons(report)
    if reasons:
        yield _table(("without a reply", "why"), reasons, REASONS)
    if report.sweep:
        yield Text(report.sweep[:200])
    if report.exhausted_scope:
        yield Text(
            f"stopped by the ceiling of {report.exhausted_scope}: {_usd(report.left_usd)} left,"
            f" the next call may need {_usd(report.next_call_usd)} (its worst case, and as much to"
            f" fetch a lost reply).\ngo on: {go_on}"
        )


def _teachers(report: "ReplayReport") -> Table:
    rows = [
        (
            name[:20], f"{item.replies}", f"{item.cached}", f"{item.not_asked}",
            _usd(item.cost_picodollars / PICO), (item.stopped or "")[:24],
        )
        for name, item in report.by_teacher.items()
    ]  # fmt: skip
    heads = ("teacher", "replies", "there before", "not asked", "spent", "stopped")
    return _table(heads, rows, TEACHERS)


def _days(days: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Table:
    rows = []
    for day in sorted(days, reverse=True):
        mine = list(days[day].values())
        usable, cost = (sum(item.get(n, 0) for item in mine) for n in ("ok", "cost_picodollars"))
        rows.append((day, str(sum(item["rows"] for item in mine)), str(usable), _usd(cost / PICO)))
    return _table(("day", "replies so far", "usable", "paid so far"), rows, DAYS)


def _reasons(report: "ReplayReport") -> list[tuple[str, ...]]:
    whys: Counter[str] = Counter()
    for pair in [*report.not_bought, *report.skipped]:
        # The rest of a reason differs from state to state.
        whys[pair["why"].partition(": about")[0]] += 1
    whys["refused: the prompt holds a secret or the action itself"] += report.refused
    return [(str(count), why[:_REASON]) for why, count in whys.most_common() if count]


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], most: int) -> Table:
    table = Table(*heads, box=None, pad_edge=False)
    for row in rows[:most]:
        table.add_row(*row)
    if len(rows) > most:
        table.add_row(f"+ {len(rows) - most} more", *[""] * (len(heads) - 1))
    return table


def _usd(amount: Any) -> str:
    value = Decimal(amount or 0)
    return f"${value:,.2f}" if value >= 1 else f"${value:.4f}"
