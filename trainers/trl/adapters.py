"""Going on from an earlier adapter: ``start_from`` of a recipe.

Belongs here: whether an adapter fits recipe and base, and its weights as the beginning of a
run. Does not belong here: finding its folder (``composer_pipeline.training.models``). Importing
this module loads no torch.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.training.models import ADAPTER_CONFIG, resolve_adapter
from composer_pipeline.training.recipe import TrainingRecipe

#: Options of PEFT that change what an adapter computes, with the value that recipes train.
PLAIN = {
    "peft_type": "LORA", "bias": "none", "use_rslora": False, "use_dora": False,
    "modules_to_save": None, "layers_to_transform": None, "layer_replication": None,
    "rank_pattern": {}, "alpha_pattern": {}, "target_parameters": None,
    "trainable_token_indices": None,
}  # fmt: skip
HEADS = ("lm_head", "embed_out")


def check_start(recipe: TrainingRecipe, base: Mapping[str, str]) -> None:
    """Refuse a ``start_from`` that does not fit the recipe; does nothing without one.

    Args:
        recipe: its ``lora`` must be the adapter's.
        base: the model's content (``training.runs.content``).

    Raises:
        InputError: names the field in which adapter and recipe differ.
    """
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
                f" {fields[option]} says {value!r}; an adapter goes on with its own"
            )
    _check_base(folder, name, base)


def _check_base(folder: Path, name: str, base: Mapping[str, str]) -> None:
    """Compare the base's content where the adapter came out of a run that wrote it down."""
    path = folder / "composer.json"
    known = json.loads(path.read_text(encoding="utf-8")).get("base") if path.is_file() else None
    if known and known["digest"] != base["digest"]:
        raise InputError(
            f"start_from {name!r} was trained on {known['name']} ({known['digest']}); recipe"
            f" field model is {base['name']} ({base['digest']})"
        )


def load_start(model: Any, recipe: TrainingRecipe) -> None:
    """Copy the weights of ``start_from`` into a PEFT model; does nothing without one.

    To be called when the adapter of the recipe exists and nothing has been trained.

    Args:
        model: a ``PeftModel`` with the recipe's adapter ``default``.
        recipe: its ``start_from`` is read.

    Raises:
        InputError: names the first tensor in which adapter and model differ.
    """
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
