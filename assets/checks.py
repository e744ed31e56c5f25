"""The asset checks; those of the teachers are built from the teacher file."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from assets.pages import records, run_dir_of
from assets.partitions import day_ranges, partition_days
from assets.resources import (
    LakeResource,
    RecipesResource,
    RepositoriesResource,
    SessionsResource,
    TeachersResource,
)
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import (
    Lake,
    doubled_states,
    groups_in_two_splits,
    incomplete_prefixes,
    pairs_without_difference,
)

if TYPE_CHECKING:
    from composer_pipeline.lake.provenance import Staleness
    from composer_pipeline.teachers.ledger.values import Scope


WARN = dg.AssetCheckSeverity.WARN


def _result(violations: Sequence[str], what: str, name: str | None = None) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        check_name=name,
        passed=not violations,
        metadata={"violations": len(violations), "examples": ", ".join(violations[:5]) or "none"},
        description=f"{len(violations)} {what}" if violations else f"No {what}.",
    )


def _lost_rows(store: Lake, stages: Sequence[str], days: list[str] | None) -> list[str]:
    from composer_pipeline.preferences.quality import leaks

    found = [leak for stage in stages for leak in leaks(store, stage, days)]
    return [f"{leak.stage}: {leak.row_id} {leak.what}" for leak in found]


LOST = "rows are not accounted for"


@dg.asset_check(asset="raw_sessions", blocking=True)
def raw_sessions_never_shrink(lake: LakeResource) -> dg.AssetCheckResult:
    """No archived session is shorter than at the last check, and all bytes are there."""
    from composer_pipeline.traces.archive import shrunk_or_lost

    return _result(shrunk_or_lost(lake.open()), "archived sessions shrank or lost their bytes")


@dg.asset_check(asset="trace_states", blocking=True)
def state_ids_unique(lake: LakeResource) -> dg.AssetCheckResult:
    """No two rows have the same state id, over all days."""
    return _result(doubled_states(lake.open()), "state ids occur more than once")


@dg.asset_check(asset="trace_states", blocking=True)
def prefixes_complete(lake: LakeResource) -> dg.AssetCheckResult:
    """Every state's prefix is complete: its chain is long enough and its messages exist."""
    return _result(incomplete_prefixes(lake.open()), "states have an incomplete prefix")


@dg.asset_check(asset="preference_pairs", blocking=True)
def chosen_differs_from_rejected(lake: LakeResource) -> dg.AssetCheckResult:
    """No pair prefers an action to itself."""
    return _result(pairs_without_difference(lake.open()), "pairs have chosen equal to rejected")


@dg.asset_check(asset="training_dataset", blocking=True)
def no_group_in_two_splits(lake: LakeResource) -> dg.AssetCheckResult:
    """No group and no session is in two splits, in any config of the dataset."""
    return _result(groups_in_two_splits(lake.open()), "groups are in two splits")


@dg.asset_check(asset="training_dataset", blocking=True)
def dataset_accounted_for(lake: LakeResource) -> dg.AssetCheckResult:
    """Every normalised pair is in one split of the dataset or in the table of drops."""
    return _result(_lost_rows(lake.open(), ["dataset"], None), LOST)


@dg.asset_check(asset="preference_pairs", blocking=True)
def states_accounted_for(
    context: dg.AssetCheckExecutionContext, lake: LakeResource
) -> dg.AssetCheckResult:
    """Every state has a vote with a reason, and every vote for a pair is a pair or a drop."""
    # Other days may still wait for their stage: only those of this run have to add up.
    days = partition_days(context.run.tags)
    return _result(_lost_rows(lake.open(), ["votes", "pairs"], days), LOST)


@dg.asset_check(asset="normalized_pairs", blocking=True)
def pairs_accounted_for(
    context: dg.AssetCheckExecutionContext, lake: LakeResource
) -> dg.AssetCheckResult:
    """Every pair is normalised or in the table of drops, with the operator that dropped it."""
    days = partition_days(context.run.tags)
    return _result(_lost_rows(lake.open(), ["normalize"], days), LOST)


