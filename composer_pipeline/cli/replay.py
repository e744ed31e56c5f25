"""Commands around the teachers: plan, replay, budget, tools, doctor."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from composer_pipeline.cli.common import (
    JsonOption,
    LakeOption,
    LedgerOption,
    app,
    err,
    open_lake,
    show,
    usd,
)
from composer_pipeline.errors import BudgetExhausted, ComposerError, InputError
from composer_pipeline.settings import Settings


@app.command
def plan(
    *,
    teachers: str = "",
    day: Sequence[str] = (),
    max_states: int = 0,
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Say what a replay would cost, before it costs anything.

    Args:
        teachers: teacher file (COMPOSER_TEACHERS).
        day: only these days (YYYY-MM-DD).
        max_states: at most this many states; 0 is all.
    """
    from composer_pipeline.cli.views.plan import plan_tables
    from composer_pipeline.preferences.agreement import VoteDecision
    from composer_pipeline.replay.plan import plan as run
    from composer_pipeline.replay.teachers import TeacherSet

    settings = Settings.from_env()
    teacher_set = TeacherSet.load(teachers or settings.teachers)
    report = run(
        open_lake(lake),
        teacher_set,
        days=list(day) or None,
        max_states=max_states or None,
        ledger=settings.ledger or None,
        decide=VoteDecision(),
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
    day: Sequence[str] = (),
    max_states: int = 0,
    again: str = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Buy the teachers' replies under a hard ceiling.

    Args:
        teachers: teacher file (COMPOSER_TEACHERS).
        max_usd: ceiling of this run in USD (COMPOSER_MAX_USD).
        day: only these days (YYYY-MM-DD).
        max_states: at most this many states; 0 is all.
        again: unreadable asks again about replies that were paid for and cannot be read.
    """
    from composer_pipeline.cli.views.progress import LiveReplay
    from composer_pipeline.preferences.agreement import VoteDecision
    from composer_pipeline.replay.engine import replay as run
    from composer_pipeline.replay.plan import selector_for
    from composer_pipeline.replay.teachers import TeacherSet

    settings = Settings.from_env()
    ceiling = usd(max_usd or settings.max_usd, "--max-usd")
    teacher_set = TeacherSet.load(teachers or settings.teachers)
    selector = selector_for(teacher_set, VoteDecision())
    with LiveReplay(err) as live:
        report = run(
            open_lake(lake),
            teacher_set,
            max_usd=ceiling,
            days=list(day) or None,
            max_states=max_states or None,
            ledger=settings.ledger or None,
            on_progress=live,
            selector=selector,
            again=again,
        )
    chosen = {"selection": selector.report().to_dict()} if selector else {}
    show(report.to_dict() | chosen, as_json, "replay")
    if report.exhausted_scope:
        raise BudgetExhausted(
            f"budget exhausted in scope {report.exhausted_scope}; {len(report.not_bought)} replies"
            " were not bought, run again with a higher --max-usd to buy them"
        )
    if stopped := report.stopped():
        for error in stopped[1:]:
            err.print(f"error: {error}", markup=False, highlight=False)
        raise stopped[0]
    if problem := report.problem():
        raise ComposerError(problem)


budget = App(name="budget", help="Show and set ceilings, and lift quarantines.")


app.command(budget)


@budget.default
def budget_show(
    *, ledger: LedgerOption = "", lake: LakeOption = "", as_json: JsonOption = False
) -> None:
    """List the ledger's scopes: ceiling, spent, reserved and unknown, in exact USD."""
    from composer_pipeline.replay.ledger import budget_report, ledger_target

    report = budget_report(ledger_target(open_lake(lake), ledger))
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
        scope: global, run:NAME, day:YYYY-MM-DD, month:YYYY-MM, teacher:NAME, or
            partition:YYYY-MM-DD (day of the states).
        amount: the ceiling in USD, or none.
    """
    from composer_pipeline.replay.ledger import check_scope, ledger_target, open_ledger, rules

    name = check_scope(scope)
    ceiling = None if amount == "none" else usd(amount, f"the ceiling of {name}")
    with open_ledger(ledger_target(open_lake(lake), ledger)) as opened:
        opened.do(rules.set_ceiling(name, ceiling))
    show({"scope": name, "ceiling_usd": ceiling}, as_json, "budget set")


@budget.command(name="rebuild")
def budget_rebuild(
    *, ledger: LedgerOption = "", lake: LakeOption = "", as_json: JsonOption = False
) -> None:
    """Write a lost ledger again from the lake's replies and what they cost.

    Ceilings, and calls whose outcome was not known, are not in the lake: set the ceilings anew.
    """
    from composer_pipeline.replay.engine.rebuild import rebuild
    from composer_pipeline.replay.ledger import ledger_target, open_ledger

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
    from composer_pipeline.replay.ledger import existing_ledger, ledger_target, rules

    opened = existing_ledger(ledger_target(open_lake(lake), ledger))
    lifted = False
    if opened:
        with opened:
            lifted = opened.do(rules.lift_quarantine(teacher))
    if not lifted:
        raise InputError(f"teacher {teacher} is not quarantined")
    show({"teacher": teacher, "lifted": lifted}, as_json, "budget lift")


tools_app = App(name="tools", help="Tool schemas of a user's own Claude Code installation.")


app.command(tools_app)


@tools_app.command(name="import")
def tools_import(
    path: Path, /, *, version: str = "", lake: LakeOption = "", as_json: JsonOption = False
) -> None:
    """Keep the tool schemas of an installation in the lake, for states not yet asked.

    Args:
        path: the installed npm package's folder, or its sdk-tools.d.ts.
        version: version of Claude Code, where no package.json tells it.
    """
    from composer_pipeline.chat import keep, read_installation

    tools = read_installation(path, version)
    keep(open_lake(lake), tools)
    report = {"version": tools.version, "tools": sorted(tools.parameters)}
    show(report, as_json, "tools import")


@tools_app.command(name="list")
def tools_list(*, lake: LakeOption = "", as_json: JsonOption = False) -> None:
    """List the versions whose tool schemas the lake keeps."""
    from composer_pipeline.chat import kept_sets

    kept = {item.version: len(item.parameters) for item in kept_sets(open_lake(lake))}
    show({"versions": kept}, as_json, "tools")


@app.command
def doctor(
    *,
    live: Annotated[bool, Parameter(negative="")] = False,
    max_usd: str = "0.05",
    teachers: str = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Check the environment, the keys (present or not), the recipes and the lake.

    Args:
        live: also ask the provider what its documentation leaves open; costs cents.
        max_usd: ceiling of --live in USD.
        teachers: teacher file of --live (COMPOSER_TEACHERS); the cheapest teacher is asked.
    """
    from composer_pipeline.doctor import run_checks, run_live

    settings = Settings.from_env()
    probes: list[dict[str, str]] = []
    found: dict[str, Any] = {}
    if live:
        # First, so that a missing key is the one thing that is said.
        ceiling = usd(max_usd, "--max-usd")
        file = teachers or settings.teachers
        probes, found["live"] = run_live(open_lake(lake), settings, file, ceiling)
    checks = [*run_checks(open_lake(lake), settings), *probes]
    if as_json:
        show({"checks": checks, **found}, True, "doctor")
    else:
        table = Table("check", "status", "detail")
        for check in checks:
            table.add_row(check["name"], check["status"], check["detail"])
        Console().print(table)
    if any(check["status"] == "fail" for check in checks):
        raise ComposerError("doctor found a failing check")
