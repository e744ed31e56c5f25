"""Traces: archive the raw sessions, parse them into TraceStates.

Belongs here: the assets ``raw_sessions`` and ``trace_states``. The logic is in
``composer_pipeline.traces``.
"""

import dagster as dg

from assets.pages import OWNERS, numbers, records, table_metadata
from assets.partitions import DAYS, FREE
from assets.resources import LakeResource, SessionsResource


@dg.asset(
    group_name="traces",
    kinds={"python", "parquet"},
    owners=OWNERS,
    partitions_def=DAYS,
    backfill_policy=FREE,
    pool="lake",
    code_version="1",
    metadata=table_metadata("raw_files"),
)
def raw_sessions(
    context: dg.AssetExecutionContext, lake: LakeResource, sessions: SessionsResource
) -> None:
    """Raw bytes of Claude Code sessions, kept after Claude Code deletes its own (30 days)."""
    from composer_pipeline.traces.archive import harvest

    report = harvest(lake.open(), sessions.paths(), days=set(context.partition_keys))
    for day in context.partition_keys:
        context.add_asset_metadata(
            {
                "dagster/partition_row_count": report.files_by_day.get(day, 0),
                **numbers(report.day(day)),
            },
            partition_key=day,
        )


@dg.asset(
    group_name="traces",
    kinds={"python", "parquet", "duckdb"},
    owners=OWNERS,
    partitions_def=DAYS,
    backfill_policy=FREE,
    deps=[raw_sessions],
    pool="lake",
    code_version="1",
    metadata=table_metadata("states"),
)
def trace_states(context: dg.AssetExecutionContext, lake: LakeResource) -> None:
    """One TraceState for each model response: what the agent saw, and what it did."""
    from composer_pipeline.traces.audit import day_audit
    from composer_pipeline.traces.parse import parse_days

    store = lake.open()
    report = parse_days(store, context.partition_keys)
    for day in context.partition_keys:
        counts = report.day(day)
        audit = day_audit(store, day, report.redactions_by_day.get(day, {}))
        context.add_asset_metadata(
            {
                "dagster/partition_row_count": counts.get("states", 0),
                **numbers(counts),
                # A table without rows has no columns to show.
                **{name: records(rows) for name, rows in audit.items() if rows},
            },
            partition_key=day,
        )
