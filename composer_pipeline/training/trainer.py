"""The trainer contract: what a training backend says about itself, and finding one.

Belongs here: the protocol, capabilities, the registry (entry points), and the check that a
recipe asks for nothing a trainer cannot carry. Does not belong here: training. Importing
this module loads no torch.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from composer_pipeline.errors import InputError
from composer_pipeline.plugins import Registry
from composer_pipeline.training.recipe import TrainingRecipe

#: ``exact``: the formula itself. ``sampled``: an unbiased estimate from sampled tokens.
Fidelity = Literal["exact", "sampled"]


@dataclass(frozen=True)
class Capabilities:
    """What a trainer can do.

    Attributes:
        channels: the channels of the composer loss that it carries; others it cannot.
        diloco: it can run as several replicas.
        modules: modules that must be importable, with the line that installs them.
    """

    channels: Mapping[str, Fidelity]
    diloco: bool
    modules: Mapping[str, str]


@runtime_checkable
class Trainer(Protocol):
    """A training backend, run as a command of its own process."""

    name: str

    def capabilities(self) -> Capabilities:
        """Say what the trainer can carry."""
        ...

    def command(self, python: str, recipe: Path, lake: str, run_dir: Path) -> Sequence[str]:
        """Return the command that trains; it must write the run folder's contract."""
        ...


class TRL:
    """``python -m trainers.trl``: all three channels exactly, on CPU or one GPU a replica."""

    name = "trl"

    def capabilities(self) -> Capabilities:
        """All three channels exactly, with DiLoCo."""
        install = "pip install 'composer-pipeline[train]'"
        return Capabilities(
            channels={"grpo": "exact", "sdpo": "exact", "dpo": "exact"},
            diloco=True,
            modules=dict.fromkeys(("torch", "trl", "peft", "transformers"), install),
        )

    def command(self, python: str, recipe: Path, lake: str, run_dir: Path) -> Sequence[str]:
        """Return ``python -m trainers.trl --recipe … --lake … --run-dir …``."""
        options = ["--recipe", str(recipe), "--lake", lake, "--run-dir", str(run_dir)]
        return [python, "-m", "trainers.trl", *options]


TRAINERS: Registry[Trainer] = Registry(
    "composer_pipeline.trainers",
    "trainer",
    Trainer,  # type: ignore[type-abstract]  # a protocol to check against
    {TRL.name: TRL},
)


def validate(recipe: TrainingRecipe) -> Trainer:
    """Return the recipe's trainer after checking that it can carry the recipe.

    Raises:
        InputError: a channel has a weight that the trainer cannot carry, replicas that it
            cannot run, or a module it needs is missing.
    """
    trainer = TRAINERS.get(recipe.trainer, "recipe field trainer")
    able = trainer.capabilities()
    for channel in recipe.channels.weights():
        if channel not in able.channels:
            carried = ", ".join(able.channels) or "none"
            raise InputError(
                f"recipe field channels.{channel}.weight: trainer {trainer.name!r} cannot carry"
                f" this channel (it carries: {carried}); set the weight to 0"
            )
    if recipe.diloco.replicas > 1 and not able.diloco:
        raise InputError(
            f"recipe field diloco.replicas: trainer {trainer.name!r} runs only one replica"
        )
    for module, install in able.modules.items():
        if importlib.util.find_spec(module) is None:
            raise InputError(f"trainer {trainer.name!r} needs {module}: {install}")
    return trainer
