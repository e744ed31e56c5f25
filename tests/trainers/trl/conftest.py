"""A dataset, a tiny model and its windows, built once a session."""

import os

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.testing.training import tiny_recipe, write_dataset, write_tiny_model
from composer_pipeline.training.data import build
from composer_pipeline.training.models import load_tokenizer

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
