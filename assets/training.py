"""The trained model, its evaluation on held-out sessions, and the HTML report."""

from pathlib import Path

import dagster as dg
from pydantic import Field

from assets.failures import one_sentence
from assets.pages import OWNERS, explained, figures, run_dir_of, view_link
from assets.resources import LakeResource, RecipesResource
from composer_pipeline.charts import markdown_image
from composer_pipeline.parent import child_of_this
from composer_pipeline.versions import EVALUATION_VERSION, REPORT_VERSION, TRAINING_VERSION


class TrainConfig(dg.Config):
    """The training recipe."""

    recipe: str = Field(default="", description="Training recipe; COMPOSER_TRAIN if empty.")


@dg.asset(
    group_name="training",
    kinds={"pytorch", "python"},
    owners=OWNERS,
    deps=["training_dataset"],
    pool="gpu",
    code_version=TRAINING_VERSION,
)
@explained
@one_sentence
def trained_model(
    context: dg.AssetExecutionContext,
    config: TrainConfig,
    lake: LakeResource,
    recipes: RecipesResource,
    pipes: dg.PipesSubprocessClient,
) -> dg.MaterializeResult[None]:
    """A model trained with GRPO + SDPO + trace-replay DPO by DiLoCo replicas."""
    from composer_pipeline.training.run import about, curve_charts, prepare, report

    prepared = prepare(lake.open(), config.recipe or recipes.train, recipes.run_root)
    if not prepared.complete:
        # A kill -9 of the run ends its training too.
        env = {**prepared.env, **child_of_this()}
        pipes.run(
            context=context, command=prepared.command, env=env, cwd=prepared.cwd
        ).get_results()
    result = report(prepared.run_dir, reused=prepared.complete)
    return dg.MaterializeResult(
        metadata={
            "run_dir": dg.MetadataValue.path(str(result.run_dir)),
            "checkpoint": dg.MetadataValue.path(str(result.checkpoint)),
            "reused": result.reused,
            "look": view_link("runs"),
            "losses": dg.MetadataValue.md(
                " ".join(
                    markdown_image(chart, name)
                    for name, chart in curve_charts(result.run_dir).items()
                )
            ),
            **_timeline(result.run_dir),
            **about(result.run_dir),
            **figures("trained_model", result.metrics),
        }
    )


def _timeline(run_dir: Path) -> dict[str, dg.MetadataValue]:
    """Return the timeline of the run's replicas, if it has written one."""
    from composer_pipeline.diloco.views import read_timeline

    drawn = read_timeline(run_dir)
    if drawn is None:
        return {}
    return {"timeline": dg.MetadataValue.md(markdown_image(drawn, "replicas over time"))}


class EvaluateConfig(dg.Config):
    """The size of the evaluation."""

    per_kind: int = Field(
        default=0,
        description="At most this many states of each kind; 0 takes COMPOSER_EVALUATE_PER_KIND.",
    )
    max_new_tokens: int = Field(
        default=0, description="Tokens per answer; 0 takes the recipe's max_completion_tokens."
    )


@dg.asset(
    group_name="training",
    kinds={"pytorch", "python"},
    owners=OWNERS,
    deps=[trained_model],
    pool="gpu",
    code_version=EVALUATION_VERSION,
)
@explained
@one_sentence
def model_evaluation(
    context: dg.AssetExecutionContext,
    config: EvaluateConfig,
    lake: LakeResource,
    recipes: RecipesResource,
) -> dg.MaterializeResult[None]:
    """Actions and likelihoods of the model and its base on states that training never saw."""
    from composer_pipeline.evaluation.evaluate import TRAINED, evaluate
    from composer_pipeline.evaluation.report import HEAD, pictures, table
    from composer_pipeline.markdown import table as markdown_table

    result = evaluate(
        lake.open(),
        _trained_run(context),
        per_kind=config.per_kind or recipes.evaluate_per_kind or None,
        max_new_tokens=config.max_new_tokens or None,
    )
    return dg.MaterializeResult(
        metadata={
            "run_dir": dg.MetadataValue.path(str(result.run_dir)),
            "report": dg.MetadataValue.path(str(result.folder / "report.md")),
            "look": view_link(f"evaluation/{result.run_dir.name}"),
            "differences": dg.MetadataValue.md(
                "\n\n".join(
                    f"{title}\n\n{markdown_image(drawn, title)}"
                    for title, drawn in pictures(result.cells, TRAINED).values()
                )
            ),
            "table": dg.MetadataValue.md(markdown_table(HEAD, table(result.cells, TRAINED))),
            "split": result.split,
            **figures(
                "model_evaluation",
                {
                    "states": sum(result.states.values()),
                    "sessions": result.sessions,
                    **result.metrics,
                },
            ),
        },
    )


def _trained_run(context: dg.AssetExecutionContext) -> str:
    """Return the run folder that ``trained_model`` last reported."""
    run_dir = run_dir_of(context.instance, "trained_model")
    if run_dir is None:
        raise dg.Failure("trained_model has not been materialised yet.", allow_retries=False)
    return run_dir


@dg.asset(
    group_name="training",
    kinds={"python", "html"},
    owners=OWNERS,
    deps=["training_dataset", model_evaluation],
    code_version=REPORT_VERSION,
)
@explained
@one_sentence
def report(lake: LakeResource, recipes: RecipesResource) -> dg.MaterializeResult[None]:
    """The dataset version as one self-contained HTML file: numbers, runs, twenty pairs."""
    from composer_pipeline.report.write import write_report

    written = write_report(lake.open(), run_root=recipes.run_root)
    return dg.MaterializeResult(
        metadata={
            "file": dg.MetadataValue.path(str(written.path)),
            "version": written.version,
            "runs": ", ".join(written.runs) or "none",
            "missing": ", ".join(written.missing) or "nothing",
            **figures("report", {"pairs": written.pairs}),
        }
    )
