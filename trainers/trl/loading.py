"""From a recipe to a model in memory, and to its adapter.

Belongs here: precision, attention and LoRA. Does not belong here: finding the model
(``composer_pipeline.training.models``). Imports no TRL.
"""

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from composer_pipeline.training.recipe import TrainingRecipe


def load_base(resolved: str, recipe: TrainingRecipe) -> Any:
    """Load a resolved model, bare, in float32: the precision in which replicas are compared."""
    return AutoModelForCausalLM.from_pretrained(resolved, dtype=torch.float32)


def lora_config(recipe: TrainingRecipe) -> Any:
    """Return the PEFT configuration of a recipe, or ``None`` for full fine-tuning."""
    if not recipe.lora.r:
        return None
    from peft import LoraConfig

    targets = recipe.lora.targets
    return LoraConfig(
        r=recipe.lora.r,
        lora_alpha=recipe.lora.alpha,
        lora_dropout=0.0,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
