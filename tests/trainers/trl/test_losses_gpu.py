"""The GPU benchmark without a GPU: its recipes, its table, and what it says."""

import importlib
import sys

import pytest
import torch

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
    ours, theirs = {"seconds": 2.0, "peak": 3.0 * 2**30}, {"seconds": 5.0, "peak": 6.0 * 2**30}
    line = losses_gpu._row("0.5B", 4096, ours, theirs)
    tokens = 8 * (4096 + 128) + 64  # four answers, two sides, the failed action twice, the hint
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == [
        "0.5B", "4096", str(tokens), f"{tokens / 2:.0f}", "3.00", f"{tokens / 5:.0f}", "6.00",
        "2.50", "0.50",
    ]  # fmt: skip


def test_a_way_without_memory_has_no_numbers():
    line = losses_gpu._row("7B", 16384, {"seconds": 1.0, "peak": 2.0**30}, {})
    assert line.count("|") == 10
    assert line.endswith("| out of memory |  |  |  |")


@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure")
def test_without_a_device_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["losses_gpu"])
    assert losses_gpu.main() == 2
    assert "no CUDA device" in capsys.readouterr().err
