"""The raw session archive, and the trace states parsed from it."""

import dagster as dg

from assets.failures import one_sentence
from assets.pages import NIGHTLY, OWNERS, TablePage, explained, records, table_metadata
from assets.partitions import DAYS, FREE, TRANSIENT, days_of
from assets.resources import (
    LakeResource,
    RepositoriesResource,
    SessionsResource,
    TeachersResource,
)
from composer_pipeline.charts import bars, markdown_image
from composer_pipeline.lake.schema import SCHEMA_VERSION
from composer_pipeline.redaction.redact import redact_text
from composer_pipeline.versions import OUTCOMES_VERSION, PARSER_VERSION, REDACTION_VERSION


@dg.asset(
    group_name="traces",
    kinds={"python", "parquet"},
    owners=OWNERS,
    partitions_def=DAYS,
    backfill_policy=FREE,
    freshness_policy=NIGHTLY,
    pool="lake",
    retry_policy=TRANSIENT,
    code_version=str(SCHEMA_VERSION),
    metadata=table_metadata("raw_files"),
)
@explained
@one_sentence
def raw_sessions(
    context: dg.AssetExecutionContext,
    lake: LakeResource,
    sessions: SessionsResource,
    teachers: TeachersResource,
) -> None:
    """Raw bytes of agents' sessions, kept after the agents delete their own."""
    from assets.adopt import report_lake
    from composer_pipeline.traces.archive import harvest

    store, days = lake.open(), days_of(context)
    page = TablePage("raw_sessions", "raw_files", store, days)
    report = harvest(store, sessions.paths(), days=set(days))
    for day in days:
        context.add_asset_metadata(page.of(day, report.day(day)), partition_key=day)
    report_lake(context.instance, store, sessions, teachers, skip=days)


@dg.asset(
    group_name="traces",
    kinds={"python", "parquet", "duckdb"},
    owners=OWNERS,
    partitions_def=DAYS,
    backfill_policy=FREE,
    freshness_policy=NIGHTLY,
    deps=[raw_sessions],
    pool="lake",
    retry_policy=TRANSIENT,
    code_version=f"{PARSER_VERSION}.{REDACTION_VERSION}",
    metadata=table_metadata("states"),
)
@explained
@one_sentence
def trace_states(context: dg.AssetExecutionContext, lake: LakeResource) -> None:
    """One trace state for each model response: what the agent saw, and what it did."""
    from composer_pipeline.traces.ingest import day_audit
    from composer_pipeline.traces.parse import parse_days

    store, days = lake.open(), days_of(context)
    page = TablePage("trace_states", "states", store, days)
    report = parse_days(store, days)
    for day in days:
        audit = day_audit(store, day, report.redactions_by_day.get(day, {}))
        context.add_asset_metadata(
            {
                **page.of(day, report.day(day)),
                # A table without rows has no columns to show.
                **{name: records(rows) for name, rows in audit.items() if rows},
            },
            partition_key=day,
        )


@dg.asset(
    group_name="traces",
    kinds={"python", "parquet", "git"},
    owners=OWNERS,
    partitions_def=DAYS,
    backfill_policy=FREE,
    freshness_policy=NIGHTLY,
    deps=[trace_states],
    retry_policy=TRANSIENT,
    code_version=OUTCOMES_VERSION,
    metadata=table_metadata("outcomes"),
)
@explained
@one_sentence
def edit_outcomes(
    context: dg.AssetExecutionContext, lake: LakeResource, repositories: RepositoriesResource
) -> None:
    """What became of the lines that each response added: in the commit, and later, from git."""
    from composer_pipeline.survival.judge import judge_outcomes
    from composer_pipeline.survival.stage import evaluate_outcomes

    store, days = lake.open(), days_of(context)
    page = TablePage("edit_outcomes", "outcomes", store, days)
    report = evaluate_outcomes(store, days=days, repositories=repositories.folders())
    for problem in report.problems:
        context.log.warning(redact_text(problem)[0])
    for day in days:
        found = judge_outcomes(store, days=[day])
        shares = {
            name: share.value for name, share in found.alive.items() if share.value is not None
        }
        numbers = {**found.fates, **{f"unknown_{why}": n for why, n in found.unknown.items()}}
        alive = {f"alive_{name}": shares[name] for name in ("commit", "today") if name in shares}
        picture = markdown_image(bars(shares, total=1), "share of the added lines that is alive")
        context.add_asset_metadata(
            {**page.of(day, numbers | alive),
             **({"lines_alive": dg.MetadataValue.md(picture)} if shares else {})},
            partition_key=day,
        )  # fmt: skip
