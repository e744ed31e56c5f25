"""The job ``adopt``: reports to Dagster what the command line did, and days without sessions.

Events are reported without a run, and only for days that Dagster does not know. Today is never
reported as empty. Dagster cannot forget a day: where an older session comes late, the check
``up_to_date`` names it.
"""

from collections.abc import Collection

import dagster as dg

from assets.partitions import DAYS
from assets.resources import LakeResource, SessionsResource, TeachersResource
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake

#: Metadata of an event that no run made.
TOLD = "told_by"
EMPTY, HELD = "a day without sessions", "the lake, which has it"


def tell_lake(
    instance: dg.DagsterInstance,
    lake: Lake,
    sessions: SessionsResource,
    teachers: TeachersResource,
    skip: Collection[str] = (),
) -> int:
    """Report the days that the lake holds, and those without sessions; return how many."""
    from composer_pipeline.maintenance.status import days_held, empty_days, rows_of
    from composer_pipeline.teachers.teachers import TeacherSet

    try:
        asked = TeacherSet.load(teachers.file)
    except InputError:
        asked = None
    *over, today = DAYS.get_partition_keys()
    every = {*over, today} - set(skip)
    empty = set(empty_days(lake, sessions.paths(), every & set(over)))
    told = 0
    for asset, days in days_held(lake, asked).items():
        key = dg.AssetKey(asset.split("/"))
        known = instance.get_materialized_partitions(key)
        held = set(days) & every
        for day in sorted((held | empty) - known):
            rows = rows_of(lake, asset, day) if day in held else 0
            _report(instance, key, day, rows, HELD if day in held else EMPTY)
            told += 1
    return told


def _report(instance: dg.DagsterInstance, key: dg.AssetKey, day: str, rows: int, by: str) -> None:
    instance.report_runless_asset_event(
        dg.AssetMaterialization(
            key, partition=day, metadata={"dagster/partition_row_count": rows, TOLD: by}
        )
    )


@dg.op(name="tell_what_the_lake_holds")
def tell_what_the_lake_holds(
    context: dg.OpExecutionContext,
    lake: LakeResource,
    sessions: SessionsResource,
    teachers: TeachersResource,
) -> None:
    """Report what the lake holds and Dagster does not know of."""
    told = tell_lake(context.instance, lake.open(), sessions, teachers)
    context.log.info(f"{told} days of assets were in the lake, or without sessions, and unknown.")


@dg.job(
    name="adopt",
    description="Show what the command line did, and the days without sessions; makes nothing.",
)
def adopt() -> None:
    """Tell Dagster what the lake holds."""
    tell_what_the_lake_holds()
