"""Error hints, preference pairs, normalised pairs and the training dataset."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from assets.failures import one_sentence
from assets.money import is_dry
from assets.pages import NIGHTLY, OWNERS, TablePage, explained, records, table_metadata, usd
from assets.partitions import DAYS, FREE, PAID, TRANSIENT, days_of
from assets.resources import LakeResource, RecipesResource, TeachersResource
from composer_pipeline.errors import InputError
from composer_pipeline.lake.provenance import build_id
from composer_pipeline.lake.schema import SCHEMA_VERSION
from composer_pipeline.versions import (
    CONVERTER_VERSION,
    HINTS_VERSION,
    NORMALIZE_VERSION,
    PAIRS_VERSION,
)

if TYPE_CHECKING:
    from composer_pipeline.preferences.quality import Quality
    from composer_pipeline.preferences.rules import PreferenceRules


class DatasetConfig(dg.Config):
    """Options of the dataset."""

    tokenizer: str = Field(
        default="",
        description="Model whose tokenizer counts tokens; pairs are also cut to its window.",
    )
    split_by: str = Field(
        default="",
        description="repository or session, in place of the preference recipe's.",
    )


@dg.asset(
    group_name="preferences",
    kinds={"python", "parquet"},
    owners=OWNERS,
    partitions_def=DAYS,
    backfill_policy=FREE,
    freshness_policy=NIGHTLY,
    deps=["trace_states"],
    retry_policy=TRANSIENT,
    code_version=HINTS_VERSION,
    metadata=table_metadata("hints"),
)
@explained
@one_sentence
def error_hints(context: dg.AssetExecutionContext, lake: LakeResource) -> None:
    """What was wrong at each error turn according to the trace, and at which call."""
    from composer_pipeline.preferences.hints import build_hints

    store, days = lake.open(), days_of(context)
    page = TablePage("error_hints", "hints", store, days)
    for day, found in build_hints(store, days=days).by_day.items():
        leakage = {"mean_leakage": found.mean_leakage} if found.hints else {}
        context.add_asset_metadata(page.of(day, {**found.by_source, **leakage}), partition_key=day)


def quality_numbers(quality: "Quality") -> dict[str, float | None]:
    """Return the statistics that are numbers; ``None`` where one could not be measured."""
    alpha = quality.alpha.get("")
    return {
        "krippendorff_alpha": alpha.value if alpha else None,
        "excess_disagreement": quality.noise.excess.value,
        "separability_auc": quality.separation.auc,
        "pairs_per_session_max": quality.per_session[1].value,
        "length_ratio_median": quality.length_ratio["p50"].value,
        **{f"outcome_{name}": count for name, count in quality.outcomes.items()},
        **{f"dropped_{name}": count for name, count in quality.drops.items()},
        "near_duplicates": len(quality.near),
        "contaminated_pairs": quality.contaminated,
    }


def quality_pictures(quality: "Quality", rules: "PreferenceRules") -> dict[str, Any]:
    """Return the statistics that are pictures, tables and sentences."""
    from composer_pipeline.preferences.quality import (
        agreement_figure,
        agreement_table,
        alpha_table,
        funnel_figure,
        reason_table,
        separability_figure,
    )

    tables = {
        "alpha_by_tool": alpha_table(quality),
        "agreement_by_level": agreement_table(quality),
        "states_by_reason": reason_table(quality),
    }
    excess = quality.noise.excess
    return {
        "noise_floor": excess.note or f"measured on {excess.n} audited states",
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
        deps=["trace_states", "edit_outcomes", *reply_keys],
        code_version=f"{PAIRS_VERSION}.{CONVERTER_VERSION}",
        metadata=table_metadata("pairs"),
    )
    @explained
    @one_sentence
    def preference_pairs(
        context: dg.AssetExecutionContext,
        lake: LakeResource,
        recipes: RecipesResource,
        teachers: TeachersResource,
    ) -> None:
        """Pairs on which at least two teacher families agree with each other against the agent."""
        from composer_pipeline.preferences.judge import open_judge
        from composer_pipeline.preferences.pairs import build_pairs
        from composer_pipeline.preferences.quality import write_statistics

        store, rules = lake.open(), recipes.rules()
        if rules.semantic_judge and is_dry(context):
            raise InputError("the preference recipe names a paid judge, which no dry night asks")
        days, ledger = days_of(context), teachers.ledger or None
        page = TablePage("preference_pairs", "pairs", store, days)
        with open_judge(store, rules.semantic_judge, teachers.file, ledger=ledger) as judge:
            report = build_pairs(store, days=days, rules=rules, judge=judge)
        statistics = write_statistics(store, days=days, rules=rules)
        for day, votes in report.by_day.items():
            quality = statistics.by_scope[day]
            cost = store.read("votes", days=[day], columns=["cost_picodollars"])
            counts = {
                "states": votes.states,
                "cost_usd": usd(sum(filter(None, cost["cost_picodollars"].to_pylist()))),
                **{f"tier_{tier}": count for tier, count in votes.by_tier.items()},
                **quality_numbers(quality),
            }
            context.add_asset_metadata(
                {**page.of(day, counts), **quality_pictures(quality, rules)}, partition_key=day
            )

    @dg.asset(
        group_name="preferences",
        kinds={"python", "parquet", "datajuicer"},
        owners=OWNERS,
        partitions_def=DAYS,
        backfill_policy=PAID,
        deps=[preference_pairs],
        retry_policy=TRANSIENT,
        code_version=NORMALIZE_VERSION,
        metadata=table_metadata("normalized_pairs"),
    )
    @explained
    @one_sentence
    def normalized_pairs(
        context: dg.AssetExecutionContext, lake: LakeResource, recipes: RecipesResource
    ) -> None:
        """Pairs after a data-juicer recipe, with a table of every dropped row."""
        from composer_pipeline.normalization.stage import normalize

        store, days = lake.open(), days_of(context)
        page = TablePage("normalized_pairs", "normalized_pairs", store, days)
        report = normalize(store, recipes.normalize, days=days)
        for day in days:
            counts = report.by_day.get(day, {})
            steps = store.read("drops", days=[day], columns=["step"], stage="normalize")
            dropped = Counter(steps["step"].to_pylist())
            by_op = [{"op": name, "dropped": n} for name, n in sorted(dropped.items())]
            given = {name: count for name, count in counts.items() if name != "kept"}
            context.add_asset_metadata(
                {**page.of(day, given), **({"dropped_by_op": records(by_op)} if by_op else {})},
                partition_key=day,
            )

    @dg.asset(
        group_name="preferences",
        kinds={"python", "parquet", "duckdb"},
        owners=OWNERS,
        deps=[normalized_pairs, error_hints],
        code_version=str(SCHEMA_VERSION),
        metadata=table_metadata("dataset_pairs"),
    )
    @explained
    @one_sentence
    def training_dataset(
        config: DatasetConfig, lake: LakeResource, recipes: RecipesResource
    ) -> dg.MaterializeResult[None]:
        """Pairs, recorded groups and hints, split by group of sessions."""
        from composer_pipeline.dataset.build import build_dataset

        store, rules = lake.open(), recipes.rules()
        page = TablePage("training_dataset", "dataset_pairs", store)
        report = build_dataset(
            store, rules=rules, tokenizer=config.tokenizer, split_by=config.split_by
        )
        quality = report.quality
        assert quality is not None
        costs = store.read("dataset_groups", columns=["cost_usd"])["cost_usd"].to_pylist()
        counts = {
            "cost_usd": sum(filter(None, costs)) if costs else None,
            "groups": report.groups,
            "hints": report.hints,
            "grpo_groups": report.grpo_groups,
            "successes": report.successes,
            **{f"rows_{split}": count for split, count in report.splits.items()},
            "dropped": sum(report.drops.values()),
            "repository_in_train": report.repository_in_train,
            "verbatim_in_train": report.verbatim_in_train,
            "moved_sessions": len(report.moved),
            **quality_numbers(quality),
        }
        return dg.MaterializeResult(
            metadata={
                **page.of(numbers=counts),
                "version": build_id(store),
                "warning": report.warning or "none",
                "split_by": report.split_by,
                **quality_pictures(quality, rules),
            }
        )

    return [preference_pairs, normalized_pairs, training_dataset]
