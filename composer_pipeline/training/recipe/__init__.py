"""What a training run is: one YAML file, validated before anything starts.

Belongs here: the recipe's fields, defaults and their checks. Does not belong here: running one
(``training.run``).
"""

from composer_pipeline.training.recipe.channels import Channels, Dpo, Grpo, RewardPart, Sdpo, Sft
from composer_pipeline.training.recipe.replicas import DiLoCo, Ranks
from composer_pipeline.training.recipe.whole import Data, TrainingRecipe

__all__ = [
    "Channels",
    "Data",
    "DiLoCo",
    "Dpo",
    "Grpo",
    "Ranks",
    "RewardPart",
    "Sdpo",
    "Sft",
    "TrainingRecipe",
]
