"""Schedules.

Belongs here: when jobs run, and for which days. ``nightly_harvest`` runs free stages and is
on; ``nightly_replay`` spends money and is off until its owner turns it on.
"""

from collections.abc import Iterator
from datetime import UTC

import dagster as dg

from assets.automation.jobs import harvest_job, range_tags, replay_job
from assets.partitions import DAYS, day_ranges
from assets.resources import LakeResource, SessionsResource


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
