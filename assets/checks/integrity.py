"""Blocking checks of rows: a stage that breaks one of these stops everything after it.

Belongs here: what blocks, and what a violation is called. Does not belong here: the queries
(``lake.violations``); they do not trust the code that wrote the tables.
"""

import dagster as dg

from assets.checks.results import result
from assets.resources import LakeResource
from composer_pipeline.lake import (
    doubled_states,
    groups_in_two_splits,
    incomplete_prefixes,
    pairs_without_difference,
)


@dg.asset_check(asset="raw_sessions", blocking=True)
def raw_sessions_never_shrink(lake: LakeResource) -> dg.AssetCheckResult:
    """No archived session is shorter than at the last check, and all bytes are there."""
    from composer_pipeline.traces.archive import shrunk_or_lost

    return result(shrunk_or_lost(lake.open()), "archived sessions shrank or lost their bytes")


@dg.asset_check(asset="trace_states", blocking=True)
def state_ids_unique(lake: LakeResource) -> dg.AssetCheckResult:
    """No state id stands in two rows, over all days."""
    return result(doubled_states(lake.open()), "state ids stand more than once")


@dg.asset_check(asset="trace_states", blocking=True)
def prefixes_complete(lake: LakeResource) -> dg.AssetCheckResult:
    """Every state's prefix is whole: its chain is long enough and its messages exist."""
    return result(incomplete_prefixes(lake.open()), "states have an incomplete prefix")


@dg.asset_check(asset="preference_pairs", blocking=True)
def chosen_differs_from_rejected(lake: LakeResource) -> dg.AssetCheckResult:
    """No pair prefers an action to itself."""
    return result(pairs_without_difference(lake.open()), "pairs have chosen equal to rejected")


@dg.asset_check(asset="training_dataset", blocking=True)
def no_group_in_two_splits(lake: LakeResource) -> dg.AssetCheckResult:
    """No group and no session is in two splits, in any config of the dataset."""
    return result(groups_in_two_splits(lake.open()), "groups are in two splits")
