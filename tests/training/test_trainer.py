"""The trainer contract: registry, capabilities, and refusing before any work."""

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

from composer_pipeline import plugins
from composer_pipeline.errors import InputError
from composer_pipeline.training import registry
from composer_pipeline.training import registry as contract
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import TRL, Carried, Needs, Refused
from tests.places import ROOT
from tests.trainers_page import page


class Options(BaseModel, extra="forbid"):
    clip: float = 0.2


class Sampled:
    """A trainer that sees only the log-probability of sampled tokens, and one replica."""

    name = "sampled"
    requirements: tuple[str, ...] = ()

    def carries(self, recipe: TrainingRecipe) -> dict[str, Carried | Refused]:
        refused = Refused("it sees no other token than the sampled one")
        found: dict[str, Carried | Refused] = dict.fromkeys(recipe.channels.weights(), refused)
        return found | {"grpo": Carried("sampled", "one token a position")}

    def needs(self, recipe: TrainingRecipe) -> Needs:
        reads = ("channels.grpo.groups_per_step", "lora")
        return Needs(self.requirements, "pip install it", reads=reads, options=Options)

    def command(self, python: str, recipe: Path, lake: str, run_dir: Path) -> list[str]:
        return [python, "-c", "pass"]

    def code(self) -> list[Path]:
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
    assert set(trainer.carries(TrainingRecipe(name="x"))) == {"grpo", "sdpo", "dpo", "sft"}
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
    with pytest.raises(InputError, match=r"channels\.sdpo\.weight: .*sees no other token"):
        registry.validate(TrainingRecipe(name="x", trainer="sampled", **ACCEPT))
    with pytest.raises(InputError, match=r"diloco\.replicas"):
        registry.validate(sampled(diloco={"replicas": 2}))
    assert registry.validate(sampled()).name == "sampled"


@pytest.mark.usefixtures("registered")
def test_a_channel_that_a_trainer_leaves_out_is_refused(monkeypatch):
    monkeypatch.setattr(Sampled, "carries", lambda self, recipe: {"dpo": Carried()})
    with pytest.raises(InputError, match=r"channels\.grpo\.weight: .*does not name it"):
        registry.validate(sampled())


WEIGHTS: dict[str, Any] = {name: {"weight": 0} for name in ("sdpo", "dpo", "sft")}
ACCEPT: dict[str, Any] = {"accept": {"grpo": "sampled"}}


def sampled(**changes: Any) -> TrainingRecipe:
    fields = {"channels": WEIGHTS, "diloco": {"replicas": 1}, **ACCEPT, **changes}
    return TrainingRecipe(name="x", trainer="sampled", **fields)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("accept", [{}, {"grpo": "surrogate"}, {"sft": "sampled"}])
def test_a_channel_that_is_not_exact_must_be_accepted_by_name(accept):
    with pytest.raises(InputError, match=r"one token a position; to train so, add grpo: sampled"):
        registry.validate(sampled(accept=accept))


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"learning_rate": 1.0}, "learning_rate"),
        ({"channels": {**WEIGHTS, "grpo": {"source": "sampled"}}}, "channels.grpo.source"),
        (
            {"channels": {**WEIGHTS, "grpo": {"rewards": {"match": 2.0}}}},
            "channels.grpo.rewards.match",
        ),
        ({"diloco": {"replicas": 1, "inner_steps": 3}}, "diloco.inner_steps"),
        ({"report_to": ["wandb"]}, "report_to"),
    ],
)
def test_a_field_that_is_not_read_keeps_its_default(changed, field):
    with pytest.raises(InputError, match=rf"recipe field {field}: .*takes only"):
        registry.validate(sampled(**changed))


@pytest.mark.usefixtures("registered")
def test_fields_that_are_read_or_belong_to_a_channel_that_is_off_may_change():
    off = {"dpo": {"weight": 0, "beta": 2.0}, "sdpo": {"weight": 0}, "sft": {"weight": 0}}
    channels = {**off, "grpo": {"weight": 0.5, "groups_per_step": 3}}
    registry.validate(sampled(channels=channels, lora={"r": 2}))


@pytest.mark.usefixtures("registered")
def test_a_trainers_own_options_are_checked():
    registry.validate(sampled(backend={"options": {"clip": 0.1}}))
    with pytest.raises(InputError, match=r"recipe field backend\.options\.clop: Extra inputs"):
        registry.validate(sampled(backend={"options": {"clop": 0.1}}))
    with pytest.raises(InputError, match=r"backend\.options: trainer 'trl' has none"):
        registry.validate(TrainingRecipe(name="x", backend={"options": {"clip": 0.1}}))


