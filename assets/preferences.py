"""Preferences: hints, pairs, normalised pairs and the dataset.

Belongs here: the assets of the group ``preferences``. The logic is in
``composer_pipeline.preferences`` and ``composer_pipeline.publishing``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from assets.pages import OWNERS, numbers, records, table_metadata
from assets.partitions import DAYS, FREE, PAID
from assets.resources import LakeResource, RecipesResource, TeachersResource

if TYPE_CHECKING:
    from composer_pipeline.preferences.quality import Quality
    from composer_pipeline.preferences.rules import PreferenceRules


class DatasetConfig(dg.Config):
    """What the dataset has besides its rows."""

    tokenizer: str = Field(
        default="",
        description="Model whose tokens are counted, and to whose window pairs are cut as well.",
    )


@dg.asset(
    group_name="preferences",
    kinds={"python", "parquet"},
    owners=OWNERS,
    partitions_def=DAYS,
    backfill_policy=FREE,
    deps=["trace_states"],
    code_version="1",
    metadata=table_metadata("hints"),
)
def error_hints(context: dg.AssetExecutionContext, lake: LakeResource) -> None:
    """What the trace says was wrong at each error turn, and the call it is about."""
    from composer_pipeline.preferences.hints import build_hints

    for day, found in build_hints(lake.open(), days=context.partition_keys).by_day.items():
        context.add_asset_metadata(
            {"dagster/partition_row_count": found.hints, **numbers(found.by_source)},
            partition_key=day,
        )


def quality_metadata(quality: "Quality", rules: "PreferenceRules") -> dict[str, Any]:
    """Return the statistics as metadata: numbers become plots by partition, pictures show."""
    from composer_pipeline.preferences.quality import (
        agreement_figure,
        agreement_table,
        alpha_table,
        funnel_figure,
        reason_table,
        separability_figure,
    )

    alpha, noise = quality.alpha.get("", None), quality.noise
    measured = {
        "krippendorff_alpha": alpha.value if alpha else None,
        "excess_disagreement": noise.excess.value,
        "separability_auc": quality.separation.auc,
        "pairs_per_session_max": quality.per_session[1].value,
        "length_ratio_median": quality.length_ratio["p50"].value,
    }
    tables = {
        "alpha_by_tool": alpha_table(quality),
        "agreement_by_level": agreement_table(quality),
        "states_by_reason": reason_table(quality),
    }
    return {
        **{name: value for name, value in measured.items() if value is not None},
        **{f"outcome_{name}": count for name, count in quality.outcomes.items()},
        **{f"dropped_{name}": count for name, count in quality.drops.items()},
        "near_duplicates": len(quality.near),
        "contaminated_pairs": quality.contaminated,
        "noise_floor": noise.excess.note or f"measured on {noise.excess.n} audited states",
        "agreement": dg.MetadataValue.md(agreement_figure(quality)),
        "funnel": dg.MetadataValue.md(funnel_figure(quality)),
        "separability": dg.MetadataValue.md(
            separability_figure(quality.separation, rules.separability.max_auc)
        ),
        **{name: records(rows) for name, rows in tables.items() if rows},
    }


def build_preferences(reply_keys: Sequence[dg.AssetKey]) -> list[dg.AssetsDefinition]:
    """Return the assets from pairs to the dataset, downstream of the teachers' replies."""

    @dg.asset(
        group_name="preferences",
        kinds={"python", "parquet"},
        owners=OWNERS,
        partitions_def=DAYS,
        backfill_policy=PAID,
        deps=["trace_states", *reply_keys],
        code_version="2",
        metadata=table_metadata("pairs"),
    )
    def preference_pairs(
        context: dg.AssetExecutionContext,
        lake: LakeResource,
        recipes: RecipesResource,
        teachers: TeachersResource,
    ) -> None:
        """Pairs where at least two teacher families agree with each other against the agent."""
        from composer_pipeline.preferences.agreement import open_judge
        from composer_pipeline.preferences.pairs import build_pairs
        from composer_pipeline.preferences.quality import write_statistics

        store, rules = lake.open(), recipes.rules()
        days, ledger = context.partition_keys, teachers.ledger or None
        with open_judge(store, rules.semantic_judge, teachers.file, ledger=ledger) as judge:
            report = build_pairs(store, days=days, rules=rules, judge=judge)
        statistics = write_statistics(store, days=days, rules=rules)
        for day, made in report.by_day.items():
            context.add_asset_metadata(
                {
                    "dagster/partition_row_count": made.pairs,
                    "states": made.states,
                    **{f"tier_{tier}": count for tier, count in made.by_tier.items()},
                    **quality_metadata(statistics.by_scope[day], rules),
                },
                partition_key=day,
            )

    @dg.asset(
        group_name="preferences",
        kinds={"python", "parquet", "datajuicer"},
        owners=OWNERS,
        partitions_def=DAYS,
        backfill_policy=PAID,
        deps=[preference_pairs],
        code_version="1",
        metadata=table_metadata("normalized_pairs"),
    )
    def normalized_pairs(
        context: dg.AssetExecutionContext, lake: LakeResource, recipes: RecipesResource
    ) -> None:
        """Pairs after a data-juicer recipe, with a ledger of every dropped row."""
        from composer_pipeline.normalize import normalize

        report = normalize(lake.open(), recipes.normalize, days=context.partition_keys)
        for day in context.partition_keys:
            counts = report.by_day.get(day, {"rows": 0, "kept": 0, "dropped": 0})
            context.add_asset_metadata(
                {"dagster/partition_row_count": counts["kept"], **numbers(counts)},
                partition_key=day,
            )
        if report.by_op:
            context.add_output_metadata(
                {
                    "dropped_by_op": records(
                        [{"op": k, "dropped": v} for k, v in report.by_op.items()]
                    )
                }
            )

    @dg.asset(
        group_name="preferences",
        kinds={"python", "parquet", "duckdb"},
        owners=OWNERS,
        deps=[normalized_pairs, error_hints],
        code_version="3",
        metadata=table_metadata("dataset_pairs"),
    )
    def training_dataset(
        config: DatasetConfig, lake: LakeResource, recipes: RecipesResource
    ) -> dg.MaterializeResult[None]:
        """Pairs, recorded groups and hints, split by group of sessions."""
        from composer_pipeline.preferences.quality import ALL, write_statistics
        from composer_pipeline.publishing import build_dataset

        store, rules = lake.open(), recipes.rules()
        report = build_dataset(store, rules=rules, tokenizer=config.tokenizer)
        quality = write_statistics(store, rules=rules).by_scope[ALL]
        return dg.MaterializeResult(
            metadata={
                "dagster/row_count": report.rows,
                "groups": report.groups,
                "hints": report.hints,
                "grpo_groups": report.grpo_groups,
                "successes": report.successes,
                **{f"rows_{split}": count for split, count in report.splits.items()},
                "dropped": sum(report.drops.values()),
                "warning": report.warning or "none",
                "split_by": report.split_by,
                "repository_in_train": report.repository_in_train,
                "verbatim_in_train": report.verbatim_in_train,
                "moved_sessions": len(report.moved),
                **quality_metadata(quality, rules),
            }
        )

    return [preference_pairs, normalized_pairs, training_dataset]