@dg.asset_check(asset="training_dataset")
def chosen_not_told_by_style(lake: LakeResource, recipes: RecipesResource) -> dg.AssetCheckResult:
    """A classifier that sees only style cannot tell chosen from rejected.

    Not blocking: a person decides whether to train on such pairs.
    """
    from composer_pipeline.preferences.quality import measured_on_dataset, separability_figure

    rules = recipes.rules()
    found = measured_on_dataset(lake.open(), rules)
    bound = rules.separability.max_auc
    sentence = found.note or f"AUC {found.auc:.3f} on {found.pairs} pairs; the bound is {bound:g}."
    return dg.AssetCheckResult(
        passed=found.auc is None or found.auc <= bound,
        severity=WARN,
        metadata={
            **({} if found.auc is None else {"auc": found.auc}),
            "measured": found.auc is not None,
            "pairs": found.pairs,
            "sessions": found.sessions,
            "bound": bound,
            "roc": dg.MetadataValue.md(separability_figure(found, bound)),
        },
        description=sentence[0].upper() + sentence[1:],
    )


@dg.asset_check(asset="model_evaluation", blocking=True)
def not_worse_than_base(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """On easy and recovery states the trained model is not surely worse than its base."""
    from composer_pipeline.evaluation.evaluate import TRAINED
    from composer_pipeline.evaluation.report import cells_of, guarded
    from composer_pipeline.training.model_card import evaluation_of

    run_dir = run_dir_of(context.instance, "model_evaluation")
    found = evaluation_of(Path(run_dir)) if run_dir else None
    if found is None:
        return dg.AssetCheckResult(passed=False, description="There is no evaluation.")
    worse, unknown = found["worse"], found["unknown"]
    sentences = [f"Worse than its base on {states}." for states in worse]
    sentences += [f"Not known whether it is worse on {states}." for states in unknown]
    intervals = [
        {"states": f"{kind} ({each.states} of {each.sessions} sessions)", "difference": each.mean,
         "low": each.low, "high": each.high}
        for kind, each in guarded(cells_of(found), TRAINED).items()
    ]  # fmt: skip
    return dg.AssetCheckResult(
        passed=not worse,
        metadata={
            "worse": len(worse),
            "not_known": len(unknown),
            **({"trained_minus_base": records(intervals)} if intervals else {}),
        },
        description=" ".join(sentences) or "Not surely worse on easy or recovery states.",
    )


#: Share of a teacher's replies that may be unusable before a person should look.
UNUSABLE = 0.25


def build_reply_checks(reply_keys: Sequence[dg.AssetKey]) -> list[dg.AssetChecksDefinition]:
    """Return the checks of each teacher's replies."""

    def build(key: dg.AssetKey) -> dg.AssetChecksDefinition:
        @dg.asset_check(asset=key, name="replies_usable")
        def replies_usable(lake: LakeResource) -> dg.AssetCheckResult:
            """Few of the replies are unusable: refused, cut off or unreadable."""
            from composer_pipeline.maintenance.status import unusable_share

            share, count = unusable_share(lake.open(), key.path[-1])
            return dg.AssetCheckResult(
                passed=share <= UNUSABLE,
                severity=WARN,
                metadata={"unusable_share": share, "replies": count, "bound": UNUSABLE},
                description=f"{share:.1%} of {count} replies are unusable; the bound is"
                f" {UNUSABLE:.0%}.",
            )

        return replies_usable

    return [build(key) for key in reply_keys]


BLOCKING = {
    "columns_as_described": "Each partition has the columns and types of its table.",
    "rows_unique": "No two rows have the same key.",
    "rows_accounted_for": "Each input row is in the table, or its absence is explained.",
}
VIOLATIONS = {
    "columns_as_described": "columns are not as described",
    "rows_unique": "keys occur in two rows",
    "rows_accounted_for": LOST,
}
WARNING = {
    "up_to_date": "Each day was made from its current inputs, versions, rules and parameters.",
    "yesterday_is_there": "Yesterday's day is not missing.",
}
#: Asset -> its table, and the stage whose rows have to add up unless another check covers it.
TABLE_OF = {
    "raw_sessions": ("raw_files", ""),
    "trace_states": ("states", "files"),
    "error_hints": ("hints", "hints"),
    "edit_outcomes": ("outcomes", ""),
    "preference_pairs": ("pairs", ""),
    "normalized_pairs": ("normalized_pairs", ""),
}

Stale = Mapping[str, "Staleness"]


def _stale_days(
    asset: str,
    store: Lake,
    sessions: SessionsResource,
    recipes: RecipesResource,
    teachers: TeachersResource,
    repositories: RepositoriesResource,
) -> Stale:
    from composer_pipeline.maintenance import status
    from composer_pipeline.teachers.teachers import TeacherSet

    match asset:
        case "raw_sessions":
            return status.stale_files(store, sessions.paths())
        case "trace_states":
            return status.stale_states(store)
        case "error_hints":
            return status.stale_hints(store)
        case "edit_outcomes":
            from composer_pipeline.survival.stage import stale_outcomes

            return stale_outcomes(store, repositories=repositories.folders())
        case "preference_pairs":
            return status.stale_pairs(store, recipes.rules())
        case "normalized_pairs":
            return status.stale_normalized(store, recipes.normalize)
    teacher_set = TeacherSet.load(teachers.file)
    (teacher,) = teacher_set.select([asset])
    return status.stale_replies(store, teacher_set, teacher)


def up_to_date(
    stale: Stale, asset: str, materialized: Collection[str] = frozenset()
) -> dg.AssetCheckResult:
    """Return the result of ``up_to_date``: the stale days, and what to backfill."""
    old = {
        day: why.reason
        for day, why in sorted(stale.items())
        if why.kind == "changed" or (why.kind == "absent" and day in materialized)
    }
    ranges = ", ".join(
        first if first == last else f"{first}...{last}" for first, last in day_ranges([*old])
    )
    rows = [{"day": day, "why": why} for day, why in old.items()]
    return dg.AssetCheckResult(
        check_name="up_to_date",
        passed=not old,
        severity=WARN,
        metadata={"days": len(old), **({"stale": records(rows[:200])} if rows else {})},
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
        description=f"{day}: {why.reason}." if why else f"{day} is there, or has no session.",
    )


def build_table_checks(reply_keys: Sequence[dg.AssetKey]) -> list[dg.AssetChecksDefinition]:
    """Return the checks of each daily table, those of the teachers included."""
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
        repositories: RepositoriesResource,
    ) -> Iterator[dg.AssetCheckResult]:
        from composer_pipeline.maintenance.verify import doubled_rows, wrong_columns
        from composer_pipeline.preferences.quality import leaks

        store, days = lake.open(), partition_days(context.run.tags)
        found = {
            "columns_as_described": wrong_columns(store, table, days, **keys),
            "rows_unique": doubled_rows(store, table, days, **keys),
        }
        if stage:
            lost = leaks(store, stage, days)
            found["rows_accounted_for"] = [f"{leak.row_id} {leak.what}" for leak in lost]
        for name, violations in found.items():
            yield _result(violations, VIOLATIONS[name], name)
        stale = _stale_days(asset, store, sessions, recipes, teachers, repositories)
        yield up_to_date(stale, asset, context.instance.get_materialized_partitions(key))
        yield yesterday_is_there(stale, str(datetime.now(UTC).date()))

    return check


