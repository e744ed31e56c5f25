"""A plan as tables for a terminal.

Belongs here: which figures a person sees, and in which words. Does not belong here: the
figures (``replay.plan.plan``).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from composer_pipeline.cli.common import Table
from composer_pipeline.money import PICO
from composer_pipeline.teachers.plan import Plan, TeacherPlan

if TYPE_CHECKING:
    from composer_pipeline.teachers.report import ReplayReport

_WORDS = {
    "naive": "every prompt in full",
    "chain": "sessions in order, prompts cached",
    "chain_exact": "and stop when the vote is decided",
    "chain_student": "and stop when the agent is confirmed",
    "selected": "as the teacher file says",
}


def plan_tables(plan: Plan) -> list[Table]:
    """Return the tables: strategies, teachers, and what was assumed."""
    title = f"{plan.states} states, {plan.calls} calls open, {plan.cached} already answered"
    ways = Table("way of asking", "", "calls", "expected", "of naive", title=title)
    ways.title_justify = "left"
    for name, way in plan.strategies.items():
        share = "-" if way.share_of_naive is None else f"{way.share_of_naive:.1%}"
        ways.add_row(name, _WORDS[name], f"{way.calls:.0f}", _plan_usd(way.usd), share)
    ways.add_row("worst", "bound, reserved", str(plan.calls), _plan_usd(float(plan.worst_usd)), "")

    rows = Table("#", "teacher", "calls", "asked", "expected", "worst", "prices", "tokens")
    for name, item in sorted(plan.by_teacher.items(), key=lambda pair: (pair[1].rank, pair[0])):
        measured = "measured" if item.measured_replies else "assumed"
        rows.add_row(
            str(item.rank or "-"), f"{name} (control)" if item.control else name,
            str(item.calls), f"{item.asked_share:.0%}",
            _plan_usd(float(Decimal(item.expected_picodollars).scaleb(-12))),
            _plan_usd(float(Decimal(item.worst_picodollars).scaleb(-12))),
            "stopped" if item.stop else item.prices, measured,
        )  # fmt: skip

    agreement = plan.agreement
    notes = Table("", "", show_header=False, box=None)
    on = f"measured on {agreement.states} states" if agreement.source == "measured" else (
        agreement.source
    )  # fmt: skip
    notes.add_row("agreement", f"p = {agreement.p:g}, q = {agreement.q:g} ({on})")
    if any(item.prices == "caps" for item in plan.by_teacher.values()):
        notes.add_row("prices", "caps of the teacher file, no cached reads: no catalogue was read")
    for name, item in plan.by_teacher.items():
        if item.answered_before:
            notes.add_row("new calls", _why_new(name, item))
        for line in [item.stop] if item.stop else item.warnings:
            notes.add_row("note", line)
    return [ways, rows, notes]


def _why_new(name: str, item: TeacherPlan) -> str:
    """Say what made calls new that a teacher had answered."""
    changed = ", ".join(
        what if count == item.answered_before else f"{what} (at {count})"
        for what, count in item.changed.items()
    )
    return (
        f"{name}: {item.answered_before} of {item.calls} calls were answered and paid for"
        f" before, under other settings; what changed: {changed}"
    )


def _plan_usd(amount: float) -> str:
    return f"${amount:,.2f}" if amount >= 1 else f"${amount:.4f}"


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
