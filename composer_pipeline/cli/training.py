"""Commands from the dataset on: dataset, export, publish, train, evaluate."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from composer_pipeline.cli.common import (
    Bar,
    JsonOption,
    LakeOption,
    app,
    open_lake,
    show,
)
from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.settings import Settings


@app.command
def dataset(*, lake: LakeOption = "", as_json: JsonOption = False) -> None:
    """Split by group of sessions and write the training columns."""
    from composer_pipeline.publishing import build_dataset

    with Bar() as progress:
        report = build_dataset(open_lake(lake), progress=progress)
    show(report.to_dict(), as_json, "dataset")


@app.command
def export(
    *,
    format: str,  # noqa: A002  the option's name
    out: Path,
    samples: Path | None = None,
    rules: str = "",
    full_arguments: Annotated[bool, Parameter(negative="")] = False,
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write the dataset in the columns of a kind of training: dpo, kto, sft or sdpo.

    Args:
        format: dpo (pairs), kto (unpaired), sft (the teachers' consensus), sdpo (hints).
        out: a file that ends in .parquet, or a folder that gets one file a split.
        samples: Parquet or JSONL of {state_id, student, action}: a model's own actions, which
            take the place of the agent's as rejected side.
        rules: preference recipe (COMPOSER_PREFERENCES).
        full_arguments: allow hints that hold the teachers' whole action.
    """
    from composer_pipeline.preferences.export import export as run
    from composer_pipeline.preferences.rules import PreferenceRules

    report = run(
        open_lake(lake),
        format,
        out,
        samples=samples,
        rules=PreferenceRules.load(rules or Settings.from_env().preferences),
        full_arguments=full_arguments,
    )
    show(report.to_dict(), as_json, "export")


@app.command
def publish(
    *,
    repo: str,
    public: Annotated[bool, Parameter(negative="")] = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    allow_simulated: Annotated[bool, Parameter(negative="")] = False,
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Commit the dataset to the Hugging Face Hub, once; private unless --public.

    Args:
        repo: OWNER/NAME.
        public: create the repository public.
        dry_run: plan and check, commit nothing.
        allow_simulated: allow rows of simulated teachers; the card says so.
    """
    from composer_pipeline.publishing import publish as run

    report = run(
        open_lake(lake), repo, private=not public, dry_run=dry_run, allow_simulated=allow_simulated
    )
    show(report.to_dict(), as_json, "publish")


@app.command
def train(
    *,
    recipe: str = "",
    force: Annotated[bool, Parameter(negative="")] = False,
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Run a trainer on the dataset.

    Args:
        recipe: training recipe (COMPOSER_TRAIN).
        force: train again although a finished run of the same inputs exists.
    """
    from composer_pipeline.training.run import train as run

    settings = Settings.from_env()
    store = open_lake(lake)
    with Bar() as progress:
        report = run(
            store,
            recipe or settings.train,
            _run_root(settings, store),
            progress=progress,
            force=force,
        )
    show(report.to_dict(), as_json, "train")


def _run_root(settings: Settings, lake: Lake) -> Path:
    """The settings' rule, for the lake that --lake names."""
    return settings.model_copy(update={"lake": lake.url}).run_root


@app.command
def evaluate(*, recipe: str = "", lake: LakeOption = "", as_json: JsonOption = False) -> None:
    """Measure a trained model on held-out sessions, before and after.

    Args:
        recipe: training recipe whose run is evaluated (COMPOSER_TRAIN).
    """
    from composer_pipeline.training.evaluation import evaluate as run
    from composer_pipeline.training.run import prepare

    settings = Settings.from_env()
    store = open_lake(lake)
    prepared = prepare(store, recipe or settings.train, _run_root(settings, store))
    if not prepared.complete:
        raise InputError(f"{prepared.run_dir} holds no finished training run; run train first")
    with Bar() as progress:
        report = run(store, prepared.run_dir, progress=progress)
    show(report.to_dict(), as_json, "evaluate")
