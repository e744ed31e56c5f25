"""The checks that every table has, from the one description of tables.

Belongs here: which table is whose, and what each check is called. Does not belong here: what is
current (``composer_pipeline.care.currency``) and the queries (``lake.violations``,
``preferences.quality.row_accounting``).

One op runs all checks of a table, so that they share what they read. ``columns_as_described``,
``rows_unique`` and ``rows_accounted_for`` look at the days of the run and block what follows;
``up_to_date`` and ``yesterday_is_there`` look at every day and warn.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg

from assets.checks.results import result
from assets.pages import records
from assets.partitions import day_ranges, partition_days
from assets.resources import LakeResource, RecipesResource, SessionsResource, TeachersResource

if TYPE_CHECKING:
    from composer_pipeline.care import Why
    from composer_pipeline.lake import Lake

WARN = dg.AssetCheckSeverity.WARN
BLOCKING = {
    "columns_as_described": "Each partition has the columns and types of its table.",
    "rows_unique": "No key stands in two rows.",
    "rows_accounted_for": "Each row that came in is there, or told why not.",
}
WARNING = {
    "up_to_date": "Each day was made from its inputs, versions, rules and parameters of now.",
    "yesterday_is_there": "Yesterday's day is not missing.",
}
#: Asset -> its table, and the stage whose rows have to add up, where no check of its own says so.
TABLE_OF = {
    "raw_sessions": ("raw_files", ""),
    "trace_states": ("states", "files"),
    "error_hints": ("hints", "hints"),
    "preference_pairs": ("pairs", ""),
    "normalized_pairs": ("normalized_pairs", ""),
}

#: What a stale day is asked of: the lake and the resources.
Asked = Callable[["Lake", SessionsResource, RecipesResource, TeachersResource], "Stale"]
Stale = Mapping[str, "Why"]


def _stale_of(asset: str) -> Asked:
    """Return the library's question of an asset's days."""

    def ask(
        store: "Lake",
        sessions: SessionsResource,
        recipes: RecipesResource,
        teachers: TeachersResource,
    ) -> Stale:
        from composer_pipeline import care
        from composer_pipeline.replay.teachers import TeacherSet

        if asset == "raw_sessions":
            return care.stale_files(store, sessions.paths())
        if asset == "trace_states":
            return care.stale_states(store)
        if asset == "error_hints":
            return care.stale_hints(store)
        if asset == "preference_pairs":
            return care.stale_pairs(store, recipes.rules())
        if asset == "normalized_pairs":
            return care.stale_normalized(store, recipes.normalize)
        asked = TeacherSet.load(teachers.file)
        (teacher,) = asked.select([asset])
        return care.stale_replies(store, asked, teacher)

    return ask


def up_to_date(
    stale: Stale, asset: str, green: Collection[str] = frozenset()
) -> dg.AssetCheckResult:
    """Return the result of ``up_to_date``: the days that were made otherwise, and their cure.

    Args:
        stale: the days that are not current.
        asset: its name.
        green: the days that Dagster shows as made; one that was not is told too.
    """
    old = {
        day: why.said
        for day, why in sorted(stale.items())
        if why.kind == "changed" or (why.kind == "absent" and day in green)
    }
    ranges = ", ".join(
        first if first == last else f"{first}...{last}" for first, last in day_ranges([*old])
    )
    listed = [{"day": day, "why": why} for day, why in old.items()]
    return dg.AssetCheckResult(
        check_name="up_to_date",
        passed=not old,
        severity=WARN,
        metadata={"days": len(old), **({"stale": records(listed[:200])} if listed else {})},
        description=f"{len(old)} days are not current: backfill {asset} for {ranges}."
        if old
        else "Every day that was made is current.",
    )


def yesterday_is_there(stale: Stale, today: str) -> dg.AssetCheckResult:
    """Return the result of ``yesterday_is_there``."""
    day = str((datetime.fromisoformat(today) - timedelta(days=1)).date())
    why = stale.get(day)
    return dg.AssetCheckResult(
        check_name="yesterday_is_there",
        passed=why is None,
        severity=WARN,
        metadata={"day": day},
        description=f"{day}: {why.said}." if why else f"{day} is there, or has no session.",
    )


def build_table_checks(reply_keys: Sequence[dg.AssetKey]) -> list[dg.AssetChecksDefinition]:
    """Return the checks of each daily table, the teachers' too."""
    found = [
        _checks_of(dg.AssetKey(name), table, stage) for name, (table, stage) in TABLE_OF.items()
    ]
    return [*found, *(_checks_of(key, "replies", "", teacher=key.path[-1]) for key in reply_keys)]


def _checks_of(key: dg.AssetKey, table: str, stage: str, **keys: str) -> dg.AssetChecksDefinition:
    asset = key.path[-1]
    names = [name for name in BLOCKING if stage or name != "rows_accounted_for"]
    specs = [
        *(dg.AssetCheckSpec(n, asset=key, blocking=True, description=BLOCKING[n]) for n in names),
        *(dg.AssetCheckSpec(n, asset=key, description=text) for n, text in WARNING.items()),
    ]

    @dg.multi_asset_check(name=f"{'_'.join(key.path)}_table".replace("-", "_"), specs=specs)
    def check(
        context: dg.AssetCheckExecutionContext,
        lake: LakeResource,
        sessions: SessionsResource,
        recipes: RecipesResource,
        teachers: TeachersResource,
    ) -> Iterator[dg.AssetCheckResult]:
        from composer_pipeline.care import doubled_rows, wrong_columns
        from composer_pipeline.preferences.quality import leaks

        store, days = lake.open(), partition_days(context.run.tags)
        bad = {
            "columns_as_described": wrong_columns(store, table, days, **keys),
            "rows_unique": doubled_rows(store, table, days, **keys),
        }
        if stage:
            lost = leaks(store, stage, days)
            bad["rows_accounted_for"] = [f"{leak.row_id} {leak.what}" for leak in lost]
        said = {
            "columns_as_described": "columns are not as described",
            "rows_unique": "keys stand in two rows",
            "rows_accounted_for": "rows are not accounted for",
        }
        for name, rows in bad.items():
            yield result(rows, said[name], name)
        stale = _stale_of(asset)(store, sessions, recipes, teachers)
        yield up_to_date(stale, asset, context.instance.get_materialized_partitions(key))
        yield yesterday_is_there(stale, str(datetime.now(UTC).date()))

    return check
