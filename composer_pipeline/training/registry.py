"""Which trainers there are, and whether one can carry a recipe.

Belongs here: the registry and the check before any work. Does not belong here: the contract
(``training.trainer``).
"""

import importlib.util

from composer_pipeline.errors import InputError
from composer_pipeline.plugins import Registry
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.trainer import Trainer
from composer_pipeline.training.trl_backend import TRL

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
    for module in recipe.report_to:
        if importlib.util.find_spec(module) is None:
            raise InputError(f"recipe field report_to: {module} is not installed")
    if recipe.attention == "flash_attention_2" and importlib.util.find_spec("flash_attn") is None:
        raise InputError(
            "recipe field attention: 'flash_attention_2' needs the package flash-attn, which is"
            " not installed; use 'sdpa'"
        )
    return trainer
