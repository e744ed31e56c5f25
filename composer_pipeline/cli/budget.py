"""Commands of the ledger: budget, budget set, budget rebuild, budget lift.

Does not belong here: buying (``cli.replay``).
"""

from cyclopts import App
from rich.console import Console

from composer_pipeline.cli.common import (
    JsonOption,
    LakeOption,
    LedgerOption,
    app,
    ledger_of,
    open_lake,
    show,
    usd,
)
from composer_pipeline.cli.views.table import Table
from composer_pipeline.errors import InputError

budget = App(name="budget", help="Show and set ceilings, and lift quarantines.")
app.command(budget)


@budget.default
def budget_show(
    *, ledger: LedgerOption = "", lake: LakeOption = "", as_json: JsonOption = False
) -> None:
    """List the ledger's scopes: ceiling, spent, reserved and unknown, in exact USD."""
    from composer_pipeline.replay.ledger import budget_report

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
    from composer_pipeline.replay.ledger import check_scope, open_ledger, rules

    name = check_scope(scope)
    ceiling = None if amount == "none" else usd(amount, f"the ceiling of {name}")
    with open_ledger(ledger_of(lake, ledger)) as opened:
        opened.do(rules.set_ceiling(name, ceiling))
    show({"scope": name, "ceiling_usd": ceiling}, as_json, "budget set")


@budget.command(name="rebuild")
def budget_rebuild(
    *, ledger: LedgerOption = "", lake: LakeOption = "", as_json: JsonOption = False
) -> None:
    """Write a lost ledger again from the lake's replies and what they cost.

    Ceilings, and calls whose outcome was not known, are not in the lake: set the ceilings anew.
    """
    from composer_pipeline.replay.engine import rebuild
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
    from composer_pipeline.replay.ledger import existing_ledger, rules

    opened = existing_ledger(ledger_of(lake, ledger))
    lifted = False
    if opened:
        with opened:
            lifted = opened.do(rules.lift_quarantine(teacher))
    if not lifted:
        raise InputError(f"teacher {teacher} is not quarantined")
    show({"teacher": teacher, "lifted": lifted}, as_json, "budget lift")
