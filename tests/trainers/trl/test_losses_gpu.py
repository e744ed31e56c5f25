"""The GPU benchmark without a GPU: its recipes, its table, and what it says."""

import importlib
import sys

import pytest
import torch

from tests.places import ROOT

losses_gpu = importlib.import_module("benchmarks.losses_gpu")


@pytest.mark.parametrize("prompt", [4096, 16384])
def test_its_recipe_is_one_and_holds_its_rows(prompt):
    recipe = losses_gpu._recipe(prompt)
    assert set(recipe.channels.weights()) == {"grpo", "sdpo", "dpo"}
    assert recipe.data.max_prompt_tokens == prompt
    assert recipe.channels.grpo.group_size == losses_gpu.GROUP
    # TRL has the whole group in one batch; ours may hold two sequences at a time, no more.
    longest = prompt + losses_gpu.ANSWER + losses_gpu.HINT
    assert longest <= recipe.micro_batch_tokens <= 2 * longest


def test_a_line_has_both_ways_and_their_ratios():
    ours, theirs = losses_gpu.Found(2.0, 3.0 * 2**30), losses_gpu.Found(5.0, 6.0 * 2**30)
    line = losses_gpu._row("0.5B", 4096, ours, theirs)
    tokens = 8 * (4096 + 128) + 64  # four answers, two sides, the failed action twice, the hint
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == [
        "0.5B", "4096", str(tokens), f"{tokens / 2:.0f}", "3.00", f"{tokens / 5:.0f}", "6.00",
        "2.50", "0.50",
    ]  # fmt: skip


def test_a_way_without_memory_has_no_numbers():
    line = losses_gpu._row("7B", 16384, losses_gpu.Found(1.0, 2.0**30), losses_gpu.Found())
    assert line.count("|") == 10
    assert line.endswith("| out of memory |  |  |  |")


@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure")
def test_without_a_device_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["losses_gpu"])
    assert losses_gpu.main() == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.slow
def test_every_side_trains_on_equal_rows_with_equal_settings():
    sides = {
        way: losses_gpu.measure("tiny", 256, way).ran for way in ("ours", "grpo", "sdpo", "dpo")
    }
    setting = "torch.float32, torch.float32, on"  # activation checkpointing
    assert sides == {
        "ours": {setting: ["1 x 891", "1 x 448 without gradient", "1 x 510"]},
        "grpo": {setting: ["4 x 384"]},
        "sdpo": {setting: ["1 x 384", "1 x 448 without gradient"]},
        "dpo": {setting: ["2 x 384"]},
    }


@pytest.fixture
def model_steps(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("model_steps")


def test_a_models_steps_stand_beside_their_sum(model_steps):
    found = {
        "grpo": losses_gpu.Found(4.0, 8.0 * 2**30),
        "sdpo": losses_gpu.Found(2.0, 6.0 * 2**30),
        "dpo": losses_gpu.Found(2.0, 0.0),
        "ours": losses_gpu.Found(2.0, 7.0 * 2**30),
    }
    lines = model_steps.rows_of(1024, found)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    each = 1024 + 128
    assert cells == [
        ["1,024", "TRL: GRPO", f"{4 * each:,}", "4.000", f"{each:,}", "8.00", "0.50"],
        ["1,024", "TRL: SDPO", f"{2 * each + 64:,}", "2.000", f"{each + 32:,}", "6.00", "0.25"],
        ["1,024", "TRL: DPO", f"{2 * each:,}", "2.000", f"{each:,}", "", "0.25"],
        ["1,024", "TRL: all three", f"{8 * each + 64:,}", "8.000", f"{each + 8:,}", "8.00", "1.00"],
        ["1,024", "composer", f"{8 * each + 64:,}", "2.000", f"{4 * each + 32:,}", "7.00", "0.25"],
    ]


def test_a_step_without_memory_leaves_no_sum(model_steps):
    found = {way: losses_gpu.Found(1.0, 2.0**30) for way in ("grpo", "sdpo", "ours")}
    lines = model_steps.rows_of(4096, {**found, "dpo": losses_gpu.Found()})
    assert [line.count("out of memory") for line in lines] == [0, 0, 1, 1, 0]
    assert lines[-1].endswith("| 1.00 |  |")


def test_a_users_model_has_adapters_whatever_its_layers_are_called():
    assert losses_gpu._recipe(64, "/models/own").lora.targets == "all-linear"
    assert losses_gpu._recipe(64).lora.targets == ("q_proj", "v_proj")
