"""``start_from`` of a recipe: whether an adapter fits, and its weights. Imports no torch itself."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.training.models import ADAPTER_CONFIG, resolve_adapter
from composer_pipeline.training.recipe import TrainingRecipe

#: PEFT options that change what an adapter computes, with the values that recipes train.
PLAIN = {
    "peft_type": "LORA", "bias": "none", "use_rslora": False, "use_dora": False,
    "modules_to_save": None, "layers_to_transform": None, "layer_replication": None,
    "rank_pattern": {}, "alpha_pattern": {}, "target_parameters": None,
    "trainable_token_indices": None,
}  # fmt: skip
HEADS = ("lm_head", "embed_out")


def check_start(recipe: TrainingRecipe, base: Mapping[str, str]) -> None:
    """Raise ``InputError`` where the adapter of ``start_from`` does not fit recipe or base."""
    if not recipe.start_from:
        return
    folder, name = resolve_adapter(recipe.start_from), recipe.start_from
    config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    targets = config.get("target_modules") or []
    targets = [targets] if isinstance(targets, str) else sorted(targets)
    saved = config.get("modules_to_save") or []
    if any(module.rpartition(".")[2] in HEADS for module in [*targets, *saved]):
        raise InputError(
            f"start_from {name!r} has an adapter on the head, which the losses would not train"
        )
    for option, plain in PLAIN.items():
        if config.get(option, plain) not in (plain, None, []):
            raise InputError(f"start_from {name!r} has {option} {config[option]!r}: not supported")
    lora = recipe.lora
    wanted: dict[str, Any] = {"r": lora.r, "lora_alpha": lora.alpha}
    if not isinstance(lora.targets, str):
        wanted["target_modules"] = sorted(lora.targets)
    fields = {"r": "lora.r", "lora_alpha": "lora.alpha", "target_modules": "lora.targets"}
    found = {**config, "target_modules": targets}
    for option, value in wanted.items():
        if found.get(option) != value:
            raise InputError(
                f"start_from {name!r} has {option} {found.get(option)!r}, recipe field"
                f" {fields[option]} is {value!r}; set it to the adapter's"
            )
    _check_base(folder, name, base)


def _check_base(folder: Path, name: str, base: Mapping[str, str]) -> None:
    """Compare the base model's digest, if the adapter comes from a run of ours."""
    path = folder / "composer.json"
    known = json.loads(path.read_text(encoding="utf-8")).get("base") if path.is_file() else None
    if known and known["digest"] != base["digest"]:
        raise InputError(
            f"start_from {name!r} was trained on {known['name']} ({known['digest']}); recipe"
            f" field model is {base['name']} ({base['digest']})"
        )


def load_start(model: Any, recipe: TrainingRecipe) -> None:
    """Copy the weights of ``start_from`` into a PEFT model whose adapter is untrained."""
    if not recipe.start_from:
        return
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from peft.utils import load_peft_weights

    name = recipe.start_from
    weights = load_peft_weights(str(resolve_adapter(name)), device="cpu")
    own = get_peft_model_state_dict(model)
    if odd := weights.keys() ^ own.keys():
        where = "the adapter" if min(odd) in weights else "the recipe's model"
        raise InputError(
            f"start_from {name!r} does not fit model {recipe.model!r}: only {where} has {min(odd)}"
        )
    for key, tensor in weights.items():
        if tensor.shape != own[key].shape:
            raise InputError(
                f"start_from {name!r} does not fit model {recipe.model!r}: {key} is"
                f" {tuple(tensor.shape)} in the adapter and {tuple(own[key].shape)} here"
            )
    set_peft_model_state_dict(model, weights)
