"""Blocking checks of sums: no row gets lost between two stages.

Belongs here: which stages add up on which asset. The sums are in ``preferences.quality``.
"""

from collections.abc import Mapping, Sequence

import dagster as dg

from assets.checks.results import result
from assets.partitions import partition_days
from assets.resources import LakeResource
from composer_pipeline.lake import Lake


def _accounted(store: Lake, stages: Sequence[str], tags: Mapping[str, str]) -> dg.AssetCheckResult:
    from composer_pipeline.preferences.quality import leaks

    # Other days may wait for their stage: only those of this run have to add up.
    days = partition_days(tags)
    bad = [leak for stage in stages for leak in leaks(store, stage, days)]
    return result(
        [f"{leak.stage}: {leak.row_id} {leak.what}" for leak in bad], "rows are not accounted for"
    )


@dg.asset_check(asset="preference_pairs", blocking=True)
def states_accounted_for(
    context: dg.AssetCheckExecutionContext, lake: LakeResource
) -> dg.AssetCheckResult:
    """Every state has a vote with a reason, and every vote for a pair is a pair or a drop."""
    return _accounted(lake.open(), ["votes", "pairs"], context.run.tags)


@dg.asset_check(asset="normalized_pairs", blocking=True)
def pairs_accounted_for(
    context: dg.AssetCheckExecutionContext, lake: LakeResource
) -> dg.AssetCheckResult:
    """Every pair is normalised or in the ledger of drops, with the operator that dropped it."""
    return _accounted(lake.open(), ["normalize"], context.run.tags)


@dg.asset_check(asset="training_dataset", blocking=True)
def dataset_accounted_for(lake: LakeResource) -> dg.AssetCheckResult:
    """Every normalised pair is in one split of the dataset or in the ledger of drops."""
    return _accounted(lake.open(), ["dataset"], {})
