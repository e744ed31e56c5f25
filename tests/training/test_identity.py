"""What makes a finished run reusable: recipe, rows, and the code of whichever trainer runs."""

import importlib.metadata
import json
import sys
from pathlib import Path

import pytest

from composer_pipeline import plugins
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.testing.training import write_dataset
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import files_of, prepare, train

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


def test_the_same_code_in_another_place_is_the_same_code(tmp_path):
    for place in ("a", "b"):
        (tmp_path / place / "pack" / "sub").mkdir(parents=True)
        (tmp_path / place / "pack" / "sub" / "m.py").write_text("1")
    names = [[name for name, _ in files_of([Path(tmp_path / p / "pack")])] for p in ("a", "b")]
    assert names == [["pack/sub/m.py"], ["pack/sub/m.py"]]
