"""Running a trainer from outside: its folder, a new start, and numbers that were not finite."""

import json
import sys

import pytest

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


def test_force_keeps_the_old_run(lake, model, tmp_path, monkeypatch):
    recipe = TrainingRecipe(name="x", model=str(model))
    run = prepare(lake, recipe, tmp_path / "runs")
    (run.run_dir / "composer.json").write_text('{"metrics": {"old": 1}}')

    def trained(new, progress):
        (new.run_dir / "composer.json").write_text('{"metrics": {"new": 1}}')

    monkeypatch.setattr(sys.modules["composer_pipeline.training.run"], "_execute", trained)
    assert train(lake, recipe, run.run_dir.parent).metrics == {"old": 1}
    assert train(lake, recipe, run.run_dir.parent, force=True).metrics == {"new": 1}
    kept = run.run_dir.with_name(f"{run.run_dir.name}.1") / "composer.json"
    assert json.loads(kept.read_text()) == {"metrics": {"old": 1}}


def test_a_relative_folder_is_written_down_from_the_root(lake, model, tmp_path, monkeypatch):
    monkeypatch.chdir(model.parent)
    run = prepare(lake, TrainingRecipe(name="x", model="./model"), tmp_path / "runs").run_dir
    assert TrainingRecipe.load(run / "recipe.yaml").model == str(model)


def test_numbers_that_were_not_finite_are_not_read_as_numbers(tmp_path):
    step = {"event": "step", "slot": 0, "step": 1, "of": 2, "dpo_loss": float("nan")}
    (tmp_path / METRICS).write_text(events.line({**step, "dpo_active": 2}) + "\n")
    assert read_steps(tmp_path) == {(0, 1): {"dpo_active": 2.0}}
