"""Checks of worth: what a dataset teaches, and whether a model got better by it.

Belongs here: checks of measured figures against their bounds. The measures are in
``preferences.quality`` and ``evaluation``.
"""

from pathlib import Path

import dagster as dg

from assets.pages import records, run_dir_of
from assets.resources import LakeResource, RecipesResource


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
        severity=dg.AssetCheckSeverity.WARN,
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


@dg.asset_check(asset="model_evaluation", blocking=True)
def not_worse_than_base(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """On easy and recovery states the trained model is not surely worse than its base."""
    from composer_pipeline.evaluation import TRAINED, cells_of, guarded
    from composer_pipeline.training.runs.card import evaluation_of

    run_dir = run_dir_of(context.instance, "model_evaluation")
    found = evaluation_of(Path(run_dir)) if run_dir else None
    if found is None:
        return dg.AssetCheckResult(passed=False, description="There is no evaluation.")
    worse, unknown = found["worse"], found["unknown"]
    said = [f"Worse than its base on {sentence}." for sentence in worse]
    said += [f"Not known whether it is worse on {sentence}." for sentence in unknown]
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
        description=" ".join(said) or "Not surely worse on easy or recovery states.",
    )
