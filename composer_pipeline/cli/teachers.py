"""The commands plan, preview, replay and budget, and what they print."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_UP, Decimal
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.console import Console, RenderableType
from rich.text import Text

from composer_pipeline.cli.common import (
    Bar,
    JsonOption,
    LakeOption,
    LedgerOption,
    SessionFilter,
    Table,
    app,
    at_least,
    err,
    ledger_of,
    open_lake,
    show,
    usd,
)
from composer_pipeline.errors import BudgetExhausted, ComposerError, InputError
from composer_pipeline.money import PICO
from composer_pipeline.settings import Settings

if TYPE_CHECKING:
    from composer_pipeline.teachers.plan import PlanPoint, ReplayPlan, TeacherPlan
    from composer_pipeline.teachers.report import ReplayReport
    from composer_pipeline.teachers.selection import SelectionReport

_STRATEGIES = {
    "naive": "every prompt in full",
    "chain": "sessions in order, prompts cached",
    "chain_exact": "and stop when the vote is decided",
    "chain_student": "and stop when the agent is confirmed",
    "selected": "as the teacher file says",
}
#: How many states a preview asks about.
PREVIEWED = 5
#: Rows of each table; the screen has 40 lines.
TEACHERS, DAYS, REASONS = 8, 6, 5
#: Characters of the longest bar of a curve.
_BAR = 12
#: Characters of a reason; the lines of a screen have 80.
_REASON = 64


@app.command
def plan(
    *,
    teachers: str = "",
    max_usd: str = "",
    teacher: Sequence[str] = (),
    only: SessionFilter = SessionFilter(),  # noqa: B008  frozen
    max_states: int = 0,
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show what a replay would cost, and what an amount would buy, before it costs anything.

    Args:
        teachers: teacher file (COMPOSER_TEACHERS).
        max_usd: say in full what this amount in USD would buy.
        teacher: only this teacher of the file; may be given again.
        max_states: at most this many states; 0 is all.
    """
    from composer_pipeline.preferences.vote import VoteDecision
    from composer_pipeline.teachers.plan import plan as run
    from composer_pipeline.teachers.teachers import TeacherSet

    settings = Settings.from_env()
    amount = usd(max_usd, "--max-usd") if max_usd else None
    teacher_set = TeacherSet.load(teachers or settings.teachers)
    store = open_lake(lake)
    with Bar() as progress:
        report = run(
            store,
            teacher_set,
            days=only.days(store),
            sessions=only.sessions(store),
            teachers=list(teacher) or None,
            max_states=at_least(0, max_states, "--max-states") or None,
            ledger=settings.ledger or None,
            decide=VoteDecision(),
            max_usd=amount,
            progress=progress,
        )
    if as_json:
        show(report.to_dict(), True, "plan")
        return
    *tables, notes = plan_tables(report)
    if report.calls:
        Console().print(*tables)
    else:
        paid = "Every reply is paid for; n" if report.cached else "N"
        told = f"{paid}othing would be asked ({report.states} states, {report.cached} replies)."
        Console().print(told, highlight=False)
    if notes.rows:
        Console().print(notes)
    for part in curve_view(report, amount):
        Console().print(part)


