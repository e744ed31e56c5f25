"""Jobs, schedules, and the retention of runs."""

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.adopt import adopt
from assets.money import NIGHT, TONIGHT
from assets.partitions import DAYS, day_ranges
from assets.resources import (
    LakeResource,
    PublicationResource,
    RecipesResource,
    RepositoriesResource,
    RetentionResource,
    SessionsResource,
    TeachersResource,
)
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake

if TYPE_CHECKING:
    from composer_pipeline.teachers.teachers import TeacherSet

FREE_SELECTION = dg.AssetSelection.assets(
    "raw_sessions", "trace_states", "error_hints", "edit_outcomes"
)
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
    description="Archive changed sessions, and parse them into states and hints; costs nothing.",
)
outcomes_job = dg.define_asset_job(
    "outcomes",
    selection=dg.AssetSelection.assets("edit_outcomes"),
    partitions_def=DAYS,
    description="Ask git what became of the agent's edits; costs nothing.",
)
plan_job = dg.define_asset_job(
    "plan",
    selection=dg.AssetSelection.assets("replay_plan"),
    partitions_def=DAYS,
    description="Estimate what the teachers' replies would cost; costs nothing and sends nothing.",
)
replay_job = dg.define_asset_job(
    "replay_and_pair",
    selection=REPLAY_SELECTION,
    partitions_def=DAYS,
    description="Plan, buy the teachers' replies under the ceiling, build and normalise pairs.",
)
pairs_job = dg.define_asset_job(
    "pair",
    selection=PAIRS_SELECTION,
    partitions_def=DAYS,
    description="Build pairs from the existing replies, and normalise them; costs nothing.",
)
train_job = dg.define_asset_job(
    "train",
    selection=dg.AssetSelection.assets(
        "training_dataset", "trained_model", "model_evaluation", "report"
    ),
    description="Build the dataset, train with the composer loss, evaluate on held-out sessions,"
    " and write the report.",
)
night_job = dg.define_asset_job(
    NIGHT,
    selection=FREE_SELECTION
    | REPLAY_SELECTION
    | dg.AssetSelection.assets("training_dataset", TONIGHT),
    description="Harvest, buy replies under the ceiling, pair, train from the current version, and"
    " serve tonight's model if it passes the gates.",
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


_ENDED = [
    dg.DagsterRunStatus.SUCCESS,
    dg.DagsterRunStatus.FAILURE,
    dg.DagsterRunStatus.CANCELED,
]
#: Storage ids per query.
_CHUNK = 500


class ForgetConfig(dg.Config):
    """How long runs are kept; 0 takes COMPOSER_KEEP_RUNS_DAYS."""

    keep_days: int = 0


@dg.op
def forget(
    context: dg.OpExecutionContext, config: ForgetConfig, retention: RetentionResource
) -> None:
    """Delete old runs with their events and logs, except the newest materialisations."""
    days = config.keep_days or retention.keep_days
    if days <= 0:
        context.log.info("No run is deleted: COMPOSER_KEEP_RUNS_DAYS is not set.")
        return
    deleted, kept = forget_runs(context.instance, datetime.now(UTC) - timedelta(days=days))
    context.log.info(
        f"Deleted {deleted} runs; kept {kept} older runs with newest materialisations."
    )


def forget_runs(instance: dg.DagsterInstance, before: datetime) -> tuple[int, int]:
    """Delete the runs that ended before a moment; return (deleted, kept)."""
    needed = _runs_of_newest_materializations(instance)
    old = dg.RunsFilter(statuses=_ENDED, updated_before=before)
    deleted = kept = 0
    for record in instance.get_run_records(old):
        run_id = record.dagster_run.run_id
        if run_id in needed:
            kept += 1
            continue
        for key in _log_keys(instance, run_id):
            instance.compute_log_manager.delete_logs(log_key=key)
        instance.delete_run(run_id)
        deleted += 1
    return deleted, kept


def _runs_of_newest_materializations(instance: dg.DagsterInstance) -> set[str]:
    """Return the runs of the newest materialisation of each asset and partition."""
    kind, store = dg.DagsterEventType.ASSET_MATERIALIZATION, instance.event_log_storage
    runs: set[str] = set()
    for key in instance.get_asset_keys():
        runs |= {record.run_id for record in instance.fetch_materializations(key, limit=1).records}
        ids = list(store.get_latest_storage_id_by_partition(key, kind).values())
        for start in range(0, len(ids), _CHUNK):
            some = dg.EventRecordsFilter(kind, key, storage_ids=ids[start : start + _CHUNK])
            runs |= {record.run_id for record in store.get_event_records(some)}
    return runs


def _log_keys(instance: dg.DagsterInstance, run_id: str) -> Iterator[list[str]]:
    for record in instance.get_records_for_run(
        run_id, of_type=dg.DagsterEventType.LOGS_CAPTURED
    ).records:
        event = record.event_log_entry.dagster_event
        if event:
            yield [run_id, "compute_logs", event.logs_captured_data.file_key]


@dg.job(description="Delete Dagster's records of runs older than COMPOSER_KEEP_RUNS_DAYS.")
def forget_old_runs() -> None:
    """Delete old runs with their events and logs; the lake is not changed."""
    forget()


PAID_JUDGE = dg.SkipReason("The preference recipe names a paid judge: start the job by hand.")
NO_PAIRS = "There are no pairs yet."

Requests = Iterator[dg.RunRequest | dg.SkipReason]


def _status(on: bool) -> dg.DefaultScheduleStatus:
    return dg.DefaultScheduleStatus.RUNNING if on else dg.DefaultScheduleStatus.STOPPED


def _schedule(
    cron: str, job: UnresolvedAssetJobDefinition, description: str, *, on: bool
) -> Callable[[Callable[..., Any]], dg.ScheduleDefinition]:
    return dg.schedule(
        cron_schedule=cron,
        job=job,
        execution_timezone="UTC",
        default_status=_status(on),
        description=description,
    )


def build_retention(keep_days: int) -> dg.ScheduleDefinition:
    """Return the schedule ``nightly_retention``; it is on if runs are not kept for ever."""
    return dg.ScheduleDefinition(
        name="nightly_retention",
        job=forget_old_runs,
        cron_schedule="30 6 * * *",
        execution_timezone="UTC",
        default_status=_status(keep_days > 0),
        description="Delete records of runs older than COMPOSER_KEEP_RUNS_DAYS, if that is set.",
    )


@_schedule(
    "30 2 * * *",
    harvest_job,
    "Harvest the days that changed at the source or were parsed by another version.",
    on=True,
)
def nightly_harvest(lake: LakeResource, sessions: SessionsResource) -> Requests:
    """Request one run for each range of days that are not current."""
    from composer_pipeline.maintenance.status import harvest_days

    days = harvest_days(lake.open(), sessions.paths())
    nothing = "Every session is archived and parsed by the current parser."
    yield from _runs(lake, days, nothing)


@_schedule(
    "0 3 * * *",
    outcomes_job,
    "Ask git again about the edits of days that are young and whose repositories changed.",
    on=True,
)
def nightly_outcomes(lake: LakeResource, repositories: RepositoriesResource) -> Requests:
    """Request one run for each range of days whose outcomes are not current."""
    from composer_pipeline.survival.stage import stale_outcomes

    days = stale_outcomes(lake.open(), repositories=repositories.folders())
    yield from _runs(lake, days, "No repository has changed since the last look.")


@_schedule(
    "30 3 * * *",
    replay_job,
    "Buy the missing replies of each teacher for the last month. Off by default: it spends money.",
    on=False,
)
def nightly_replay(
    context: dg.ScheduleEvaluationContext, lake: LakeResource, teachers: TeachersResource
) -> Requests:
    """Request one run for each range of days with the same teachers to query."""
    from composer_pipeline.maintenance.status import TRIES, replay_days

    today, store = _today(context), lake.open()
    teacher_set = _teachers_to_pay(store, teachers, today)
    if isinstance(teacher_set, dg.SkipReason):
        yield teacher_set
        return
    groups: dict[tuple[str, ...], list[str]] = {}
    for day, names in replay_days(store, teacher_set, today).items():
        groups.setdefault(tuple(names), []).append(day)
    for chosen, days in groups.items():
        replies = [dg.AssetKey(["teacher_replies", name]) for name in chosen]
        # Pairs of some teachers' days are left to nightly_pairs: no answer would fail them too.
        everybody = len(chosen) == len(teacher_set.teachers)
        yield from _runs(lake, days, selection=None if everybody else replies)
    if not groups:
        yield dg.SkipReason(
            "Every teacher has answered each state of the last month,"
            f" or has failed at its day in {TRIES} nights."
        )


def _today(context: dg.ScheduleEvaluationContext) -> date:
    return context.scheduled_execution_time.astimezone(UTC).date()


def _teachers_to_pay(
    store: Lake, teachers: TeachersResource, today: date
) -> "TeacherSet | dg.SkipReason":
    """Return the teachers, or why no night may buy from them."""
    from composer_pipeline.teachers.ledger.ledger import ledger_target, standing_ceilings
    from composer_pipeline.teachers.teachers import TeacherSet

    try:
        found = TeacherSet.load(teachers.file)
    except InputError as error:
        return dg.SkipReason(str(error))
    if standing_ceilings(ledger_target(store, teachers.ledger or None), today):
        return found
    return dg.SkipReason(
        "No ceiling limits what all nights spend together: set one with the job set_ceiling,"
        f" for example of month:{today:%Y-%m} or of global."
    )


@_schedule(
    "0 4 * * *",
    night_job,
    "The whole night, from harvest to the decision about tonight's model. Off by default: it"
    " spends money and trains.",
    on=False,
)
def night(
    context: dg.ScheduleEvaluationContext,
    lake: LakeResource,
    sessions: SessionsResource,
    teachers: TeachersResource,
    recipes: RecipesResource,
) -> Requests:
    """Request one run over the days of the last month that are not current.

    Where all are, it is of the model alone, which a killed night may still owe; it costs seconds
    and does not train if nothing is new.
    """
    from composer_pipeline.dataset.manifest import changed_inputs
    from composer_pipeline.lake.provenance import build_id
    from composer_pipeline.maintenance.status import harvest_days, pairs_days, replay_days
    from composer_pipeline.teachers.replies import WINDOW_DAYS

    today, store, rules = _today(context), lake.open(), recipes.rules()
    teacher_set = _teachers_to_pay(store, teachers, today)
    if isinstance(teacher_set, dg.SkipReason):
        yield teacher_set
        return
    if rules.semantic_judge:
        yield PAID_JUDGE
        return
    stale = {
        *harvest_days(store, sessions.paths()),
        *replay_days(store, teacher_set, today),
        *pairs_days(store, rules, recipes.normalize),
    }
    # Replies to older days are bought by hand: a range would buy those of all days that it spans.
    first = str(today - timedelta(days=WINDOW_DAYS))
    days = [day for day in stale if first <= day <= str(today) and DAYS.has_partition_key(day)]
    assets = None
    if not days:
        if not store.days("normalized_pairs"):
            yield dg.SkipReason(NO_PAIRS)
            return
        current = build_id(store) and not changed_inputs(store, rules.digest())
        assets = [dg.AssetKey(name) for name in ("training_dataset", TONIGHT)[bool(current) :]]
    yield dg.RunRequest(
        run_key=f"night {today}",
        tags=range_tags(min(days), max(days)) if days else None,
        asset_selection=assets,
        run_config={"ops": {TONIGHT: {"config": {"day": str(today)}}}},
    )


@_schedule(
    "30 4 * * *",
    pairs_job,
    "Build and normalise the pairs of days that enough families answered.",
    on=True,
)
def nightly_pairs(lake: LakeResource, recipes: RecipesResource) -> Requests:
    """Request one run for each range of days whose pairs are not current."""
    from composer_pipeline.maintenance.status import pairs_days

    rules = recipes.rules()
    if rules.semantic_judge:
        yield PAID_JUDGE
        return
    days = pairs_days(lake.open(), rules, recipes.normalize)
    yield from _runs(lake, days, "Every day that two families answered has its pairs, normalised.")


@_schedule(
    "30 6 * * 0",
    train_job,
    "Build the dataset, train and evaluate. Off by default: it takes hours.",
    on=False,
)
def weekly_train(lake: LakeResource) -> Requests:
    """Request one run if there are pairs; the same data and recipe use the same run folder."""
    yield _if_pairs(lake)


@_schedule(
    "30 5 * * *",
    nightly_publish_job,
    "Build and publish the dataset, if COMPOSER_PUBLISH_NIGHTLY is set.",
    on=True,
)
def nightly_publish(lake: LakeResource, publication: PublicationResource) -> Requests:
    """Request one run if a repository and nightly publication are configured."""
    if publication.repo and publication.nightly:
        yield _if_pairs(lake)
    else:
        yield dg.SkipReason("COMPOSER_PUBLISH_REPO and COMPOSER_PUBLISH_NIGHTLY=1 turn it on.")


@_schedule(
    "30 8 * * 0",
    nightly_publish_job,
    "Build and publish the dataset. Off by default: rows leave the machine.",
    on=False,
)
def weekly_publish(lake: LakeResource, publication: PublicationResource) -> Requests:
    """Request one run if a repository is configured and there are pairs."""
    if publication.repo:
        yield _if_pairs(lake)
    else:
        yield dg.SkipReason("COMPOSER_PUBLISH_REPO is not set.")


def _if_pairs(lake: LakeResource) -> dg.RunRequest | dg.SkipReason:
    if lake.open().days("normalized_pairs"):
        return dg.RunRequest()
    return dg.SkipReason(NO_PAIRS)


def _runs(
    lake: LakeResource,
    days: Iterable[str],
    nothing: str = "",
    selection: list[dg.AssetKey] | None = None,
) -> Requests:
    """Yield one request per range of days, or the reason why there is nothing to do."""
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


JOBS: list[dg.JobDefinition | UnresolvedAssetJobDefinition] = [
    harvest_job,
    outcomes_job,
    plan_job,
    replay_job,
    pairs_job,
    train_job,
    night_job,
    publish_job,
    nightly_publish_job,
    forget_old_runs,
    adopt,
]
SCHEDULES = [
    nightly_harvest,
    nightly_outcomes,
    nightly_replay,
    nightly_pairs,
    night,
    nightly_publish,
    weekly_train,
    weekly_publish,
]
