"""Going on from an earlier adapter: what fits, and one sentence for what does not."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from peft import get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file, save_file

from composer_pipeline.errors import InputError
from composer_pipeline.testing.training import tiny_recipe, write_tiny_model
from composer_pipeline.training.run import model_content
from trainers.common.adapters import check_start, load_start
from trainers.common.policy import load_base, lora_config


@pytest.fixture
def adapter(tiny_model, tmp_path):
    model = get_peft_model(
        load_base(tiny_model, tiny_recipe(tiny_model)), lora_config(tiny_recipe(tiny_model))
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(str(tmp_path / "adapter"))
    return tmp_path / "adapter"


def base_of(model):
    return asdict(model_content(model))


def change(folder: Path, **fields) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_run_begins_with_the_weights_of_an_earlier_one(tiny_model, adapter):
    recipe = tiny_recipe(tiny_model, start_from=str(adapter))
    check_start(recipe, base_of(tiny_model))
    model = get_peft_model(load_base(tiny_model, tiny_recipe(tiny_model)), lora_config(recipe))
    load_start(model, recipe)
    saved = load_file(adapter / "adapter_model.safetensors")
    own = get_peft_model_state_dict(model)
    assert saved.keys() == own.keys()
    assert any("lora_B" in name for name in saved)
    for name, tensor in saved.items():
        assert torch.equal(own[name], tensor), name
    fresh = get_peft_model(load_base(tiny_model, tiny_recipe(tiny_model)), lora_config(recipe))
    load_start(fresh, tiny_recipe(tiny_model))
    assert not any(v.any() for k, v in get_peft_model_state_dict(fresh).items() if "lora_B" in k)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"r": 4}, "recipe field lora.r is 8"),
        ({"lora_alpha": 5}, "recipe field lora.alpha is 16"),
        ({"target_modules": ["k_proj"]}, "recipe field lora.targets is"),
        ({"target_modules": ["q_proj", "model.lm_head"]}, "an adapter on the head"),
        ({"modules_to_save": ["lm_head"]}, "an adapter on the head"),
        ({"use_dora": True}, "use_dora True: not supported"),
        ({"peft_type": "IA3"}, "peft_type 'IA3': not supported"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
    ],
)
def test_another_kind_of_adapter_names_the_field(tiny_model, adapter, fields, said):
    change(adapter, **fields)
    with pytest.raises(InputError) as error:
        check_start(tiny_recipe(tiny_model, start_from=str(adapter)), base_of(tiny_model))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_an_adapter_of_another_base_is_refused(tiny_model, adapter, tmp_path):
    recipe = tiny_recipe(tiny_model, start_from=str(adapter))
    base = base_of(tiny_model)
    (adapter / "composer.json").write_text(json.dumps({"base": base}))
    check_start(recipe, base)
    with pytest.raises(InputError, match=r"was trained on tiny .*; recipe field model is tiny"):
        check_start(recipe, {**base, "digest": "blake2b:other"})


def test_shapes_that_do_not_fit_name_the_tensor(tiny_model, adapter, tmp_path):
    wide = str(write_tiny_model(tmp_path / "wide", hidden=64))
    recipe = tiny_recipe(wide, start_from=str(adapter))
    model = get_peft_model(load_base(wide, recipe), lora_config(recipe))
    with pytest.raises(InputError, match=r"lora_A.* is \(8, 32\) in the adapter and \(8, 64\) her"):
        load_start(model, recipe)
    weights = load_file(adapter / "adapter_model.safetensors")
    weights.pop(min(weights))
    save_file(weights, adapter / "adapter_model.safetensors")
    with pytest.raises(InputError, match="only the recipe's model has base_model"):
        load_start(model, recipe)
