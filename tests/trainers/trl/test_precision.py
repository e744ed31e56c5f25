"""Precision and activation checkpointing, by recipe."""

import sys

import pytest
import torch
from transformers import TrainerCallback

from composer_pipeline.diloco.supervisor import EXIT_WOULD_REPEAT
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.testing.training import tiny_recipe
from tests.trainers.trl import toy
from trainers import replica
from trainers.common import base_pass, policy
from trainers.common.policy import load_base
from trainers.common.rows import Row, backbone_and_head
from trainers.common.shared_prefix import SharedStates
from trainers.common.trees import Item, trees_of
from trainers.trl import plan


class Gradient(TrainerCallback):
    """Keeps the gradient of the last step, and whether activations were checkpointed."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.value = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        self.checkpointed = model.is_activation_checkpointing


def gradient(build_trainer, tokenizer, data, recipe):
    found = Gradient()
    model = load_base(recipe.model, recipe)
    build_trainer(model, tokenizer, recipe, data, callbacks=[found]).train()
    assert found.checkpointed == recipe.activation_checkpointing
    return found.value


@pytest.mark.parametrize("lora", [{"r": 4}, {"r": 0}])
def test_checkpointing_leaves_the_gradient_as_it_is(
    build_trainer, tokenizer, data, tiny_model, lora
):
    one = {"lora": lora, "diloco": {"replicas": 1, "rounds": 1, "inner_steps": 1}}
    plain, saved = (
        gradient(
            build_trainer,
            tokenizer,
            data,
            tiny_recipe(tiny_model, activation_checkpointing=on, **one),
        )
        for on in (False, True)
    )
    assert float(plain.norm()) > 0
    assert float((saved - plain).norm() / plain.norm()) <= 1e-6


def test_bf16_keeps_the_adapter_in_fp32_and_trains_it(build_trainer, tokenizer, data, tiny_model):
    recipe = tiny_recipe(tiny_model, dtype="bf16", attention="eager")
    trainer = build_trainer(load_base(tiny_model, recipe), tokenizer, recipe, data)
    assert trainer.policy.model.config._attn_implementation == "eager"
    named = dict(trainer.model.named_parameters())
    before = {n: p.detach().clone() for n, p in named.items() if p.requires_grad}
    assert {p.dtype for n, p in named.items() if n not in before} == {torch.bfloat16}
    assert {p.dtype for p in before.values()} == {torch.float32}
    trainer.train()
    assert any(not torch.equal(named[n], p) for n, p in before.items())


def test_every_weight_under_bf16_stays_in_fp32(build_trainer, tokenizer, data, tiny_model):
    recipe = tiny_recipe(tiny_model, dtype="bf16", lora={"r": 0})
    trainer = build_trainer(load_base(tiny_model, recipe), tokenizer, recipe, data)
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    with trainer.policy._autocast():
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16
        assert torch.is_autocast_enabled("cpu")
    masks = []
    backbone_and_head(trainer.policy.model)[0].register_forward_pre_hook(
        lambda _, __, given: masks.append(given["attention_mask"]), with_kwargs=True
    )
    trainer.training_step(trainer.model, {})
    trees = [mask for mask in masks if mask.ndim == 4]  # of all pairs: what it takes counts
    assert {mask.dtype for mask in trees} == {torch.bfloat16}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("trees", [True, False])
def test_scores_of_all_pairs_are_held_where_the_recipe_says_eager_alone(
    tiny_model, attention, trees
):
    """By rows and by trees, on the way back too: at 16k tokens they are gigabytes a layer."""
    recipe = tiny_recipe(tiny_model, attention=attention)
    plain = policy.Policy(load_base(tiny_model, recipe), pad=0, device="cpu")
    plain.model.get_input_embeddings().requires_grad_(False)  # the largest tensor of a tiny model
    rows = [Row([5] * 200, [6] * 100), Row([5] * 200, [7] * 100)]
    with toy.Largest() as largest:
        shared = SharedStates(plain, trees_of([Item("c", 0, rows)], 1000)) if trees else None
        (shared or plain).states(rows)[0].sum().backward()
        if shared is not None:
            shared.backward(again=False)
    tokens = 398 if trees else 300
    assert (largest.numel >= 4 * tokens**2) == (attention == "eager")


def test_devices_that_cannot_run_a_recipe_are_named_before_the_first_step(monkeypatch):
    half = tiny_recipe("toy", dtype="bf16")
    policy.check_devices(half)  # a CPU can
    monkeypatch.setattr(policy, "devices", lambda: ["an old driver's"])
    with pytest.raises(InputError, match=r"lists 1 device, .* driver is too old") as said:
        policy.load_base("nowhere", half)
    assert "\n" not in str(said.value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    with pytest.raises(InputError, match="dtype: bf16, which Tesla T4 does not compute"):
        policy.check_devices(half)
    policy.check_devices(tiny_recipe("toy"))
    for capability in ((8, 0), (8, 6), (9, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda c=capability: c)
        policy.check_devices(half)
    for version in ("2.10.1", "2.14.0+cu131"):
        monkeypatch.setattr(torch, "__version__", version)
        with pytest.raises(InputError, match=r"torch 2\.1.* install torch==2\.13\.0, or set"):
            policy.check_devices(half)
        policy.check_devices(tiny_recipe("toy", attention="eager"))
    for version in ("2.11.0+cu130", "2.13.0"):
        monkeypatch.setattr(torch, "__version__", version)
        policy.check_devices(half)


FULL = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has 3 MiB free.\nSee the manual."


def full(*_, **__):
    raise torch.OutOfMemoryError(FULL)


@pytest.mark.parametrize("module", [base_pass, replica])
def test_a_device_that_others_fill_ends_a_process_with_a_sentence(
    module, tmp_path, monkeypatch, capsys
):
    """Before the first step, or at its end: a step's own forwards are tried again in halves."""
    argv = [module.__name__, "--run-dir", str(tmp_path), *(["--part=."] * (module is base_pass))]
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(module, "end_with_supervisor", lambda: None)
    monkeypatch.setattr(module, "_run" if module is base_pass else "train", full)
    assert module.main() == (1 if module is base_pass else EXIT_WOULD_REPEAT)
    said = capsys.readouterr().out
    assert said.startswith("error: the ")
    assert "ran out of device memory: stop what else uses the device, or lower" in said
    assert said.endswith("(CUDA out of memory)\n")


def test_a_probe_that_finds_the_device_full_says_so(data, tiny_model, monkeypatch):
    monkeypatch.setattr(base_pass, "base_policy", full)
    with pytest.raises(ComposerError, match=r"^the probe ran out of device memory"):
        plan.probe(tiny_recipe(tiny_model), data, tiny_model)


def test_an_adapter_is_as_the_recipe_says():
    recipe = tiny_recipe("toy", lora={"r": 4, "alpha": 12, "targets": ["q_proj"]})
    made = policy.lora_config(recipe)
    assert (made.r, made.lora_alpha, made.lora_dropout) == (4, 12, 0.0)
    assert set(made.target_modules) == {"q_proj"}
    assert policy.lora_config(tiny_recipe("toy", lora={"r": 0})) is None
