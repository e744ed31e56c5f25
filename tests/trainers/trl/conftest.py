"""A dataset, a tiny model and its windows, built once a session."""

import os

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.testing.training import tiny_recipe, write_dataset, write_tiny_model
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rows import build
from composer_pipeline.training.run import DATA, RECIPE, prepare, report
from tests.trainers.trl import toy

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    return str(write_tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="session")
def tokenizer(tiny_model):
    return load_tokenizer(tiny_model)


@pytest.fixture(scope="session")
def lake(tmp_path_factory):
    lake = Lake(tmp_path_factory.mktemp("lake") / "lake")
    write_dataset(lake)
    write_dataset(lake, rows=3, split="validation")
    return lake


@pytest.fixture(scope="session")
def data(lake, tokenizer, tiny_model, tmp_path_factory):
    return build(lake, tokenizer, tiny_recipe(tiny_model), tmp_path_factory.mktemp("data"))


@pytest.fixture
def train_here(monkeypatch):
    """Train as the command does: its own part in this process, which has loaded what it needs.

    Base pass and replicas are processes of their own.
    """
    from trainers.__main__ import train

    def train_it(lake, recipe, runs):
        run = prepare(lake, recipe, runs)
        with monkeypatch.context() as patch:
            for name, value in run.env.items():
                patch.setenv(name, value)
            train(TrainingRecipe.load(run.run_dir / RECIPE), lake, run.run_dir)
        return report(run.run_dir)

    return train_it


@pytest.fixture(scope="session")
def score_here():
    """Make a prepared run's rows and base scores in this process: it starts no base pass."""
    from trainers.common.base_pass import base_policy, score

    def score_it(lake, run):
        recipe = TrainingRecipe.load(run.run_dir / RECIPE)
        resolved = resolve_model(recipe.model)
        tokenizer = load_tokenizer(resolved)
        rows = build(lake, tokenizer, recipe, run.run_dir / DATA)
        student = base_policy(resolved, recipe, tokenizer)
        score(student, recipe.resolved(rows.counts()), rows, run.run_dir)

    return score_it


@pytest.fixture(scope="session")
def toy_base():
    """The base model of the toy task; copy it before training."""
    return toy.base_model()


@pytest.fixture(scope="session")
def toy_data():
    """The toy task's rows."""
    return toy.rows()


@pytest.fixture
def build_trainer(tmp_path):
    """Build a trainer from a model, a tokenizer, a recipe and rows."""

    def build_it(model, tokenizer, recipe, rows, **options):
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        return toy.trainer(folder, model, tokenizer, recipe, rows, **options)

    return build_it


@pytest.fixture
def make(build_trainer, toy_base, toy_data, tiny_tokenizer):
    """Build a trainer on the toy task: ``make(recipe, rows, **options)``."""

    def on_toy(recipe=None, rows=None, **options):
        recipe = recipe or tiny_recipe("toy")
        return build_trainer(toy_base, tiny_tokenizer, recipe, rows or toy_data, **options)

    return on_toy


@pytest.fixture
def make_tiny(build_trainer, tiny_model, tokenizer, data):
    """Build a trainer on the random model with SmolLM2's tokenizer."""
    from trainers.common.policy import load_base

    def on_tiny(recipe=None, rows=None, **options):
        recipe = recipe or tiny_recipe(tiny_model)
        model = load_base(tiny_model, recipe)
        return build_trainer(model, tokenizer, recipe, rows or data, **options)

    return on_tiny


@pytest.fixture(scope="session")
def shake():
    """Give an adapter a value: a fresh one is zero, and so are some gradients."""
    import torch

    def by(trainer, size=0.3):
        torch.manual_seed(5)
        with torch.no_grad():
            for parameter in trainer.policy.parameters():
                parameter.add_(size * torch.randn_like(parameter))

    return by


@pytest.fixture(scope="session")
def tiny_tokenizer():
    """A tokenizer of forty words, for models that are smaller still."""
    return toy.tokenizer()