@pytest.mark.usefixtures("registered")
def test_what_the_interpreter_lacks_is_named(monkeypatch, tmp_path):
    here = {"backend": {"python": sys.executable}}
    monkeypatch.setattr(Sampled, "requirements", ("PyYAML>=6",))
    registry.validate(sampled(**here))
    monkeypatch.setattr(Sampled, "requirements", ("pyyaml==0.1",))
    with pytest.raises(InputError, match=r"pyyaml==0\.1 in .*, which has \d.*: pip install it"):
        registry.validate(sampled(**here))
    with pytest.raises(InputError, match=r"pyyaml==0\.1, which has \d"):
        registry.validate(sampled())
    monkeypatch.setattr(Sampled, "requirements", ("no-such-thing",))
    with pytest.raises(InputError, match=r"needs no-such-thing in .*: pip install it"):
        registry.validate(sampled(**here))
    nowhere = str(tmp_path / "python")
    with pytest.raises(InputError, match=r"backend\.python: cannot start .*python"):
        registry.validate(sampled(backend={"python": nowhere}))
    with pytest.raises(InputError, match=r"backend\.python: .*false is no Python interpreter"):
        registry.validate(sampled(backend={"python": shutil.which("false")}))


@pytest.mark.usefixtures("registered")
def test_unknown_and_broken_trainers_are_named():
    assert registry.TRAINERS.names() == ["trl", "verl", "prime-rl", "odd", "sampled"]
    with pytest.raises(
        InputError,
        match=r"recipe field trainer: no trainer 'nope'; known: odd, prime-rl, sampled, trl, verl",
    ):
        registry.validate(TrainingRecipe(name="x", trainer="nope"))
    with pytest.raises(InputError, match="protocol"):
        registry.TRAINERS.get("odd")


def test_a_reporter_that_is_not_installed_is_named(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda m: None if m == "wandb" else real(m))
    with pytest.raises(InputError, match="recipe field report_to: wandb is not installed"):
        registry.validate(TrainingRecipe(name="x", report_to=("wandb",)))


def test_monarch_that_is_not_installed_is_named_with_its_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "monarch", None)
    recipe = TrainingRecipe.model_validate({"name": "x", "diloco": {"place": {"kind": "monarch"}}})
    with pytest.raises(InputError, match=r"field diloco.place: .* pip install torchmonarch==0.7.0"):
        registry.validate(recipe)
    monkeypatch.setitem(sys.modules, "monarch", ModuleType("monarch"))
    sys.modules["monarch"].__spec__ = ModuleSpec("monarch", None)
    registry.validate(recipe)


def test_a_missing_package_names_the_install_line(monkeypatch):
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(InputError, match="pip install"):
        registry.validate(TrainingRecipe(name="x"))


def test_verl_is_asked_for_in_the_version_that_its_environment_gets(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("""#!/bin/sh\necho '{"torch": "2.13.0", "verl": "0.9.0"}'\n""")
    python.chmod(0o755)
    recipe = TrainingRecipe(name="x", trainer="verl", backend={"python": str(python)})
    with pytest.raises(InputError, match=r"verl==0\.9\.1 in .*, which has 0\.9\.0: make"):
        registry.validate(recipe)
    pins = (ROOT / "requirements" / "verl.txt").read_text(encoding="utf-8").splitlines()
    assert {"verl==0.9.1", "torch==2.13.0"} <= set(pins)


@pytest.mark.parametrize(
    ("field", "value"),
    [("optimizer", "muon"), ("shared_prefix", "on"), ("eval_every", 1), ("report_to", ["wandb"])],
)
def test_verl_refuses_what_its_replicas_do_not_do(field: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"recipe field {field}: trainer 'verl' takes only"):
        registry.validate(TrainingRecipe(name="x", trainer="verl", **{field: value}))


def test_the_page_of_trainers_is_as_the_code() -> None:
    assert (ROOT / "docs" / "trainers.md").read_text(encoding="utf-8") == page()


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
    assert trainers.names() == ["trl", "verl", "prime-rl", "sampled"]
    with pytest.raises(InputError, match="trainer 'trl' is known already"):
        trainers.register("trl", Sampled)
    with pytest.raises(InputError, match=r"'odd'.*does not implement the protocol Trainer"):
        trainers.register("odd", NotATrainer)  # type: ignore[arg-type]
