"""From a recipe to a model in memory, and to its adapter.

Belongs here: precision, attention and LoRA. Does not belong here: finding the model
(``composer_pipeline.training.models``). Imports no TRL.
"""

import hashlib
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


def base_identity(model: Any, tokenizer: Any, recipe: TrainingRecipe) -> str:
    """Return what the replicas of a run must have in common, as short hashes with names.

    Replicas that merge changes of different weights, or of other prompts, train nothing.

    Args:
        model: the bare base model, as loaded.
        tokenizer: with the chat template that is trained with.
        recipe: but for its name, its paths, and how a machine computes.
    """
    weights = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        weights.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        weights.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    texts = {
        "tokenizer": tokenizer.backend_tokenizer.to_str(),
        "template": str(tokenizer.chat_template),
        "recipe": recipe.agreed(),
    }
    named = {what: hashlib.sha256(text.encode()).hexdigest() for what, text in texts.items()}
    named = {"weights": weights.hexdigest(), **named}
    return " ".join(f"{what} {digest[:16]}" for what, digest in named.items())


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
