"""Days, and the two backfill policies.

Belongs here: the one partition set and the two policies. Assets with equal policy
and equal partitions share a run in a backfill; a third policy would split the chain.
"""

import dagster as dg

#: Every asset up to ``normalized_pairs``. ``end_offset=1`` makes today a partition.
DAYS = dg.DailyPartitionsDefinition(start_date="2025-02-24", timezone="UTC", end_offset=1)

#: Stages that cost nothing: a month a run.
FREE = dg.BackfillPolicy.multi_run(max_partitions_per_run=31)

#: Stages that buy, and those in their runs: a failed day fails its run's days, so few a run.
PAID = dg.BackfillPolicy.multi_run(max_partitions_per_run=7)


def day_ranges(days: list[str]) -> list[tuple[str, str]]:
    """Return the maximal contiguous ranges (first, last) of ``days``, sorted."""
    from datetime import date

    ranges: list[tuple[str, str]] = []
    for day in sorted(set(days)):
        if ranges and (date.fromisoformat(day) - date.fromisoformat(ranges[-1][1])).days == 1:
            ranges[-1] = (ranges[-1][0], day)
        else:
            ranges.append((day, day))
    return ranges
