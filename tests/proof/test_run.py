"""The grid's folders: what is kept, what is refused, and the command that users run."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from composer_pipeline.errors import InputError
from composer_pipeline.training.run import train
from examples.proof import run
from examples.proof.arms import ARMS, recipe_of, recipe_of_arm
from examples.proof.toolworld.pipeline import Plan
from examples.proof.train import train_arm

PLAN = Plan(seed=1, count=12, coverage="full")


@pytest.fixture(scope="module")
def proved(tmp_path_factory):
    out = tmp_path_factory.mktemp("proof")
    run.prove(out, ["sft"], [PLAN], steps=2)
    return out


@pytest.mark.slow
def test_finished_arms_are_kept_and_killed_ones_run_again(proved, capsys):
    finished = proved / "runs" / run.name_of(PLAN) / "sft" / "results.parquet"
    before = finished.stat().st_mtime_ns
    killed = finished.parent.with_name("sft-recorded")
    killed.mkdir()
    (killed / "left").touch()
    run.prove(proved, ["sft", "sft-recorded"], [PLAN], steps=2)
    assert finished.stat().st_mtime_ns == before
    assert not (killed / "left").exists()
    assert (killed / "results.parquet").is_file()
    said = capsys.readouterr().out
    assert "sft: kept" in said
    page = (proved / "report.md").read_text()
    assert "SFT on what the agent did (placebo)" in page
    assert "### full coverage, " in page


def test_a_run_of_another_recipe_is_named(proved):
    with pytest.raises(InputError, match="is the run of another recipe"):
        run.prove(proved, ["sft"], [PLAN], steps=3)


def test_an_unknown_arm_is_named(tmp_path, capsys):
    assert run.main(["--out", str(tmp_path), "--arms", "sfd"]) == 2
    assert "no arm 'sfd'; there are sft-recorded, sft" in capsys.readouterr().err


@pytest.mark.slow
def test_an_arm_through_the_trainers_command_is_the_same_model(proved, tmp_path):
    """What the proof trains in its process is what ``composer-pipeline train`` gives."""
    lake = run.dataset(proved / "data" / run.name_of(PLAN), PLAN)
    recipe = recipe_of(
        ARMS["composer"].terms, name="composer", steps=4,
        diloco={"replicas": 1, "inner_steps": 4}, norms_every=4,
    )  # fmt: skip
    here = train_arm(lake, recipe, tmp_path / "here").model.state_dict()
    report = train(lake, recipe, tmp_path / "runs")
    there = AutoModelForCausalLM.from_pretrained(str(report.checkpoint)).state_dict()
    base = AutoModelForCausalLM.from_pretrained(recipe.model, dtype=torch.float32).state_dict()
    assert set(there) == set(here)
    for name, weights in here.items():
        torch.testing.assert_close(there[name], weights, atol=1e-6, rtol=0)
    assert any(not torch.allclose(here[name], base[name], atol=1e-4) for name in base)


def test_replicas_share_the_rows_of_a_step():
    whole = recipe_of_arm("lean", seed=1, steps=60)
    for name in ("diloco-1", "diloco-2", "diloco-4", "diloco-killed"):
        recipe = recipe_of_arm(name, seed=1, steps=60)
        rows = recipe.channels.rows_per_step()
        replicas = recipe.diloco.replicas
        assert {c: n * replicas for c, n in rows.items()} == whole.channels.rows_per_step()
        assert recipe.total_steps == whole.total_steps == 60
        assert recipe.channels.weights() == whole.channels.weights()
        assert recipe.rounds == 6
