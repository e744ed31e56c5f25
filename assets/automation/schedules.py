"""Schedules.

Belongs here: when jobs run, and for which days. What there is to do is asked of the lake
(``composer_pipeline.care.nights``), never of what Dagster remembers: a run that was killed, a
source that changed and a version that was raised are made good by the next night. Schedules of
stages that cost nothing are on; those that spend, train or publish are off until their owner
turns them on.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC

import dagster as dg

from assets.automation.jobs import (
    harvest_job,
    nightly_publish_job,
    pairs_job,
    range_tags,
    replay_job,
    train_job,
)
from assets.partitions import DAYS, day_ranges
from assets.resources import (
    LakeResource,
    PublicationResource,
    RecipesResource,
    SessionsResource,
    TeachersResource,
)
from composer_pipeline.errors import InputError

Requests = Iterator[dg.RunRequest | dg.SkipReason]


@dg.schedule(
    cron_schedule="30 2 * * *",
    job=harvest_job,
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Harvest the days that changed at the source, or that are not parsed as now.",
)
def nightly_harvest(lake: LakeResource, sessions: SessionsResource) -> Requests:
    """Request one run for each range of days that are not current."""
    from composer_pipeline.care import harvest_days

    days = harvest_days(lake.open(), sessions.paths())
    nothing = "Every session is archived and parsed as the parser of now would."
    yield from _runs(lake, days, nothing)


@dg.schedule(
    cron_schedule="30 3 * * *",
    job=replay_job,
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Ask each teacher what it has not answered of the last month. Off: it spends.",
)
def nightly_replay(
    context: dg.ScheduleEvaluationContext, lake: LakeResource, teachers: TeachersResource
) -> Requests:
    """Request one run for each range of days with the same teachers to ask."""
    from composer_pipeline.care import TRIES, replay_days
    from composer_pipeline.replay.ledger import ledger_target, standing_ceilings
    from composer_pipeline.replay.teachers import TeacherSet

    try:
        asked = TeacherSet.load(teachers.file)
    except InputError as error:
        yield dg.SkipReason(str(error))
        return
    today = context.scheduled_execution_time.astimezone(UTC).date()
    store = lake.open()
    if not standing_ceilings(ledger_target(store, teachers.ledger or None), today):
        yield dg.SkipReason(
            "No ceiling stands over what nights spend together: set one with the job set_ceiling,"
            f" for example of month:{today:%Y-%m} or of global."
        )
        return
    groups: dict[tuple[str, ...], list[str]] = {}
    for day, names in replay_days(store, asked, today).items():
        groups.setdefault(tuple(names), []).append(day)
    for chosen, days in groups.items():
        some = [dg.AssetKey(["teacher_replies", name]) for name in chosen]
        pairs = [dg.AssetKey(name) for name in ("preference_pairs", "normalized_pairs")]
        everybody = len(chosen) == len(asked.teachers)
        yield from _runs(lake, days, selection=None if everybody else [*some, *pairs])
    if not groups:
        yield dg.SkipReason(
            "Every teacher has answered each state of the last month,"
            f" or has failed at its day in {TRIES} nights."
        )


@dg.schedule(
    cron_schedule="30 4 * * *",
    job=pairs_job,
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Make the pairs of days that enough families answered, and normalise them.",
)
def nightly_pairs(lake: LakeResource, recipes: RecipesResource) -> Requests:
    """Request one run for each range of days whose pairs are not current."""
    from composer_pipeline.care import pairs_days

    rules = recipes.rules()
    if rules.semantic_judge:
        yield dg.SkipReason("The preference recipe names a paid judge: pairs are made by a person.")
        return
    days = pairs_days(lake.open(), rules, recipes.normalize)
    yield from _runs(lake, days, "Every day that two families answered has its pairs, normalised.")


@dg.schedule(
    cron_schedule="30 6 * * 0",
    job=train_job,
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Build the dataset, train and evaluate. Off: it takes hours.",
)
def weekly_train(lake: LakeResource) -> Requests:
    """Request one run, where there are pairs; the same data and recipe use the same run folder."""
    yield _where_there_are_pairs(lake)


@dg.schedule(
    cron_schedule="30 5 * * *",
    job=nightly_publish_job,
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Build and publish the dataset, where COMPOSER_PUBLISH_NIGHTLY says so.",
)
def nightly_publish(lake: LakeResource, publication: PublicationResource) -> Requests:
    """Request one run, where a repository is named and publishing by night was asked for."""
    if publication.repo and publication.nightly:
        yield _where_there_are_pairs(lake)
    else:
        yield dg.SkipReason("COMPOSER_PUBLISH_REPO and COMPOSER_PUBLISH_NIGHTLY=1 turn it on.")


@dg.schedule(
    cron_schedule="30 8 * * 0",
    job=nightly_publish_job,
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Build the dataset and publish it. Off: rows leave the machine.",
)
def weekly_publish(lake: LakeResource, publication: PublicationResource) -> Requests:
    """Request one run, where a repository is named and there are pairs."""
    if publication.repo:
        yield _where_there_are_pairs(lake)
    else:
        yield dg.SkipReason("COMPOSER_PUBLISH_REPO names no repository.")


def _where_there_are_pairs(lake: LakeResource) -> dg.RunRequest | dg.SkipReason:
    if lake.open().days("normalized_pairs"):
        return dg.RunRequest()
    return dg.SkipReason("There are no pairs yet.")


def _runs(
    lake: LakeResource,
    days: Iterable[str],
    nothing: str = "",
    selection: list[dg.AssetKey] | None = None,
) -> Requests:
    """Yield one request a range, or the reason why there is nothing to do.

    A range goes over days without sessions, never over a day that nobody asked for.
    """
    store = lake.open()
    held = {*store.days("raw_files"), *store.days("states")}
    ranges = day_ranges([day for day in days if DAYS.has_partition_key(day)], held)
    for first, last in ranges:
        name = ",".join(key.path[-1] for key in selection or [])
        yield dg.RunRequest(
            run_key=f"{first}..{last} {name}".strip(),
            tags=range_tags(first, last),
            asset_selection=selection,
        )
    if nothing and not ranges:
        yield dg.SkipReason(nothing)
