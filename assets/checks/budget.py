"""Checks of money: no scope is over its ceiling.

Belongs here: the checks on the teachers' assets that ask the ledger.
"""

from collections.abc import Sequence

import dagster as dg

from assets.checks.results import result
from assets.resources import LakeResource, TeachersResource


def build_budget_checks(reply_keys: Sequence[dg.AssetKey]) -> list[dg.AssetChecksDefinition]:
    """Return the check ``within_budget`` for each teacher's asset."""

    def build(key: dg.AssetKey) -> dg.AssetChecksDefinition:
        @dg.asset_check(asset=key, name="within_budget", blocking=True)
        def within_budget(lake: LakeResource, teachers: TeachersResource) -> dg.AssetCheckResult:
            """No scope was charged above the ceiling of that moment; lowering one is none."""
            from composer_pipeline.money import to_usd
            from composer_pipeline.replay.ledger import existing_ledger, ledger_target

            ledger = existing_ledger(ledger_target(lake.open(), teachers.ledger or None))
            if ledger is None:
                return result([], "budget scopes were charged above their ceiling of that moment")
            with ledger:
                over = ledger.overspent()
            bad = [f"{name} by {to_usd(pico)} USD" for name, pico in over.items()]
            return result(bad, "budget scopes were charged above their ceiling of that moment")

        return within_budget

    return [build(key) for key in reply_keys]
