"""A code location with one schedule, for a test of its ticks."""

import dagster as dg


@dg.job
def nothing() -> None:
    """A job without steps."""


defs = dg.Definitions(
    jobs=[nothing],
    schedules=[dg.ScheduleDefinition(name="nightly", job=nothing, cron_schedule="0 0 * * *")],
)
