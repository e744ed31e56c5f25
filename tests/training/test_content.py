"""What a name in a recipe holds: other weights under it are another run."""

import importlib.metadata
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.testing.training import write_dataset
from composer_pipeline.training import registry
from composer_pipeline.training import run as run_module
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import adapter_content, file_digest, model_content, prepare


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPOSER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def read(monkeypatch):
    """The files whose bytes were read."""
    seen: list[str] = []
    real = run_module._digest

    def reading(path):
        seen.append(path.name)
        return real(path)

    monkeypatch.setattr(run_module, "_digest", reading)
    return seen


def write_model(folder: Path, weights: bytes = b"one") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "chat_template.jinja": b"a"}
    for name, data in {**files, "model.safetensors": weights}.items():
        (folder / name).write_bytes(data)
    return folder


def recipe(model: Path | str, **more) -> TrainingRecipe:
    return TrainingRecipe(name="x", model=str(model), **more)


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path / "lake")
    write_dataset(lake, rows=2)
    return lake


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "chat_template.jinja"])
def test_other_bytes_in_the_same_folder_are_another_run(lake, tmp_path, file):
    model = write_model(tmp_path / "model")
    runs = tmp_path / "runs"
    before = prepare(lake, recipe(model), runs).run_dir
    assert prepare(lake, recipe(model), runs).run_dir == before
    (model / "README.md").write_text("a card says nothing about weights")
    assert prepare(lake, recipe(model), runs).run_dir == before
    old = (model / file).stat()
    (model / file).write_bytes(b"x" * old.st_size)
    os.utime(model / file, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert prepare(lake, recipe(model), runs).run_dir != before


def test_another_library_version_is_another_run(lake, tmp_path, monkeypatch):
    model = write_model(tmp_path / "model")
    before = prepare(lake, recipe(model), tmp_path / "runs").run_dir
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda m: "0.0.1" if m == "trl" else real(m))
    assert prepare(lake, recipe(model), tmp_path / "runs").run_dir != before
    assert run_module.versions(recipe(model), registry.TRAINERS.get("trl"))["trl"] == "0.0.1"


def test_another_adapter_to_start_from_is_another_run(lake, tmp_path):
    model = write_model(tmp_path / "model")
    run = tmp_path / "runs" / "nightly-1"
    adapter = run / "checkpoint"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(b"one")
    plain = prepare(lake, recipe(model), tmp_path / "runs").run_dir
    first = prepare(lake, recipe(model, start_from=str(run)), tmp_path / "runs").run_dir
    (adapter / "adapter_model.safetensors").write_bytes(b"two")
    second = prepare(lake, recipe(model, start_from=str(run)), tmp_path / "runs").run_dir
    assert len({plain, first, second}) == 3
    assert adapter_content(str(run)).name == "nightly-1"


def test_a_large_file_is_read_once_and_again_when_it_changes(tmp_path, read, monkeypatch):
    monkeypatch.setattr(run_module, "SMALL", 0)
    model = write_model(tmp_path / "model")
    path = model / "model.safetensors"
    monkeypatch.setattr(time, "time", lambda: path.stat().st_mtime + 60)
    first = model_content(str(model)).digest
    assert sorted(read) == sorted(p.name for p in model.iterdir())
    read.clear()
    assert model_content(str(model)).digest == first
    assert read == []
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))  # sooner after the first write than a clock may tell apart
    assert model_content(str(model)).digest != first
    assert read == ["model.safetensors"]


def test_a_file_that_was_just_written_is_not_remembered(tmp_path, read, monkeypatch):
    """A second write within the clock's grain would have the same times."""
    monkeypatch.setattr(run_module, "SMALL", 0)
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"one")
    monkeypatch.setattr(time, "time", lambda: path.stat().st_mtime + 1)
    for _ in range(2):
        file_digest(path)
    assert read == [path.name] * 2


def test_a_folder_is_named_by_its_last_part_and_its_licence_read(tmp_path):
    model = write_model(tmp_path / "private" / "my-model")
    (model / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    found = model_content(str(model))
    assert (found.name, found.kind, found.licence) == ("my-model", "folder", "mit")
    assert str(tmp_path) not in json.dumps(asdict(found))


def test_the_offline_default_is_known_without_converting_it(tmp_path):
    found = model_content("smollm2-135m")
    assert (found.name, found.kind, found.licence) == (
        "smollm2-135m",
        "offline default",
        "apache-2.0",
    )
    assert not list((tmp_path / "cache").rglob("config.json"))


def test_an_adapter_as_model_says_where_it_belongs(tmp_path):
    folder = write_model(tmp_path / "adapter")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"is an adapter; give the model .* start_from"):
        model_content(str(folder))
    with pytest.raises(InputError, match=r"start_from .* holds no adapter"):
        adapter_content(str(write_model(tmp_path / "model")))
    with pytest.raises(InputError, match=r"start_from '\./none': no such folder"):
        adapter_content("./none")


def interpreter(path: Path, does: str) -> str:
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)
    return str(path)


def test_another_interpreter_with_the_same_packages_is_the_same_run(lake, tmp_path):
    found = recipe(write_model(tmp_path / "model"))
    runs = set()
    for name in ("one", "two"):
        python = interpreter(tmp_path / name, f'exec "{sys.executable}" "$@"')
        there = found.model_copy(
            update={"backend": found.backend.model_copy(update={"python": python})}
        )
        runs.add(prepare(lake, there, tmp_path / "runs").run_dir)
    assert len(runs) == 1
    assert prepare(lake, found, tmp_path / "runs").run_dir in runs


def test_versions_are_those_of_the_chosen_interpreter_and_its_path_stays_here(lake, tmp_path):
    found = recipe(write_model(tmp_path / "model"))
    python = interpreter(tmp_path / "python", """echo '{"torch": "0.1", "trl": "0.2"}'""")
    there = found.model_copy(
        update={"backend": found.backend.model_copy(update={"python": python})}
    )
    contents = run_module.contents(there)
    result = run_module.result_of(
        lake, there, contents, dataset_sha="before", rows={"dpo": 1}, metrics={"dpo_active": 1.0}
    )
    assert result["dataset_sha"] == "before"
    assert result["versions"] == {"torch": "0.1", "trl": "0.2"}
    assert str(tmp_path) not in json.dumps(result)
