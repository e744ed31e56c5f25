"""A plan as tables for a terminal.

Belongs here: which figures a person sees, and in which words. Does not belong here: the
figures (``replay.plan.plan``).
"""

from decimal import Decimal

from composer_pipeline.cli.views.table import Table
from composer_pipeline.replay.plan import Plan, TeacherPlan

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
        ways.add_row(name, _WORDS[name], f"{way.calls:.0f}", _usd(way.usd), share)
    ways.add_row("worst", "bound, reserved", str(plan.calls), _usd(float(plan.worst_usd)), "")

    rows = Table("#", "teacher", "calls", "asked", "expected", "worst", "prices", "tokens")
    for name, item in sorted(plan.by_teacher.items(), key=lambda pair: (pair[1].rank, pair[0])):
        measured = "measured" if item.measured_replies else "assumed"
        rows.add_row(
            str(item.rank or "-"), f"{name} (control)" if item.control else name,
            str(item.calls), f"{item.asked_share:.0%}",
            _usd(float(Decimal(item.expected_picodollars).scaleb(-12))),
            _usd(float(Decimal(item.worst_picodollars).scaleb(-12))),
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


def _usd(amount: float) -> str:
    return f"${amount:,.2f}" if amount >= 1 else f"${amount:.4f}"
