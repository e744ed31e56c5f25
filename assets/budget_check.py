"""The check ``within_budget`` of each teacher's asset: nothing was charged above a ceiling.

Belongs here: its spec and its result. It is evaluated by the step that buys
(``assets.replay``), so that it has a result also where that step ends early.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import dagster as dg

from composer_pipeline.lake.store import Lake

if TYPE_CHECKING:
    from composer_pipeline.teachers.ledger.values import Scope

NAME = "within_budget"


def budget_check(key: dg.AssetKey) -> dg.AssetCheckSpec:
    """Return the check of a teacher's asset."""
    return dg.AssetCheckSpec(
        NAME,
        asset=key,
        blocking=True,
        description=(
            "No scope was charged above the ceiling of that moment. A ceiling that is set below"
            " what was spent, which is how one stops spending, is no overspend."
        ),
    )


def budget_results(
    lake: Lake, ledger: str, keys: Iterable[dg.AssetKey], *, free: bool
) -> Iterator[dg.AssetCheckResult]:
    """Evaluate the check for some teachers.

    Args:
        lake: holds the ledger, unless it is named.
        ledger: path of the books; empty for the one of the lake.
        keys: the teachers' assets.
        free: whether the run bought nothing: then an overspend of others blocks nothing.
    """
    from composer_pipeline.money import to_usd
    from composer_pipeline.teachers.ledger.ledger import existing_ledger, ledger_target

    books = existing_ledger(ledger_target(lake, ledger or None))
    over, lowered = {}, ""
    if books is not None:
        with books:
            over, lowered = books.overspent(), _below_what_was_spent(books.status())
    said = ", ".join(f"{scope} by {to_usd(pico)} USD" for scope, pico in over.items())
    for key in keys:
        yield dg.AssetCheckResult(
            passed=not over,
            asset_key=key,
            check_name=NAME,
            severity=dg.AssetCheckSeverity.WARN if free else dg.AssetCheckSeverity.ERROR,
            metadata={"scopes_overspent": len(over)},
            description=f"Charged above the ceiling of that moment: {said}."
            if over
            else f"No scope was charged above its ceiling.{lowered}",
        )


def _below_what_was_spent(scopes: Mapping[str, "Scope"]) -> str:
    """Return a sentence for each ceiling that was set below what was spent; mostly nothing."""
    from composer_pipeline.money import to_usd

    return "".join(
        f" The ceiling of {scope}, {to_usd(held.ceiling)} USD, is below the"
        f" {to_usd(held.spent)} USD that it has spent: nothing is bought until it is raised"
        " (job set_ceiling), and what is free goes on."
        for scope, held in sorted(scopes.items())
        if held.ceiling is not None and held.ceiling < held.spent
    )
