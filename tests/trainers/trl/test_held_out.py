"""Held-out rows between rounds, and the checkpoint of the best of them."""

import json
from types import SimpleNamespace

import pytest
import torch

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.testing.training import tiny_recipe, write_dataset
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import HELD_OUT, best_round, held_out_losses
from trainers.__main__ import held_out_recipe, taking
from trainers.common.base_pass import score
from trainers.trl.trainer import HeldOut


@pytest.fixture
def held_out(make, toy_base, toy_data, tmp_path, monkeypatch):
    """A trainer on the toy task, and its held-out rows: here the task's own."""
    from trainers.common.policy import Policy

    recipe = tiny_recipe("toy", eval_every=1, eval_rows=5)
    trainer = make(recipe)
    monkeypatch.setattr(
        "trainers.trl.trainer.TrainingData.load", staticmethod(lambda folder: toy_data)
    )
    once = taking(recipe, dict.fromkeys(("grpo", "sdpo", "dpo", "sft"), 5))
    score(Policy(toy_base, pad=4, device="cpu"), once, toy_data, tmp_path / HELD_OUT)
    return trainer, HeldOut(once, tmp_path, trainer.policy, trainer.trl_loss)


def test_the_numbers_are_the_channels_losses_and_leave_no_trace(held_out, shake, toy_data):
    trainer, measuring = held_out
    untrained = measuring.measure()
    assert untrained["dpo_loss"] == pytest.approx(0.6931, abs=1e-3)
    assert untrained["grpo_best_gain"] == pytest.approx(0, abs=1e-3)
    assert untrained["dpo_active"] == 5
    assert untrained["loss"] == pytest.approx(
        sum(untrained[f"{c.name}_loss"] * c.weight for c in trainer.channels if c.name != "grpo")
    )
    before = [p.detach().clone() for p in trainer.policy.parameters()]
    assert measuring.measure() == untrained
    measuring._limit = 1  # a row at a time
    assert measuring.measure() == pytest.approx(untrained, rel=1e-4, abs=1e-4)
    assert trainer.model.training
    assert all(p.grad is None for p in trainer.policy.parameters())
    shake(trainer, 0.05)
    assert measuring.measure()["sft_loss"] != untrained["sft_loss"]
    assert any(
        not torch.equal(a, b) for a, b in zip(before, trainer.policy.parameters(), strict=True)
    )
    # A look between steps does not change what is trained.
    trainer.training_step(trainer.model, {})
    plain = [p.grad.clone() for p in trainer.policy.parameters()]
    measuring.measure()
    trainer.training_step(trainer.model, {})
    for a, b in zip(plain, trainer.policy.parameters(), strict=True):
        assert torch.equal(a, b.grad)


def test_the_lowest_loss_is_best_and_of_equals_the_earliest(tmp_path):
    assert best_round({1: 0.5, 2: 0.3, 3: 0.4}) == 2
    assert best_round({4: 0.3, 2: 0.3}) == 2
    with pytest.raises(ComposerError, match="keep_best"):
        best_round({})
    lines = [
        {"event": "held_out", "round": 1, "loss": 0.9},
        {"event": "step", "step": 1},
        {"event": "held_out", "round": 1, "loss": 0.8},
        {"event": "held_out", "round": 2, "loss": None},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert held_out_losses(tmp_path) == {1: 0.8}


def test_fields_that_contradict_each_other_are_named():
    with pytest.raises(ValueError, match="keep_best needs eval_every"):
        TrainingRecipe(name="x", keep_best=True)


def test_a_lake_without_held_out_rows_is_said(tmp_path, tokenizer, tiny_model):
    lake = Lake(tmp_path / "lake")
    write_dataset(lake, rows=2)
    with pytest.raises(InputError, match=r"eval_every.*no held-out row \(split=validation\)"):
        held_out_recipe(tiny_recipe(tiny_model, eval_every=1), lake, tmp_path / "run", tokenizer)


def test_a_channel_without_held_out_rows_is_left_out(tmp_path, lake, tokenizer, tiny_model):
    other = Lake(tmp_path / "lake")
    write_dataset(other, rows=4)
    write_dataset(other, rows=3, split="validation")
    recipe = tiny_recipe(tiny_model, eval_every=1, eval_rows=2)
    once = held_out_recipe(recipe, other, tmp_path / "run", tokenizer)
    assert once.channels.rows_per_step() == dict.fromkeys(("grpo", "sdpo", "dpo", "sft"), 2)
    other.write("dataset_hints", [], split="validation")
    once = held_out_recipe(recipe, other, tmp_path / "again", tokenizer)
    assert once.channels.rows_per_step() == dict.fromkeys(("grpo", "dpo", "sft"), 2)
    full = recipe.model_copy(update={"lora": recipe.lora.model_copy(update={"r": 0})})
    once = held_out_recipe(full, other, tmp_path / "full", tokenizer)
    assert "sdpo" not in once.channels.weights()


def test_a_replica_that_begins_again_measures_the_round_it_starts_from(make):
    """The others committed round 1 while this one was loading: it counts from there."""
    seen: list[tuple[str, int]] = []
    steps = iter((1, 2, 3))
    recipe = tiny_recipe("toy", diloco={"replicas": 1, "rounds": 3, "inner_steps": 1}, eval_every=1)
    trainer = make(
        recipe,
        on_event=lambda kind, step, numbers: seen.append((kind, numbers.get("round", step))),
        position=lambda: next(steps),
    )
    trainer.held_out = SimpleNamespace(measure=lambda: {"loss": 1.0})
    trainer.args.max_steps = 2
    trainer.train()
    assert seen == [("held_out", 1), ("step", 2), ("held_out", 2), ("step", 3), ("held_out", 3)]


@pytest.mark.parametrize(("every", "seen"), [(1, [1, 2, 3]), (2, [2, 3]), (5, [3])])
def test_the_last_round_is_measured_whatever_the_interval(make, every, seen):
    rounds = []
    recipe = tiny_recipe(
        "toy", diloco={"replicas": 1, "rounds": 3, "inner_steps": 1}, eval_every=every
    )
    trainer = make(recipe, on_event=lambda kind, _, numbers: rounds.append(numbers["round"]))
    trainer.held_out = SimpleNamespace(measure=lambda: {"loss": 1.0})
    for done in (1, 2, 3):
        trainer._look(done)
    assert rounds == seen


def test_it_is_measured_without_dropout(held_out):
    trainer, measuring = held_out
    modes = []
    for layer in trainer.policy.model.get_base_model().model.layers:
        layer.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    measuring.measure()
    assert modes
    assert not any(modes)
