"""Commands that ask teachers: plan, replay."""

import shlex
from collections.abc import Sequence
from decimal import ROUND_UP, Decimal
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.console import Console

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
from composer_pipeline.settings import Settings

if TYPE_CHECKING:
    from composer_pipeline.teachers.report import ReplayReport


@app.command
def plan(
    *,
    teachers: str = "",
    teacher: Sequence[str] = (),
    only: SessionFilter = SessionFilter(),  # noqa: B008  frozen
    max_states: int = 0,
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Say what a replay would cost, before it costs anything.

    Args:
        teachers: teacher file (COMPOSER_TEACHERS).
        teacher: only this teacher of the file; may be given again.
        max_states: at most this many states; 0 is all.
    """
    from composer_pipeline.cli.teachers_views import plan_tables
    from composer_pipeline.preferences.vote import VoteDecision
    from composer_pipeline.teachers.plan import plan as run
    from composer_pipeline.teachers.teachers import TeacherSet

    settings = Settings.from_env()
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
            progress=progress,
        )
    if as_json:
        show(report.to_dict(), True, "plan")
        return
    for table in plan_tables(report):
        Console().print(table)


@app.command
def replay(
    *,
    teachers: str = "",
    max_usd: str = "",
    teacher: Sequence[str] = (),
    only: SessionFilter = SessionFilter(),  # noqa: B008  frozen
    max_states: int = 0,
    again: str = "",
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
        dry_run: say what it would ask and cost, as `plan`; buy nothing.
        verbose: list every question without a reply, and every day.
    """
    from composer_pipeline.cli.common import LiveReplay
    from composer_pipeline.cli.teachers_views import replay_view
    from composer_pipeline.preferences.vote import VoteDecision
    from composer_pipeline.teachers.plan import selector_for
    from composer_pipeline.teachers.run import replay as run
    from composer_pipeline.teachers.teachers import TeacherSet

    if dry_run:
        plan(teachers=teachers, teacher=teacher, only=only, max_states=max_states, lake=lake,
             as_json=as_json)  # fmt: skip
        return
    settings = Settings.from_env()
    ceiling = usd(max_usd or settings.max_usd, "--max-usd")
    teacher_set = TeacherSet.load(teachers or settings.teachers)
    selector = selector_for(teacher_set, VoteDecision())
    store = open_lake(lake)
    with LiveReplay(err) as live:
        report = run(
            store,
            teacher_set,
            max_usd=ceiling,
            days=only.days(store),
            sessions=only.sessions(store),
            teachers=list(teacher) or None,
            max_states=at_least(0, max_states, "--max-states") or None,
            ledger=settings.ledger or None,
            on_progress=live,
            selector=selector,
            again=again,
        )
    chosen = {"selection": selector.report().to_dict()} if selector else {}
    if as_json or verbose:
        show(report.to_dict() | chosen, as_json, "replay")
    else:
        options = [*only.typed(), *(f"--teacher {shlex.quote(name)}" for name in teacher)]
        options += [f"--max-states {max_states}"] if max_states else []
        for part in replay_view(report, _command(report, teachers, options)):
            Console().print(part)
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
    """Return the command that goes on behind a ceiling."""
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
    from composer_pipeline.teachers.ledger.ledger import check_scope, open_ledger

    name = check_scope(scope)
    ceiling = None if amount == "none" else usd(amount, f"the ceiling of {name}")
    with open_ledger(ledger_of(lake, ledger)) as opened:
        opened.do(operations.set_ceiling(name, ceiling))
    show({"scope": name, "ceiling_usd": ceiling}, as_json, "budget set")


@budget.command(name="rebuild")
def budget_rebuild(
    *, ledger: LedgerOption = "", lake: LakeOption = "", as_json: JsonOption = False
) -> None:
    """Write a lost ledger again from the lake's replies and what they cost.

    Ceilings, and calls whose outcome was not known, are not in the lake: set the ceilings anew.
    """
    from composer_pipeline.teachers.ledger.ledger import ledger_target, open_ledger
    from composer_pipeline.teachers.replies import rebuild

    opened_lake = open_lake(lake)
    with open_ledger(ledger_target(opened_lake, ledger)) as opened:
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
