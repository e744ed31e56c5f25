"""What a purchase would cost, before it: the asset ``replay_plan``, and the bill beside it after.

Belongs here: showing. The estimate is ``replay.plan``'s, the bill ``replay.day_figures``'s.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.failures import one_sentence
from assets.pages import OWNERS, explained, records, usd
from assets.partitions import DAYS, PAID, days_of
from assets.resources import LakeResource, TeachersResource
from composer_pipeline.lake import Lake
from composer_pipeline.replay.teachers import TeacherSet
from composer_pipeline.versions import CONVERTER_VERSION

if TYPE_CHECKING:
    from composer_pipeline.replay.plan import Plan

KEY = dg.AssetKey("replay_plan")


@dg.asset(
    group_name="replay",
    kinds={"python"},
    owners=OWNERS,
    partitions_def=DAYS,
    backfill_policy=PAID,
    deps=["trace_states"],
    code_version=CONVERTER_VERSION,
)
@explained
@one_sentence
def replay_plan(
    context: dg.AssetExecutionContext, lake: LakeResource, teachers: TeachersResource
) -> None:
    """What each teacher's replies to the day would cost: it costs nothing and sends no session.

    The calls that are open, those that were paid for before, what is expected, and the worst
    case, which is what the ledger would reserve. After a purchase the bill stands beside it.
    """
    from composer_pipeline.replay.catalogue import fetch
    from composer_pipeline.replay.plan import plan

    store, teacher_set = lake.open(), TeacherSet.load(teachers.file)
    catalogue = fetch(teacher_set, teacher_set.teachers)
    for day in days_of(context):
        found = plan(
            store, teacher_set, days=[day], ledger=teachers.ledger or None, catalogue=catalogue
        )
        context.add_asset_metadata(_page(store, day, found), partition_key=day)


def _page(store: Lake, day: str, found: "Plan") -> dict[str, Any]:
    rows = [
        {
            "teacher": name,
            "calls": part.calls,
            "cached": part.cached,
            "expected_usd": usd(part.expected_picodollars),
            "worst_usd": usd(part.worst_picodollars),
            "stop": part.stop or "no",
        }
        for name, part in found.by_teacher.items()
    ]
    return {
        "calls": found.calls,
        "cached": found.cached,
        "expected_usd": float(found.expected_usd),
        "worst_usd": float(found.worst_usd),
        "by_teacher": records(with_bill(store, day, rows)),
    }


def with_bill(store: Lake, day: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a plan with what each teacher was billed for the day, where it was."""
    from composer_pipeline.replay.day_figures import day_figures

    found = []
    for row in rows:
        cost = day_figures(store, str(row["teacher"]), day).get("cost_picodollars")
        found.append({**row, "billed_usd": "nothing" if cost is None else f"{usd(int(cost)):.6f}"})
    return found


def tell_bill(context: dg.AssetExecutionContext, store: Lake, days: Sequence[str]) -> None:
    """Write the bill beside the last plan of each day that has one."""
    for day in days:
        wanted = dg.AssetRecordsFilter(asset_key=KEY, asset_partitions=[day])
        for record in context.instance.fetch_materializations(wanted, limit=1).records:
            made = record.asset_materialization
            table = made.metadata.get("by_teacher") if made else None
            if isinstance(table, dg.TableMetadataValue):
                rows = with_bill(store, day, [row.data for row in table.records])
                context.log_event(
                    dg.AssetObservation(
                        asset_key=KEY, partition=day, metadata={"plan_and_bill": records(rows)}
                    )
                )
