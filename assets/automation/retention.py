"""Retention: what Dagster remembers of old runs would grow for ever, half a megabyte a run.

Belongs here: the job ``forget_old_runs`` and its schedule. Does not belong here: the lake, which
keeps everything, and how long ticks are kept (``retention`` in dagster.yaml).
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import dagster as dg

from assets.resources import RetentionResource

_ENDED = [
    dg.DagsterRunStatus.SUCCESS,
    dg.DagsterRunStatus.FAILURE,
    dg.DagsterRunStatus.CANCELED,
]


#: Storage ids that one query names.
_CHUNK = 500


class ForgetConfig(dg.Config):
    """How much is forgotten."""

    keep_days: int = 0


@dg.op
def forget(
    context: dg.OpExecutionContext, config: ForgetConfig, retention: RetentionResource
) -> None:
    """Delete old runs with their events and logs, but not what shows a day as made."""
    days = config.keep_days or retention.keep_days
    if days <= 0:
        context.log.info("Nothing is forgotten: COMPOSER_KEEP_RUNS_DAYS is not set.")
        return
    gone, kept = forget_runs(context.instance, datetime.now(UTC) - timedelta(days=days))
    context.log.info(f"{gone} runs forgotten; {kept} older ones stay, as they made what is newest.")


def forget_runs(instance: dg.DagsterInstance, before: datetime) -> tuple[int, int]:
    """Delete the runs that ended before a moment; return (how many, how many had to stay).

    A run stays that made the newest materialisation of an asset or of one of its days: without
    its events Dagster would show that day as never made.
    """
    needed = _makers_of_the_newest(instance)
    old = dg.RunsFilter(statuses=_ENDED, updated_before=before)
    gone = kept = 0
    for record in instance.get_run_records(old):
        run_id = record.dagster_run.run_id
        if run_id in needed:
            kept += 1
            continue
        for key in _log_keys(instance, run_id):
            instance.compute_log_manager.delete_logs(log_key=key)
        instance.delete_run(run_id)
        gone += 1
    return gone, kept


def _makers_of_the_newest(instance: dg.DagsterInstance) -> set[str]:
    """Return the runs that made the newest materialisation of each asset and partition."""
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


@dg.job(description="Delete what Dagster remembers of runs older than COMPOSER_KEEP_RUNS_DAYS.")
def forget_old_runs() -> None:
    """Delete old runs, their events and logs; the lake is not touched."""
    forget()


def build_retention(keep_days: int) -> dg.ScheduleDefinition:
    """Return the schedule ``nightly_retention``, on where runs are not kept for ever."""
    on = keep_days > 0
    return dg.ScheduleDefinition(
        name="nightly_retention",
        job=forget_old_runs,
        cron_schedule="30 6 * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING if on else dg.DefaultScheduleStatus.STOPPED,
        description="Forget old runs, where COMPOSER_KEEP_RUNS_DAYS says how many days are kept.",
    )
