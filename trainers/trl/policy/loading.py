"""From a recipe to a model in memory, and to its adapter.

Belongs here: precision, attention and LoRA. Does not belong here: finding the model
(``composer_pipeline.training.models``). Imports no TRL.
"""

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from composer_pipeline.training.recipe import TrainingRecipe


def load_base(resolved: str, recipe: TrainingRecipe) -> Any:
    """Load a resolved model, bare.

    ``dtype: bf16`` loads bf16 weights where only an adapter is trained; PEFT keeps the adapter
    in float32. A model whose every parameter is trained stays in float32 and computes under
    autocast: bf16 cannot hold small updates.
    """
    half = recipe.dtype == "bf16" and recipe.lora.r > 0
    return AutoModelForCausalLM.from_pretrained(
        resolved,
        dtype=torch.bfloat16 if half else torch.float32,
        attn_implementation=recipe.attention,
    )


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
