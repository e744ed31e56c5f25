"""Jobs.

Belongs here: what runs together. When it runs is ``automation.schedules``.
"""

import dagster as dg

from assets.partitions import DAYS

FREE_SELECTION = dg.AssetSelection.assets("raw_sessions", "trace_states", "error_hints")
PAIRS_SELECTION = dg.AssetSelection.assets("preference_pairs", "normalized_pairs")
REPLAY_SELECTION = (
    dg.AssetSelection.assets("replay_plan")
    | dg.AssetSelection.key_prefixes("teacher_replies")
    | PAIRS_SELECTION
)

harvest_job = dg.define_asset_job(
    "harvest",
    selection=FREE_SELECTION,
    partitions_def=DAYS,
    description="Archive changed sessions and parse them into states and hints; costs nothing.",
)
plan_job = dg.define_asset_job(
    "plan",
    selection=dg.AssetSelection.assets("replay_plan"),
    partitions_def=DAYS,
    description="Say what the teachers' replies would cost; it costs nothing and sends nothing.",
)
replay_job = dg.define_asset_job(
    "replay_and_pair",
    selection=REPLAY_SELECTION,
    partitions_def=DAYS,
    description="Plan, buy the teachers' replies under the ceiling, and make and normalise pairs.",
)
pairs_job = dg.define_asset_job(
    "pair",
    selection=PAIRS_SELECTION,
    partitions_def=DAYS,
    description="Make pairs of the replies that there are, and normalise them; costs nothing.",
)
train_job = dg.define_asset_job(
    "train",
    selection=dg.AssetSelection.assets(
        "training_dataset", "trained_model", "model_evaluation", "report"
    ),
    description="Build the dataset, train with the composer loss, evaluate on held-out sessions,"
    " and write the report.",
)
publish_job = dg.define_asset_job(
    "publish",
    selection=dg.AssetSelection.assets("published_dataset"),
    description="Commit the dataset to the Hugging Face Hub, private unless configured otherwise.",
)
nightly_publish_job = dg.define_asset_job(
    "publish_nightly",
    selection=dg.AssetSelection.assets("training_dataset", "published_dataset"),
    description="Build the dataset and commit it to the Hub.",
)

RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"


def range_tags(first: str, last: str) -> dict[str, str]:
    """Return the tags that make one run of a contiguous range of days."""
    return {RANGE_START: first, RANGE_END: last}