@dg.asset_check(asset="preference_pairs")
def teachers(teachers: TeachersResource) -> dg.AssetCheckResult:
    """The teacher file is valid; without it the graph has no ``teacher_replies``."""
    from composer_pipeline.teachers.teachers import TeacherSet

    try:
        found = TeacherSet.load(teachers.file).teachers
    except InputError as error:
        return dg.AssetCheckResult(
            passed=False,
            metadata={"file": dg.MetadataValue.path(teachers.file)},
            description=f"{error}. Correct it, then reload the definitions.",
        )
    names = [teacher.name for teacher in found]
    return dg.AssetCheckResult(
        passed=True,
        metadata={"file": dg.MetadataValue.path(teachers.file), "teachers": len(names)},
        description=f"The file names {', '.join(names)}.",
    )


WITHIN_BUDGET, COVERED = "within_budget", "replies_cover_states"
AFFORDED = dg.AssetCheckKey(dg.AssetKey("budget"), "ceiling_not_reached")


@dg.asset_check(asset=AFFORDED.asset_key)
def ceiling_not_reached(lake: LakeResource, teachers: TeachersResource) -> dg.AssetCheckResult:
    """No reply is missing because a ceiling was reached."""
    return covered(lake.open(), teachers.file, AFFORDED)


def purchase_checks(key: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    """Return the checks of a teacher's asset that its purchase evaluates."""
    charged = (
        "No scope was charged above the ceiling in force at the time. Setting a ceiling below"
        " what was already spent, which stops spending, is not an overspend."
    )
    answered = (
        "The teacher has answered every question of the days it was queried for. It warns where a"
        " ceiling was reached. Not blocking: pairs are made from the families that answered; the"
        " nightly replay asks again."
    )
    return [
        dg.AssetCheckSpec(WITHIN_BUDGET, asset=key, blocking=True, description=charged),
        dg.AssetCheckSpec(COVERED, asset=key, description=answered),
    ]


def purchase_results(
    lake: Lake,
    teachers: TeachersResource,
    checks: Iterable[dg.AssetCheckKey],
    *,
    free: bool,
    sentence: str = "",
) -> Iterator[dg.AssetCheckResult]:
    """Evaluate the checks of a purchase; ``sentence`` says where a ceiling stopped it."""
    for key in checks:
        if key.name == WITHIN_BUDGET:
            yield _within_budget(lake, teachers.ledger, key.asset_key, free=free)
        else:
            yield covered(lake, teachers.file, key, sentence)


def covered(
    lake: Lake, file: str, key: dg.AssetCheckKey, sentence: str = ""
) -> dg.AssetCheckResult:
    """Return whether replies of a teacher are missing, or any for want of money."""
    from composer_pipeline.maintenance.status import TRIES, missing_replies
    from composer_pipeline.teachers.report import NO_MONEY
    from composer_pipeline.teachers.teachers import TeacherSet

    try:
        gaps = missing_replies(lake, TeacherSet.load(file))
    except InputError as error:
        sentence, gaps = str(error), None
    rows: list[dict[str, str | int]] = []
    whys: set[str] = set()
    for (teacher, day), gap in sorted((gaps or {}).items()):
        if teacher == key.asset_key.path[-1] or (key == AFFORDED and gap.why.startswith(NO_MONEY)):
            nights = f"{gap.tries} of {TRIES}"
            rows.append({"teacher": teacher, "day": day, "missing": gap.missing, "why": gap.why,
                         "nights": nights})  # fmt: skip
            whys.add(gap.why)
    total = sum(int(row["missing"]) for row in rows)
    ceiling = all(why.startswith(NO_MONEY) for why in whys)
    if not (sentence and ceiling):
        reasons = "; ".join(sorted(whys))
        sentence = f"{total} replies are missing: {reasons}. What was bought is kept; run again."
    return dg.AssetCheckResult(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=gaps is not None and not rows,
        severity=WARN if ceiling else dg.AssetCheckSeverity.ERROR,
        metadata={"missing": total, **({"days": records(rows[:200])} if rows else {})},
        description=sentence if rows or gaps is None else "No reply is missing.",
    )


def _within_budget(lake: Lake, ledger: str, key: dg.AssetKey, *, free: bool) -> dg.AssetCheckResult:
    from composer_pipeline.money import to_usd
    from composer_pipeline.teachers.ledger.ledger import existing_ledger, ledger_target

    existing = existing_ledger(ledger_target(lake, ledger or None))
    over, lowered = {}, ""
    if existing is not None:
        with existing:
            over, lowered = existing.overspent(), _lowered_ceilings(existing.status())
    scopes = ", ".join(f"{scope} by {to_usd(pico)} USD" for scope, pico in over.items())
    return dg.AssetCheckResult(
        passed=not over,
        asset_key=key,
        check_name=WITHIN_BUDGET,
        severity=WARN if free else dg.AssetCheckSeverity.ERROR,
        metadata={"scopes_overspent": len(over)},
        description=f"Charged above the ceiling in force at the time: {scopes}."
        if over
        else f"No scope was charged above its ceiling.{lowered}",
    )


def _lowered_ceilings(scopes: Mapping[str, "Scope"]) -> str:
    """Return a sentence for each ceiling that was set below what its scope has spent."""
    from composer_pipeline.money import to_usd

    return "".join(
        f" The ceiling of {scope}, {to_usd(held.ceiling)} USD, is below the"
        f" {to_usd(held.spent)} USD that it has spent: nothing is bought until it is raised"
        " (job set_ceiling); work that costs nothing continues."
        for scope, held in sorted(scopes.items())
        if held.ceiling is not None and held.ceiling < held.spent
    )


CHECKS = [
    raw_sessions_never_shrink,
    state_ids_unique,
    prefixes_complete,
    chosen_differs_from_rejected,
    no_group_in_two_splits,
    dataset_accounted_for,
    states_accounted_for,
    pairs_accounted_for,
    chosen_not_told_by_style,
    not_worse_than_base,
    teachers,
    ceiling_not_reached,
]
