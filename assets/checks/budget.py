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
            """No scope is over its ceiling: spent, reserved and unknown together."""
            from composer_pipeline.replay.ledger import existing_ledger, ledger_target

            ledger = existing_ledger(ledger_target(lake.open(), teachers.ledger or None))
            if ledger is None:
                return result([], "budget scopes are over their ceiling")
            with ledger:
                scopes = ledger.status()
            bad = [
                name
                for name, held in scopes.items()
                if held.ceiling is not None
                and held.spent + held.reserved + held.unknown > held.ceiling
            ]
            return result(bad, "budget scopes are over their ceiling")

        return within_budget

    return [build(key) for key in reply_keys]