@app.command
def replay(
    *,
    teachers: str = "",
    max_usd: str = "",
    teacher: Sequence[str] = (),
    only: SessionFilter = SessionFilter(),  # noqa: B008  frozen
    max_states: int = 0,
    again: Literal["", "unreadable"] = "",
    dry_run: bool = False,
    verbose: Annotated[bool, Parameter(negative="")] = False,
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Buy the teachers' replies under a hard ceiling.

    Args:
        teachers: teacher file (COMPOSER_TEACHERS).
        max_usd: ceiling of this run in USD (COMPOSER_MAX_USD).
        teacher: only this teacher of the file; may be given again.
        max_states: at most this many states; 0 is all.
        again: unreadable asks again about replies that were paid for and cannot be read.
        dry_run: show what it would ask and cost, as `plan`; buy nothing.
        verbose: list every question without a reply, and every day.
    """
    from composer_pipeline.cli.common import LiveReplay
    from composer_pipeline.preferences.vote import VoteDecision
    from composer_pipeline.teachers.plan import plan as estimate
    from composer_pipeline.teachers.plan import selector_for
    from composer_pipeline.teachers.run import replay as run
    from composer_pipeline.teachers.teachers import TeacherSet

    if dry_run:
        plan(teachers=teachers, max_usd=max_usd, teacher=teacher, only=only, max_states=max_states,
             lake=lake, as_json=as_json)  # fmt: skip
        return
    settings = Settings.from_env()
    ceiling = usd(max_usd or settings.max_usd, "--max-usd")
    teacher_set = TeacherSet.load(teachers or settings.teachers)
    store = open_lake(lake)
    selector = selector_for(store, teacher_set, VoteDecision())
    some: dict[str, Any] = {
        "days": only.days(store), "sessions": only.sessions(store),
        "teachers": list(teacher) or None,
        "max_states": at_least(0, max_states, "--max-states") or None,
        "ledger": settings.ledger or None,
    }  # fmt: skip
    brief = not (as_json or verbose)
    teacher_set.check_keys()
    if selector and brief:
        with Bar() as progress:
            planned = estimate(
                store, teacher_set, decide=VoteDecision(), max_usd=ceiling, progress=progress,
                **some,
            )  # fmt: skip
        Console().print(_bought(_point(planned, ceiling)), markup=False, highlight=False)
    with LiveReplay(err) as live:
        report = run(
            store, teacher_set, max_usd=ceiling, on_progress=live, selector=selector, again=again,
            **some,
        )  # fmt: skip
    selected = selector.report() if selector else None
    if not brief:
        chosen = {"selection": selected.to_dict()} if selected else {}
        show(report.to_dict() | chosen, as_json, "replay")
    else:
        options = [*only.typed(), *(f"--teacher {shlex.quote(name)}" for name in teacher)]
        options += [f"--max-states {max_states}"] if max_states else []
        for part in replay_view(report, _command(report, teachers, options)):
            Console().print(part)
        if selected:
            Console().print(_came_of(selected), markup=False, highlight=False)
    _fail_for(report)


@app.command
def preview(
    *,
    teachers: str = "",
    max_usd: str = "0.50",
    teacher: Sequence[str] = (),
    only: SessionFilter = SessionFilter(),  # noqa: B008  frozen
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Ask about five states, the most promising ones, and show what came of each side by side.

    Args:
        teachers: teacher file (COMPOSER_TEACHERS).
        max_usd: ceiling of this run in USD.
        teacher: only this teacher of the file; may be given again.
    """
    from composer_pipeline.cli.common import LiveReplay
    from composer_pipeline.cli.preferences import show_pair
    from composer_pipeline.preferences.explain import explain
    from composer_pipeline.preferences.vote import VoteDecision
    from composer_pipeline.teachers.plan import plan, selector_for
    from composer_pipeline.teachers.questions import Questions
    from composer_pipeline.teachers.run import replay
    from composer_pipeline.teachers.selection import choose
    from composer_pipeline.teachers.teachers import TeacherSet
    from composer_pipeline.teachers.value import model_of

    settings = Settings.from_env()
    ceiling = usd(max_usd, "--max-usd")
    teacher_set = TeacherSet.load(teachers or settings.teachers)
    store = open_lake(lake)
    selector = selector_for(store, teacher_set, VoteDecision())
    days, names = only.days(store), list(teacher) or None
    some: dict[str, Any] = {"sessions": only.sessions(store), "teachers": names}
    first = teacher_set.selection.model_copy(update={"max_states": PREVIEWED})
    states, _ = choose(
        Questions(store, teacher_set, days=days, **some).states, first, model_of(store)
    )
    if not states:
        raise InputError(f"lake {store.url} has no states that {teachers or 'the file'} asks about")
    some["ledger"] = settings.ledger or None
    with LiveReplay(err) as live:
        report = replay(
            store, teacher_set, max_usd=ceiling, days=sorted({state.day for state in states}),
            states={state.state_id for state in states}, on_progress=live, selector=selector,
            **some,
        )  # fmt: skip
    found = [explain(store, state.state_id) for state in states]
    rest = plan(store, teacher_set, days=days, decide=VoteDecision(), **some)
    if as_json:
        show({"states": found, "replay": report.to_dict(), "plan": rest.to_dict()}, True, "")
    else:
        for facts in found:
            show_pair(Console(), facts)
        made = sum(facts["reason"] == "pair" for facts in found)
        more = (
            f"{made} of these {len(found)} states made a pair; asking about all {rest.states}: up"
            f" to {rest.calls} calls more, {_usd(rest.expected_usd)} expected,"
            f" {_usd(rest.worst_usd)} at most"
        )
        # What was spent and what is held, without the tables.
        for part in (*islice(replay_view(report, ""), 1 + bool(report.reserved_usd)), Text(more)):
            Console().print(part)
    _fail_for(report)


def _fail_for(report: "ReplayReport") -> None:
    """Raise what a replay's report says went wrong."""
    if report.exhausted_scope:
        raise BudgetExhausted(
            f"budget exhausted in scope {report.exhausted_scope}; {len(report.not_bought)} replies"
            " were not bought"
        )
    if stopped := report.stopped():
        for error in stopped[1:]:
            err.print(f"error: {error}", markup=False, highlight=False)
        raise stopped[0]
    if problem := report.problem():
        raise ComposerError(problem)


def _command(report: "ReplayReport", teachers: str, typed: Sequence[str]) -> str:
    """Return the command to go on with after a ceiling stopped the run."""
    more = max(report.ceiling_usd, 2 * (report.next_call_usd or Decimal(0)))
    more = more.quantize(Decimal("0.01"), ROUND_UP)
    options = [f"--teachers {shlex.quote(teachers)}"] if teachers else []
    options += typed
    if report.exhausted_scope.startswith("run:"):
        return " ".join(["composer-pipeline replay", f"--max-usd {more}", *options])
    return f"composer-pipeline budget set {report.exhausted_scope} USD, then replay again"


budget = App(name="budget", help="Show and set ceilings, and lift quarantines.")
app.command(budget)


@budget.default
def budget_show(
    *, ledger: LedgerOption = "", lake: LakeOption = "", as_json: JsonOption = False
) -> None:
    """List the ledger's scopes: ceiling, spent, reserved and unknown, in exact USD."""
    from composer_pipeline.teachers.ledger.ledger import budget_report

    report = budget_report(ledger_of(lake, ledger))
    if as_json:
        show(report, True, "budget")
        return
    table = Table("scope", "ceiling", "spent", "reserved", "unknown", title=report["ledger"])
    for row in report["scopes"]:
        table.add_row(*("none" if value is None else value for value in row.values()))
    Console().print(table)
    for teacher, why in report["quarantined"].items():
        Console().print(f"quarantined: {teacher}: {why}", markup=False)


@budget.command(name="set")
def budget_set(
    scope: str,
    amount: str,
    /,
    *,
    ledger: LedgerOption = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Set the ceiling of a scope; calls in flight are not touched.

    Args:
        scope: global, run:NAME, backfill:ID, root:RUN (a run and what was started from it again),
            day:YYYY-MM-DD, month:YYYY-MM, teacher:NAME, or partition:YYYY-MM-DD (day of the
            states).
        amount: the ceiling in USD, or none.
    """
    from composer_pipeline.teachers.ledger import operations
    from composer_pipeline.teachers.ledger.ledger import Ledger, check_scope

    name = check_scope(scope)
    ceiling = None if amount == "none" else usd(amount, f"the ceiling of {name}")
    with Ledger(ledger_of(lake, ledger)) as opened:
        opened.do(operations.set_ceiling(name, ceiling))
    show({"scope": name, "ceiling_usd": ceiling}, as_json, "budget set")


@budget.command(name="rebuild")
def budget_rebuild(
    *, ledger: LedgerOption = "", lake: LakeOption = "", as_json: JsonOption = False
) -> None:
    """Write a lost ledger again from the lake's replies and what they cost.

    Ceilings, and calls whose outcome was not known, are not in the lake: set the ceilings anew.
    """
    from composer_pipeline.teachers.ledger.ledger import Ledger, ledger_target
    from composer_pipeline.teachers.replies import rebuild

    opened_lake = open_lake(lake)
    with Ledger(ledger_target(opened_lake, ledger)) as opened:
        show(rebuild(opened_lake, opened), as_json, "budget rebuild")


@budget.command(name="lift")
def budget_lift(
    teacher: str,
    /,
    *,
    ledger: LedgerOption = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Admit a teacher again that was quarantined because a bill passed its worst case.

    Args:
        teacher: its name in the teacher file.
    """
    from composer_pipeline.teachers.ledger import operations
    from composer_pipeline.teachers.ledger.ledger import existing_ledger

    opened = existing_ledger(ledger_of(lake, ledger))
    lifted = False
    if opened:
        with opened:
            lifted = opened.do(operations.lift_quarantine(teacher))
    if not lifted:
        raise InputError(f"teacher {teacher} is not quarantined")
    show({"teacher": teacher, "lifted": lifted}, as_json, "budget lift")


def plan_tables(found: "ReplayPlan") -> list[Table]:
    """Return the tables: strategies, teachers, and what was assumed."""
    title = f"{found.states} states, {found.calls} calls open, {found.cached} already answered"
    ways = Table("way of asking", "", "calls", "expected", "of naive", title=title)
    ways.title_justify = "left"
    for name, way in found.strategies.items():
        share = "-" if way.share_of_naive is None else f"{way.share_of_naive:.1%}"
        ways.add_row(name, _STRATEGIES[name], f"{way.calls:.0f}", _usd(way.usd), share)
    ways.add_row("worst", "bound, reserved", str(found.calls), _usd(found.worst_usd), "")

    rows = Table("#", "teacher", "calls", "asked", "expected", "worst", "prices", "tokens")
    for name, item in sorted(found.by_teacher.items(), key=lambda pair: (pair[1].rank, pair[0])):
        measured = "measured" if item.measured_replies else "assumed"
        rows.add_row(
            str(item.rank or "-"), f"{name} (control)" if item.control else name,
            str(item.calls), f"{item.asked_share:.0%}",
            _usd(item.expected_picodollars / PICO),
            _usd(item.worst_picodollars / PICO),
            "stopped" if item.stop else item.prices, measured,
        )  # fmt: skip

    agreement = found.agreement
    notes = Table("", "", show_header=False, box=None)
    on = f"measured on {agreement.states} states" if agreement.source == "measured" else (
        agreement.source
    )  # fmt: skip
    if found.calls:
        notes.add_row("agreement", f"p = {agreement.p:g}, q = {agreement.q:g} ({on})")
        for line in _price_notes(found):
            notes.add_row("prices", line)
    for name, item in found.by_teacher.items():
        if item.answered_before:
            notes.add_row("new calls", _why_new(name, item))
        for line in [item.stop] if item.stop else item.warnings:
            notes.add_row("note", line)
    return [ways, rows, notes]


def curve_view(found: "ReplayPlan", amount: Decimal | None) -> Iterator[RenderableType]:
    """Yield what amounts would buy, as a table with bars, and one of them in full."""
    points = found.curve
    if not points[-1].states:
        return
    most = max(point.pairs for point in points) or 1
    rows = Table("for", "states", "sessions", "pairs", "95 %", "", "uncached",
                 title="what amounts would buy, the most valuable states first")  # fmt: skip
    rows.title_justify = "left"
    for point in points:
        rows.add_row(
            _usd(point.spent) + " (all)" if point.usd is None else f"${point.usd:g}",
            f"{point.states:,}", f"{point.sessions:,}", f"{point.pairs:,.0f}",
            f"{point.low:,.0f}-{point.high:,.0f}",
            "\u2588" * max(1, round(_BAR * point.pairs / most)),
            _usd(point.uncached),
        )  # fmt: skip
    yield rows
    if amount is not None:
        yield Text(_bought(_point(found, amount)))
    source = f"fitted to {found.votes} votes" if found.votes else "assumed: no vote is known yet"
    yield Text(f"the chance of a pair is {source}")


def _point(found: "ReplayPlan", amount: Decimal) -> "PlanPoint":
    """Return what an amount would buy."""
    return next(p for p in found.curve if p.usd is None or p.usd >= amount)


def _came_of(found: "SelectionReport") -> str:
    """Return one sentence on what was asked and what was left."""
    text = (
        f"{found.pairs:,} states made a pair; {found.by_value:,} were asked by value,"
        f" {found.drawn:,} drawn by chance, {found.left:,} left"
    )
    if found.left_pairs is None or not found.left:
        return text
    return (
        f"{text}, of which about {found.left_pairs:,.0f} would make one"
        f" ({found.left_low:,} to {found.left_high:,})"
    )


def _bought(point: "PlanPoint") -> str:
    """Return one sentence on what an amount would buy."""
    kinds = ", ".join(f"{name} {count:,}" for name, count in point.kinds.items())
    return (
        f"{_usd(point.spent)} would ask about {point.states:,} states of {point.sessions:,}"
        f" sessions ({kinds or 'none with a sign of trouble'}): {point.pairs:,.0f} pairs expected,"
        f" {point.low:,.0f} to {point.high:,.0f}"
    )


def _price_notes(found: "ReplayPlan") -> Iterator[str]:
    """Yield what stands for the prices of a catalogue that was not read."""
    from composer_pipeline.teachers.plan_model import typical_prices

    cached, uncached = _usd(found.expected_usd), _usd(found.expected_uncached_usd)
    expected = f"expected {cached}, or {uncached} if nothing is read from the cache"
    read = f"(no catalogue was read; reading it needs no key); {expected}"
    notes = {"typical": f"typical ones of {typical_prices()[0]} for %s {read}"}
    notes["caps"] = "caps of the teacher file for %s, no cached reads: no catalogue was read"
    for kind, note in notes.items():
        if names := [n for n, it in found.by_teacher.items() if it.prices == kind and not it.stop]:
            yield note % ", ".join(names)


def _why_new(name: str, item: "TeacherPlan") -> str:
    """Return what made calls new that a teacher had answered."""
    changed = ", ".join(
        what if count == item.answered_before else f"{what} (at {count})"
        for what, count in item.changed.items()
    )
    return (
        f"{name}: {item.answered_before} of {item.calls} calls were answered and paid for"
        f" before, under other settings; what changed: {changed}"
    )


def replay_view(report: "ReplayReport", go_on: str) -> Iterator[RenderableType]:
    """Yield the sum, teachers, days and reasons; ``go_on`` is the command after a ceiling."""
    bought = report.replies - report.cached
    yield Text(
        f"{'simulated ' if report.simulated else ''}replay of {report.states} states:"
        f" {_usd(report.spent_usd)} of {_usd(report.ceiling_usd)} spent,"
        f" {bought} replies bought, {report.cached} were there"
    )
    if report.reserved_usd:
        yield Text(f"{_usd(report.reserved_usd)} more are held for replies of unknown outcome")
    yield _teacher_table(report)
    yield _day_table(report.by_day_teacher)
    reasons = _reasons(report)
    if reasons:
        yield _table(("without a reply", "why"), reasons, REASONS)
    if report.sweep:
        yield Text(report.sweep[:200])
    if report.exhausted_scope:
        yield Text(f"{report.at_the_ceiling()}\ngo on: {go_on}")


def _teacher_table(report: "ReplayReport") -> Table:
    rows = [
        (
            name[:20], f"{item.replies}", f"{item.cached}", f"{item.not_asked}",
            _usd(item.cost_picodollars / PICO), (item.stopped or "")[:24],
        )
        for name, item in report.by_teacher.items()
    ]  # fmt: skip
    heads = ("teacher", "replies", "there before", "not asked", "spent", "stopped")
    return _table(heads, rows, TEACHERS)


def _day_table(days: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Table:
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
    value = amount or 0
    return f"${value:,.2f}" if value >= 1 else f"${value:.4f}"
