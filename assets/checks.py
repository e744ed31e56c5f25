"""Blocking checks: a stage that breaks one of these stops everything after it.

Belongs here: what blocks, and what a violation is called. Does not belong here: the queries
(``lake.violations``); they do not trust the code that wrote the tables.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import dagster as dg

from assets.pages import run_dir_of
from assets.partitions import partition_days
from assets.resources import LakeResource, RecipesResource, TeachersResource
from composer_pipeline.lake import (
    Lake,
    doubled_states,
    groups_in_two_splits,
    incomplete_prefixes,
    pairs_without_difference,
)


def _result(bad: Sequence[str], what: str) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=not bad,
        metadata={"violations": len(bad), "examples": ", ".join(bad[:5]) or "none"},
        description=f"{len(bad)} {what}" if bad else f"No {what}.",
    )


@dg.asset_check(asset="raw_sessions", blocking=True)
def raw_sessions_never_shrink(lake: LakeResource) -> dg.AssetCheckResult:
    """No archived session is shorter than at the last check, and all bytes are there."""
    from composer_pipeline.traces.archive import shrunk_or_lost

    return _result(shrunk_or_lost(lake.open()), "archived sessions shrank or lost their bytes")


@dg.asset_check(asset="trace_states", blocking=True)
def state_ids_unique(lake: LakeResource) -> dg.AssetCheckResult:
    """No state id stands in two rows, over all days."""
    return _result(doubled_states(lake.open()), "state ids stand more than once")


@dg.asset_check(asset="trace_states", blocking=True)
def prefixes_complete(lake: LakeResource) -> dg.AssetCheckResult:
    """Every state's prefix is whole: its chain is long enough and its messages exist."""
    return _result(incomplete_prefixes(lake.open()), "states have an incomplete prefix")


@dg.asset_check(asset="preference_pairs", blocking=True)
def chosen_differs_from_rejected(lake: LakeResource) -> dg.AssetCheckResult:
    """No pair prefers an action to itself."""
    return _result(pairs_without_difference(lake.open()), "pairs have chosen equal to rejected")


def _accounted(store: Lake, stages: Sequence[str], tags: Mapping[str, str]) -> dg.AssetCheckResult:
    from composer_pipeline.preferences.quality import leaks

    # Other days may wait for their stage: only those of this run have to add up.
    days = partition_days(tags)
    bad = [leak for stage in stages for leak in leaks(store, stage, days)]
    return _result(
        [f"{leak.stage}: {leak.row_id} {leak.what}" for leak in bad], "rows are not accounted for"
    )


@dg.asset_check(asset="preference_pairs", blocking=True)
def states_accounted_for(
    context: dg.AssetCheckExecutionContext, lake: LakeResource
) -> dg.AssetCheckResult:
    """Every state has a vote with a reason, and every vote for a pair is a pair or a drop."""
    return _accounted(lake.open(), ["votes", "pairs"], context.run.tags)


@dg.asset_check(asset="normalized_pairs", blocking=True)
def pairs_accounted_for(
    context: dg.AssetCheckExecutionContext, lake: LakeResource
) -> dg.AssetCheckResult:
    """Every pair is normalised or in the ledger of drops, with the operator that dropped it."""
    return _accounted(lake.open(), ["normalize"], context.run.tags)


@dg.asset_check(asset="training_dataset", blocking=True)
def dataset_accounted_for(lake: LakeResource) -> dg.AssetCheckResult:
    """Every normalised pair is in one split of the dataset or in the ledger of drops."""
    return _accounted(lake.open(), ["dataset"], {})


@dg.asset_check(asset="training_dataset")
def chosen_not_told_by_style(lake: LakeResource, recipes: RecipesResource) -> dg.AssetCheckResult:
    """A classifier that sees only style does not tell chosen from rejected.

    Not blocking: whether to train on such pairs is a person's decision.
    """
    from composer_pipeline.preferences.quality import measured_on_dataset, separability_figure

    rules = recipes.rules()
    found = measured_on_dataset(lake.open(), rules)
    bound = rules.separability.max_auc
    said = found.note or f"AUC {found.auc:.3f} on {found.pairs} pairs; the bound is {bound:g}."
    return dg.AssetCheckResult(
        passed=found.auc is None or found.auc <= bound,
        metadata={
            **({} if found.auc is None else {"auc": found.auc}),
            "measured": found.auc is not None,
            "pairs": found.pairs,
            "sessions": found.sessions,
            "bound": bound,
            "roc": dg.MetadataValue.md(separability_figure(found, bound)),
        },
        description=said[0].upper() + said[1:],
    )


@dg.asset_check(asset="training_dataset", blocking=True)
def no_group_in_two_splits(lake: LakeResource) -> dg.AssetCheckResult:
    """No group and no session is in two splits, in any config of the dataset."""
    return _result(groups_in_two_splits(lake.open()), "groups are in two splits")


@dg.asset_check(asset="model_evaluation", blocking=True)
def not_worse_than_base(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """On easy and recovery states the trained model is not surely worse than its base."""
    from composer_pipeline.training.runs.card import evaluation_of

    run_dir = run_dir_of(context.instance, "model_evaluation")
    found = evaluation_of(Path(run_dir)) if run_dir else None
    if found is None:
        return dg.AssetCheckResult(passed=False, description="There is no evaluation.")
    worse, unknown = found["worse"], found["unknown"]
    said = [f"Worse than its base on {sentence}." for sentence in worse]
    said += [f"Not known whether it is worse on {sentence}." for sentence in unknown]
    return dg.AssetCheckResult(
        passed=not worse,
        metadata={"worse": len(worse), "not_known": len(unknown)},
        description=" ".join(said) or "Not surely worse on easy or recovery states.",
    )


def build_budget_checks(reply_keys: Sequence[dg.AssetKey]) -> list[dg.AssetChecksDefinition]:
    """Return the check ``within_budget`` for each teacher's asset."""

    def build(key: dg.AssetKey) -> dg.AssetChecksDefinition:
        @dg.asset_check(asset=key, name="within_budget", blocking=True)
        def within_budget(lake: LakeResource, teachers: TeachersResource) -> dg.AssetCheckResult:
            """No scope is over its ceiling: spent, reserved and unknown together."""
            from composer_pipeline.replay.ledger import existing_ledger, ledger_target

            ledger = existing_ledger(ledger_target(lake.open(), teachers.ledger or None))
            if ledger is None:
                return _result([], "budget scopes are over their ceiling")
            with ledger:
                scopes = ledger.status()
            bad = [
                name
                for name, held in scopes.items()
                if held.ceiling is not None
                and held.spent + held.reserved + held.unknown > held.ceiling
            ]
            return _result(bad, "budget scopes are over their ceiling")

        return within_budget

    return [build(key) for key in reply_keys]
