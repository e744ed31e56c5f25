"""Running a trainer from outside: its folder, a new start, and numbers that were not finite."""

import json
import sys

import pytest

from composer_pipeline.errors import ComposerError
from composer_pipeline.lake.store import Lake
from composer_pipeline.testing.training import write_dataset
from composer_pipeline.training import events
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import METRICS, prepare, read_steps, train


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path / "lake")
    write_dataset(lake, rows=2)
    return lake


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "here" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def write_result(run_dir, recipe, metrics):
    rest = {"base": {}, "dataset_sha": "", "rows": {}, "versions": {}, "fidelity": {}}
    result = {"recipe": recipe.model_dump(mode="json"), **rest, "metrics": metrics}
    (run_dir / "composer.json").write_text(json.dumps(result))


def test_force_keeps_the_old_run(lake, model, tmp_path, monkeypatch):
    recipe = TrainingRecipe(name="x", model=str(model))
    run = prepare(lake, recipe, tmp_path / "runs")
    active = {f"{channel}_active": 1.0 for channel in recipe.channels.weights()}
    write_result(run.run_dir, recipe, {"old": 1, **active})

    def trained(new, progress):
        write_result(new.run_dir, recipe, {"new": 1, **active})

    monkeypatch.setattr(sys.modules["composer_pipeline.training.run"], "_execute", trained)
    assert train(lake, recipe, run.run_dir.parent).metrics == {"old": 1, **active}
    assert train(lake, recipe, run.run_dir.parent, force=True).metrics == {"new": 1, **active}
    kept = run.run_dir.with_name(f"{run.run_dir.name}.1") / "composer.json"
    assert json.loads(kept.read_text())["metrics"] == {"old": 1, **active}


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        ({}, "channel grpo is on and was trained on nothing"),
        ({"grpo_active": 5.0, "sdpo_active": 0.0}, "channel sdpo is on and was trained on nothing"),
        ({"grpo_active": "many"}, r"Expected `float`, got `str` - at `\$\.metrics"),
    ],
)
def test_a_channel_that_was_trained_on_nothing_fails_the_run(
    lake, model, tmp_path, monkeypatch, metrics, why
):
    recipe = TrainingRecipe(name="x", model=str(model))

    def trained(new, progress):
        write_result(new.run_dir, recipe, metrics)

    monkeypatch.setattr(sys.modules["composer_pipeline.training.run"], "_execute", trained)
    with pytest.raises(ComposerError, match=why):
        train(lake, recipe, tmp_path / "runs")


def test_a_relative_folder_is_written_down_from_the_root(lake, model, tmp_path, monkeypatch):
    monkeypatch.chdir(model.parent)
    run = prepare(lake, TrainingRecipe(name="x", model="./model"), tmp_path / "runs").run_dir
    assert TrainingRecipe.load(run / "recipe.yaml").model == str(model)


def test_numbers_that_were_not_finite_are_not_read_as_numbers(tmp_path):
    step = {"event": "step", "slot": 0, "step": 1, "of": 2, "dpo_loss": float("nan")}
    (tmp_path / METRICS).write_text(events.line({**step, "dpo_active": 2}) + "\n")
    assert read_steps(tmp_path) == {(0, 1): {"dpo_active": 2.0}}
