"""The trainers, the protocol that they implement, and the check of a recipe before any work."""

import importlib.util
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from composer_pipeline.errors import InputError
from composer_pipeline.plugins import Registry
from composer_pipeline.training.recipe import TrainingRecipe


@dataclass(frozen=True)
class Capabilities:
    """What a trainer can do."""

    #: The channels of the composer loss that it supports.
    channels: Collection[str]
    #: It can run as several replicas.
    diloco: bool
    #: Modules that must be importable, with the command that installs each.
    modules: Mapping[str, str]


@runtime_checkable
class Trainer(Protocol):
    """A training backend, run as a command of its own process."""

    name: str

    def capabilities(self) -> Capabilities:
        """Return what the trainer supports."""
        ...

    def command(self, python: str, recipe: Path, lake: str, run_dir: Path) -> Sequence[str]:
        """Return the command that trains and writes ``composer.json`` into the run folder."""
        ...

    def code(self) -> Sequence[Path]:
        """Return the trainer's own files, and folders whose every ``*.py`` file counts.

        A finished run is reused only while these files are unchanged, so name everything that
        affects the result; modules of ``composer_pipeline`` are counted anyway.
        ``[Path(__file__).parent]`` is right for a trainer that is a package.
        """
        ...


@runtime_checkable
class Merger(Protocol):
    """Optional for a trainer: merge base and adapter of a finished run into one model."""

    def merge_command(self, python: str, run_dir: Path) -> Sequence[str]:
        """Return the command that writes ``merged/`` into a run folder atomically."""
        ...


@runtime_checkable
class Planner(Protocol):
    """Optional for a trainer: report what a run will need before it starts."""

    def plan_command(self, python: str, recipe: Path, lake: str, run_dir: Path) -> Sequence[str]:
        """Return the command that prints one event ``plan`` with the fields of ``PlanReport``.

        The command also accepts ``--probe``, ``--memory-gib N`` and ``--model-config FILE``.
        """
        ...


def repo_root() -> Path:
    """Return the folder that contains ``composer_pipeline`` and ``trainers``."""
    return Path(__file__).resolve().parents[2]


class TRL:
    """TRL: every channel, on CPU or one GPU a replica."""

    name = "trl"

    def capabilities(self) -> Capabilities:
        """Return every channel, with DiLoCo."""
        install = "pip install 'composer-pipeline[train]'"
        return Capabilities(
            channels=("grpo", "sdpo", "dpo", "sft"),
            diloco=True,
            modules=dict.fromkeys(("torch", "trl", "peft", "transformers"), install),
        )

    def command(self, python: str, recipe: Path, lake: str, run_dir: Path) -> Sequence[str]:
        """Return ``python -m trainers --recipe … --lake … --run-dir …``."""
        return _command(python, "trainers", recipe, lake, run_dir)

    def merge_command(self, python: str, run_dir: Path) -> Sequence[str]:
        """Return ``python -m trainers.common.checkpoints --run-dir …``."""
        return [python, "-m", "trainers.common.checkpoints", "--run-dir", str(run_dir)]

    def plan_command(self, python: str, recipe: Path, lake: str, run_dir: Path) -> Sequence[str]:
        """Return ``python -m trainers.trl.plan --recipe … --lake … --run-dir …``."""
        return _command(python, "trainers.trl.plan", recipe, lake, run_dir)

    def code(self) -> Sequence[Path]:
        """Return the folders of the trainer and of what trainers share."""
        return _code("trl")


def _code(own: str) -> list[Path]:
    folder = repo_root() / "trainers"
    return [folder / "__main__.py", folder / "replica.py", folder / "common", folder / own]


def _command(python: str, module: str, recipe: Path, lake: str, run_dir: Path) -> list[str]:
    options = ["--recipe", str(recipe), "--lake", lake, "--run-dir", str(run_dir)]
    return [python, "-m", module, *options]


TRAINERS: Registry[Trainer] = Registry(
    "composer_pipeline.trainers",
    "trainer",
    Trainer,  # type: ignore[type-abstract]  # a protocol to check against
    {TRL.name: TRL},
)


def validate(recipe: TrainingRecipe) -> Trainer:
    """Return the recipe's trainer after checking that it supports the recipe."""
    trainer = TRAINERS.get(recipe.trainer, "recipe field trainer")
    able = trainer.capabilities()
    for channel in recipe.channels.weights():
        if channel not in able.channels:
            carried = ", ".join(able.channels) or "none"
            raise InputError(
                f"recipe field channels.{channel}.weight: trainer {trainer.name!r} does not"
                f" support this channel (it supports: {carried}); set the weight to 0"
            )
    if recipe.diloco.replicas > 1 and not able.diloco:
        raise InputError(
            f"recipe field diloco.replicas: trainer {trainer.name!r} runs only one replica"
        )
    for module, install in able.modules.items():
        if importlib.util.find_spec(module) is None:
            raise InputError(f"trainer {trainer.name!r} needs {module}: {install}")
    for module in recipe.report_to:
        if importlib.util.find_spec(module) is None:
            raise InputError(f"recipe field report_to: {module} is not installed")
    if recipe.attention == "flash_attention_2" and importlib.util.find_spec("flash_attn") is None:
        raise InputError(
            "recipe field attention: 'flash_attention_2' needs the package flash-attn, which is"
            " not installed; use 'sdpa'"
        )
    return trainer
