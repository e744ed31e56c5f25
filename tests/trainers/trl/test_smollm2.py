"""The offline default for real: a run of SmolLM2-135M, apart so that another worker takes it."""

import math

import pytest

from composer_pipeline.evaluation.evaluate import evaluate
from composer_pipeline.lake.store import Lake
from composer_pipeline.testing.training import tiny_recipe, write_dataset
from composer_pipeline.training.run import read_steps, train


@pytest.mark.slow
def test_smollm2_trains_and_learns_the_chosen_actions(tmp_path):
    """The offline default for real: 135M parameters, and a held-out row."""
    lake = Lake(tmp_path / "lake")
    write_dataset(lake, rows=3)
    write_dataset(lake, rows=1, split="validation")
    recipe = tiny_recipe(
        "smollm2-135m",
        diloco={"replicas": 1, "rounds": 1, "inner_steps": 2},
        data={"max_prompt_tokens": 160, "max_completion_tokens": 48, "max_tools_tokens": 0},
        micro_batch_tokens=512,
    )
    result = train(lake, recipe, tmp_path)
    assert result.metrics["rounds_with_all_replicas"] == 1
    steps = read_steps(result.run_dir)
    assert steps[0, 1]["dpo_loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert steps[0, 2]["dpo_loss"] < 0.69
    assert result.metrics["sdpo_loss_first"] > 1e-3
    metrics = evaluate(lake, result.run_dir, max_new_tokens=4).metrics
    assert metrics["hard_covered_right_nll_after"] < metrics["hard_covered_right_nll_before"]
