"""The trainer contract: registry, capabilities, and refusing before any work."""

import importlib.metadata
import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from composer_pipeline import plugins
from composer_pipeline.errors import InputError
from composer_pipeline.training import registry
from composer_pipeline.training import registry as contract
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import TRL
from tests.places import ROOT


class Sampled:
    """A trainer that sees only the log-probability of sampled tokens, and one replica."""

    name = "sampled"

    def capabilities(self):
        return contract.Capabilities(channels=("grpo",), diloco=False, modules={})

    def command(self, python, recipe, lake, run_dir):
        return [python, "-c", "pass"]

    def code(self):
        return [Path(__file__)]


class NotATrainer:
    name = "odd"


@pytest.fixture
def registered(monkeypatch):
    def entry_points(*, group):
        return [
            importlib.metadata.EntryPoint("sampled", f"{__name__}:Sampled", group),
            importlib.metadata.EntryPoint("odd", f"{__name__}:NotATrainer", group),
            importlib.metadata.EntryPoint("trl", "a.stale.installation:TRL", group),
        ]

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])


def test_trl_supports_every_channel():
    trainer = registry.validate(TrainingRecipe(name="x"))
    assert isinstance(trainer, contract.Trainer)
    assert set(trainer.capabilities().channels) == {"grpo", "sdpo", "dpo", "sft"}
    command = trainer.command("py", Path("r.yaml"), "lake", Path("d"))
    assert command == [
        "py",
        "-m",
        "trainers",
        "--recipe",
        "r.yaml",
        "--lake",
        "lake",
        "--run-dir",
        "d",
    ]


@pytest.mark.usefixtures("registered")
def test_the_built_in_trainer_needs_no_entry_point_and_yields_to_none():
    assert isinstance(registry.TRAINERS.get("trl"), TRL)


@pytest.mark.usefixtures("registered")
def test_a_channel_that_cannot_be_carried_is_an_error():
    with pytest.raises(InputError, match=r"channels\.sdpo\.weight"):
        registry.validate(TrainingRecipe(name="x", trainer="sampled"))
    only = {name: {"weight": 0} for name in ("sdpo", "dpo", "sft")}
    with pytest.raises(InputError, match=r"diloco\.replicas"):
        registry.validate(TrainingRecipe(name="x", trainer="sampled", channels=only))
    one = TrainingRecipe(name="x", trainer="sampled", channels=only, diloco={"replicas": 1})
    assert registry.validate(one).name == "sampled"


@pytest.mark.usefixtures("registered")
def test_unknown_and_broken_trainers_are_named():
    assert registry.TRAINERS.names() == ["trl", "odd", "sampled"]
    with pytest.raises(
        InputError, match=r"recipe field trainer: no trainer 'nope'; known: odd, sampled, trl"
    ):
        registry.validate(TrainingRecipe(name="x", trainer="nope"))
    with pytest.raises(InputError, match="protocol"):
        registry.TRAINERS.get("odd")


def test_a_reporter_that_is_not_installed_is_named(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda m: None if m == "wandb" else real(m))
    with pytest.raises(InputError, match="recipe field report_to: wandb is not installed"):
        registry.validate(TrainingRecipe(name="x", report_to=("wandb",)))


def test_a_missing_module_names_the_install_line(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install"):
        registry.validate(TrainingRecipe(name="x"))


def test_training_imports_no_heavy_module():
    code = (
        "import sys\n"
        "from composer_pipeline.training import models, recipe, registry, rows\n"
        "from composer_pipeline.training import rewards, run\n"
        "from composer_pipeline.evaluation import evaluate\n"
        "import trainers.__main__\n"
        "bad = {'torch', 'trl', 'transformers', 'datasets', 'peft', 'dagster'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_running_program_may_register_a_trainer_but_take_no_name():
    trainers = replace(registry.TRAINERS, group="none.installed", registered={})
    trainers.register("sampled", Sampled)
    assert isinstance(trainers.get("sampled"), Sampled)
    assert trainers.names() == ["trl", "sampled"]
    with pytest.raises(InputError, match="trainer 'trl' is known already"):
        trainers.register("trl", Sampled)
    with pytest.raises(InputError, match=r"'odd'.*does not implement the protocol Trainer"):
        trainers.register("odd", NotATrainer)  # type: ignore[arg-type]
