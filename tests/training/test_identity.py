"""What makes a finished run reusable: recipe, rows, and the code of whichever trainer runs."""

import importlib.metadata
import json
import sys
from pathlib import Path

import pytest

from composer_pipeline import __version__, plugins
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.testing.training import write_dataset
from composer_pipeline.training import run
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import files_of, prepare, train
from trainers.common.outer_log import software

OUTSIDE = '''
from pathlib import Path

from composer_pipeline.training.registry import Carried, Needs

CODE = """
import json, pathlib, sys, yaml
from outside_trainer.inner.rule import ANSWER
folder = pathlib.Path(sys.argv[1])
recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
metrics = {"answer": ANSWER, "dpo_active": 1}
result = dict(recipe=recipe, base={}, dataset_sha="", rows={}, versions={}, fidelity={})
(folder / "composer.json").write_text(json.dumps(result | {"metrics": metrics}))
"""


class Outside:
    name = "outside"

    def carries(self, recipe):
        return {"dpo": Carried()}

    def needs(self, recipe):
        return Needs()

    def command(self, python, recipe, lake, run_dir):
        package = Path(__file__).parents[1]
        start = f"import sys; sys.path.insert(0, {str(package)!r}); exec({CODE!r})"
        return [python, "-c", start, str(run_dir)]

    def code(self):
        return [Path(__file__).parent]
'''
WEIGHTS = {name: {"weight": 0} for name in ("grpo", "sdpo", "sft")}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed third-party trainer whose rule lies in a sub-folder."""
    # Python takes a file of the same size and second for the one it has compiled.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    folder = tmp_path / "site" / "outside_trainer"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text(OUTSIDE)
    (folder / "inner" / "__init__.py").write_text("")
    (folder / "inner" / "rule.py").write_text("ANSWER = 1\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setattr(
        plugins,
        "entry_points",
        lambda *, group: [
            importlib.metadata.EntryPoint("outside", "outside_trainer:Outside", group)
        ],
    )
    yield folder
    for name in [name for name in sys.modules if name.startswith("outside_trainer")]:
        del sys.modules[name]


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path / "lake")
    write_dataset(lake)
    return lake


def recipe(**more):
    one = {"replicas": 1}
    return TrainingRecipe(name="x", trainer="outside", channels=WEIGHTS, diloco=one, **more)


def test_an_outside_trainers_changed_code_trains_again(package, lake, tmp_path):
    first = train(lake, recipe(), tmp_path / "runs")
    assert (first.metrics, first.reused) == ({"answer": 1, "dpo_active": 1}, False)
    assert train(lake, recipe(), tmp_path / "runs").reused
    (package / "inner" / "rule.py").write_text("ANSWER = 2\n")
    second = train(lake, recipe(), tmp_path / "runs")
    assert (second.metrics, second.reused) == ({"answer": 2, "dpo_active": 1}, False)
    assert second.run_dir != first.run_dir
    assert json.loads(json.dumps(second.to_dict()))["metrics"]["answer"] == 2


def test_a_file_that_moves_between_modules_is_other_code(package, lake, tmp_path):
    before = prepare(lake, recipe(), tmp_path / "runs").run_dir
    (package / "inner" / "rule.py").rename(package / "inner" / "law.py")
    assert prepare(lake, recipe(), tmp_path / "runs").run_dir != before


def test_a_trainer_that_names_code_that_is_not_there_is_said(package, lake, tmp_path):
    text = (package / "__init__.py").read_text()
    (package / "__init__.py").write_text(text.replace(".parent]", ".parent / 'gone.py']"))
    with pytest.raises(InputError, match=r"trainer 'outside'.*gone\.py"):
        prepare(lake, recipe(), tmp_path / "runs")


def test_what_replicas_compute_with_is_versions_and_sources(package, monkeypatch):
    """Not how Python or torch was built, nor what an editor or a compiler left beside them."""

    def found() -> dict[str, str]:
        return dict(zip(*[iter(software(recipe()).split())] * 2, strict=True))

    before = found()
    assert before["composer-pipeline"] == __version__
    rule = package / "inner" / "rule.py"
    (package / "inner" / "__pycache__").mkdir()
    (package / "inner" / "__pycache__" / "rule.cpython-311.pyc").write_bytes(b"other")
    (package / "inner" / "rule.py~").write_text("ANSWER = 3")
    rule.write_bytes(rule.read_bytes().replace(b"\n", b"\r\n"))
    assert found() == before
    rule.write_text("ANSWER = 2\n")
    assert differing(before, found()) == ["code"]
    rule.write_text("ANSWER = 1\n")
    assert found() == before
    rule.rename(package / "inner" / "law.py")
    assert differing(before, found()) == ["code"]
    (package / "inner" / "law.py").rename(rule)
    monkeypatch.setattr(run, "LIBRARY", run.LIBRARY[1:])
    assert differing(before, found()) == ["code"], "losses are part of it"


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.13.0+cu130"])
def test_builds_of_one_release_agree(monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    assert software(TrainingRecipe(name="x")).partition(" torch ")[2].split()[0] == "2.13.0"


def test_all_that_a_trl_replica_computes_with_is_named(monkeypatch):
    def none(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", none)
    named = dict(zip(*[iter(software(TrainingRecipe(name="x")).split())] * 2, strict=True))
    assert list(named) == [
        "composer-pipeline", "code", "accelerate", "peft", "torch", "transformers", "trl",
    ]  # fmt: skip
    assert set(list(named.values())[2:]) == {"none"}


def differing(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return [name for name in one if one[name] != other[name]]


def test_the_same_code_in_another_place_is_the_same_code(tmp_path):
    for place in ("a", "b"):
        (tmp_path / place / "pack" / "sub").mkdir(parents=True)
        (tmp_path / place / "pack" / "sub" / "m.py").write_text("1")
    names = [[name for name, _ in files_of([Path(tmp_path / p / "pack")])] for p in ("a", "b")]
    assert names == [["pack/sub/m.py"], ["pack/sub/m.py"]]
