"""Jobs and schedules.

Belongs here: what runs together and when. ``nightly_harvest`` runs free stages and is
on; ``nightly_replay`` spends money and is off until its owner turns it on.
"""

from collections.abc import Iterator
from datetime import UTC

import dagster as dg

from assets.partitions import DAYS, day_ranges
from assets.resources import LakeResource, SessionsResource

FREE_SELECTION = dg.AssetSelection.assets("raw_sessions", "trace_states", "error_hints")
REPLAY_SELECTION = dg.AssetSelection.key_prefixes("teacher_replies") | dg.AssetSelection.assets(
    "preference_pairs", "normalized_pairs"
)

harvest_job = dg.define_asset_job(
    "harvest",
    selection=FREE_SELECTION,
    partitions_def=DAYS,
    description="Archive changed sessions and parse them into states and hints; costs nothing.",
)
replay_job = dg.define_asset_job(
    "replay_and_pair",
    selection=REPLAY_SELECTION,
    partitions_def=DAYS,
    description="Buy the teachers' replies under the ceiling, and make and normalise pairs.",
)
train_job = dg.define_asset_job(
    "train",
    selection=dg.AssetSelection.assets("training_dataset", "trained_model", "model_evaluation"),
    description="Build the dataset, train with the composer loss, evaluate on held-out sessions.",
)
publish_job = dg.define_asset_job(
    "publish",
    selection=dg.AssetSelection.assets("published_dataset"),
    description="Commit the dataset to the Hugging Face Hub, private unless configured otherwise.",
)

RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"


def range_tags(first: str, last: str) -> dict[str, str]:
    """Return the tags that make one run of a contiguous range of days."""
    return {RANGE_START: first, RANGE_END: last}


@dg.schedule(
    cron_schedule="30 2 * * *",
    job=harvest_job,
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Harvest the days whose sessions changed; one run for each contiguous range.",
)
def nightly_harvest(
    lake: LakeResource, sessions: SessionsResource
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """Request one run for each contiguous range of changed days."""
    from composer_pipeline.traces.archive import days_changed

    changed = [
        day for day in days_changed(lake.open(), sessions.paths()) if DAYS.has_partition_key(day)
    ]
    if not changed:
        yield dg.SkipReason("No session has changed since the last harvest.")
    for first, last in day_ranges(changed):
        yield dg.RunRequest(run_key=f"{first}..{last}", tags=range_tags(first, last))


@dg.schedule(
    cron_schedule="30 3 * * *",
    job=replay_job,
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Buy replies for the last month's unanswered states. Off: it spends money.",
)
def nightly_replay(
    context: dg.ScheduleEvaluationContext, lake: LakeResource
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """Request one run for each contiguous range of days with unanswered states."""
    from composer_pipeline.replay.pending_days import pending_days

    days = pending_days(lake.open(), context.scheduled_execution_time.astimezone(UTC).date())
    if not days:
        yield dg.SkipReason("Every state of the last month has a reply.")
    for first, last in day_ranges(days):
        yield dg.RunRequest(run_key=f"{first}..{last}", tags=range_tags(first, last))
