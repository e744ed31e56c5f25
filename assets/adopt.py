"""The job ``adopt`` reports to Dagster what the command line did, and days without sessions.

Events are reported without a run, and only for days that Dagster does not know. Today is never
reported as empty. Dagster cannot forget a day: if an older session arrives late, the check
``up_to_date`` names its day.
"""

from collections.abc import Collection

import dagster as dg

from assets.partitions import DAYS
from assets.resources import LakeResource, SessionsResource, TeachersResource
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake

#: Metadata key of an event that no run made.
REPORTED_BY = "told_by"
EMPTY, HELD = "a day without sessions", "the lake, which has it"


def report_lake(
    instance: dg.DagsterInstance,
    lake: Lake,
    sessions: SessionsResource,
    teachers: TeachersResource,
    skip: Collection[str] = (),
) -> int:
    """Report the days that the lake holds and those without sessions; return how many."""
    from composer_pipeline.maintenance.status import days_held, empty_days, rows_of
    from composer_pipeline.teachers.teachers import TeacherSet

    try:
        teacher_set = TeacherSet.load(teachers.file)
    except InputError:
        teacher_set = None
    *past, today = DAYS.get_partition_keys()
    candidates = {*past, today} - set(skip)
    empty = set(empty_days(lake, sessions.paths(), candidates & set(past)))
    reported = 0
    for asset, days in days_held(lake, teacher_set).items():
        key = dg.AssetKey(asset.split("/"))
        known = instance.get_materialized_partitions(key)
        held = set(days) & candidates
        for day in sorted((held | empty) - known):
            rows = rows_of(lake, asset, day) if day in held else 0
            _report(instance, key, day, rows, HELD if day in held else EMPTY)
            reported += 1
    return reported


def _report(instance: dg.DagsterInstance, key: dg.AssetKey, day: str, rows: int, by: str) -> None:
    instance.report_runless_asset_event(
        dg.AssetMaterialization(
            key, partition=day, metadata={"dagster/partition_row_count": rows, REPORTED_BY: by}
        )
    )


@dg.op
def report_what_the_lake_holds(
    context: dg.OpExecutionContext,
    lake: LakeResource,
    sessions: SessionsResource,
    teachers: TeachersResource,
) -> None:
    """Report what the lake holds and Dagster does not know."""
    reported = report_lake(context.instance, lake.open(), sessions, teachers)
    context.log.info(f"Reported {reported} days of assets that Dagster did not know.")


@dg.job(
    name="adopt",
    description="Report to Dagster what the command line did, and days without sessions; computes"
    " nothing.",
)
def adopt() -> None:
    """Report the lake to Dagster."""
    report_what_the_lake_holds()
