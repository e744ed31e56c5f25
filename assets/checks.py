"""Blocking checks: a stage that breaks one of these stops everything after it.

Belongs here: checks of what is in the lake now, in SQL over its DuckDB views where
they can be. They do not trust the code that wrote the tables.
"""

import json
from collections.abc import Mapping, Sequence

import dagster as dg

from assets.partitions import partition_days
from assets.resources import LakeResource, RecipesResource, TeachersResource
from composer_pipeline.lake import Lake


def _violations(lake: Lake, sql: str) -> list[str]:
    return [str(row[0]) for row in lake.query(sql)]


def _result(bad: Sequence[str], what: str) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=not bad,
        metadata={"violations": len(bad), "examples": ", ".join(bad[:5]) or "none"},
        description=f"{len(bad)} {what}" if bad else f"No {what}.",
    )


@dg.asset_check(asset="raw_sessions", blocking=True)
def raw_sessions_never_shrink(lake: LakeResource) -> dg.AssetCheckResult:
    """No archived session is shorter than at the last check, and all bytes are there."""
    from composer_pipeline.traces.archive import blob_name

    store = lake.open()
    now = {
        path: [int(size), sha]
        for path, size, sha in store.query("SELECT path, size, sha256 FROM raw_files")
    }
    name = "checks/raw_sessions_high_water.json"
    before = json.loads(store.get_bytes(name)) if store.exists(name) else {}
    bad = [path for path, (size, _) in before.items() if now.get(path, [-1])[0] < size]
    bad += [
        path
        for path, sha in store.query(
            "SELECT path, unnest(coalesce(pieces, [sha256])) FROM raw_files"
        )
        if not store.exists(blob_name(sha))
    ]
    if not bad:
        store.put_bytes(name, json.dumps(now, sort_keys=True).encode())
    return _result(sorted(set(bad)), "archived sessions shrank or lost their bytes")


@dg.asset_check(asset="trace_states", blocking=True)
def state_ids_unique(lake: LakeResource) -> dg.AssetCheckResult:
    """No state id stands in two rows, over all days."""
    bad = _violations(
        lake.open(), "SELECT state_id FROM states GROUP BY state_id HAVING count(*) > 1"
    )
    return _result(bad, "state ids stand more than once")


@dg.asset_check(asset="trace_states", blocking=True)
def prefixes_complete(lake: LakeResource) -> dg.AssetCheckResult:
    """Every state's prefix is whole: its chain is long enough and its messages exist."""
    bad = _violations(
        lake.open(),
        """
        SELECT s.state_id FROM states s LEFT JOIN chains c USING (chain_id, day)
        WHERE s.n_messages + CAST(s.action IS NULL AS INT) > coalesce(len(c.messages), 0)
        UNION ALL
        SELECT u.chain_id FROM (SELECT chain_id, day, unnest(messages) AS n FROM chains) u
        ANTI JOIN messages m USING (n, day)
        """,
    )
    return _result(bad, "states have an incomplete prefix")


@dg.asset_check(asset="preference_pairs", blocking=True)
def chosen_differs_from_rejected(lake: LakeResource) -> dg.AssetCheckResult:
    """No pair prefers an action to itself."""
    bad = _violations(
        lake.open(),
        "SELECT pair_id FROM pairs WHERE CAST(chosen AS VARCHAR) = CAST(rejected AS VARCHAR)",
    )
    return _result(bad, "pairs have chosen equal to rejected")


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
    bad = _violations(
        lake.open(),
        """
        WITH every AS (
          SELECT group_id, session_id, split FROM dataset_pairs
          UNION ALL SELECT group_id, session_id, split FROM dataset_groups
          UNION ALL SELECT group_id, session_id, split FROM dataset_hints)
        SELECT group_id FROM every GROUP BY group_id HAVING count(DISTINCT split) > 1
        UNION SELECT session_id FROM every GROUP BY session_id HAVING count(DISTINCT split) > 1
        """,
    )
    return _result(bad, "groups are in two splits")


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
