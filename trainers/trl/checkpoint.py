"""The result of a run: the last committed state as an ordinary checkpoint.

Belongs here: turning DiLoCo's state into safetensors that ``peft`` or ``transformers``
load. Does not belong here: metrics and the run folder's other files.
"""

import shutil
from pathlib import Path

from composer_pipeline.diloco.callback import adopt
from composer_pipeline.diloco.replica import read_state
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.recipe import TrainingRecipe
from trainers.trl.loading import load_base, lora_config


def write_checkpoint(recipe: TrainingRecipe, url: str, run_id: str, target: Path) -> None:
    """Write the last committed state as a PEFT adapter, or as a whole model without LoRA.

    The folder appears whole or not at all. The tokenizer with its chat template lies beside
    the weights.

    Raises:
        InputError: the state does not fit the recipe's model.
    """
    theta, _ = read_state(url, run_id)
    resolved = resolve_model(recipe.model)
    model = load_base(resolved, recipe)
    if recipe.lora.r:
        from peft import get_peft_model

        model = get_peft_model(model, lora_config(recipe))
    adopt(model, theta)
    scratch = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    model.save_pretrained(str(scratch), safe_serialization=True)
    load_tokenizer(resolved).save_pretrained(str(scratch))
    # PEFT's README is a template about nothing.
    (scratch / "README.md").unlink(missing_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    scratch.replace(target)
