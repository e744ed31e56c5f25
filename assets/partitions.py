"""The daily partition set and the two backfill policies.

Assets with equal policy and partitions share a run in a backfill; a third policy would split the
chain. Days begin with the first session, in the lake or at the source, when the definitions are
loaded (``COMPOSER_FIRST_DAY``), and end today (``COMPOSER_LAST_DAY``).
"""

from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, timedelta

import dagster as dg

from composer_pipeline.errors import InputError
from composer_pipeline.settings import Settings
from composer_pipeline.traces.discover import first_day, session_folders


def _first() -> str:
    settings = Settings.from_env()
    return settings.first_day or first_day(settings.lake, session_folders(settings.sessions))


def _end() -> str | None:
    """Return the day after ``COMPOSER_LAST_DAY``, if that is set."""
    last = Settings.from_env().last_day
    try:
        return str(date.fromisoformat(last) + timedelta(days=1)) if last else None
    except ValueError as error:
        raise InputError(f"COMPOSER_LAST_DAY: {last!r} is not a date (YYYY-MM-DD)") from error


#: Every asset up to ``normalized_pairs``. ``end_offset=1`` makes today a partition.
DAYS = dg.DailyPartitionsDefinition(
    start_date=_first(), end_date=_end(), timezone="UTC", end_offset=1
)

#: Stages that cost nothing: a month per run.
FREE = dg.BackfillPolicy.multi_run(max_partitions_per_run=31)

#: Transient faults of stages that cost nothing, such as an unreachable bucket. Errors that the
#: user has to correct are not retried (``assets.failures``), and paid stages never are.
TRANSIENT = dg.RetryPolicy(
    max_retries=3, delay=10, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS
)

#: Paid stages, and those in their runs: a failed day fails all days of its run, so a run has few.
PAID = dg.BackfillPolicy.multi_run(max_partitions_per_run=7)


#: A scheduled run includes gaps of so many days without sessions: cheaper than another run.
GAP = 7


def days_of(context: dg.AssetExecutionContext) -> list[str]:
    """Return the days of a run; each must be a partition that exists."""
    days = list(context.partition_keys)
    for day in days:
        if not DAYS.has_partition_key(day):
            first, last = DAYS.get_first_partition_key(), DAYS.get_last_partition_key()
            when = "in the future" if day > str(datetime.now(UTC).date()) else "not a partition"
            raise InputError(f"day {day} is {when}: days go from {first} to {last}")
    return days


def day_ranges(days: list[str], held: Collection[str] | None = None) -> list[tuple[str, str]]:
    """Return the maximal ranges (first, last) of ``days``, over gaps without ``held`` days."""
    ranges: list[tuple[str, str]] = []
    for day in sorted(set(days)):
        if ranges and _reaches(ranges[-1][1], day, held):
            ranges[-1] = (ranges[-1][0], day)
        else:
            ranges.append((day, day))
    return ranges


def _reaches(last: str, day: str, held: Collection[str] | None) -> bool:
    begin = date.fromisoformat(last)
    apart = (date.fromisoformat(day) - begin).days - 1
    if held is None or apart > GAP:
        return apart == 0
    return not any(str(begin + timedelta(days=n + 1)) in held for n in range(apart))


def partition_days(tags: Mapping[str, str]) -> list[str] | None:
    """Return the days of a run from its tags; ``None`` for a run without partitions."""
    if day := tags.get("dagster/partition"):
        return [day]
    first = tags.get("dagster/asset_partition_range_start")
    last = tags.get("dagster/asset_partition_range_end")
    if first is None or last is None:
        return None
    return list(DAYS.get_partition_keys_in_range(dg.PartitionKeyRange(first, last)))
