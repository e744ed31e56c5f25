"""``python -m trainers.trl``: real processes, DiLoCo rounds, resuming, reuse, evaluation."""

import json
import math
import signal
import subprocess

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from composer_pipeline.diloco.replica import read_state
from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.evaluate import evaluate
from composer_pipeline.lake.store import Lake
from composer_pipeline.publishing.model import publish_model
from composer_pipeline.testing.training import tiny_recipe, write_dataset
from composer_pipeline.training.data import pair
from composer_pipeline.training.models import load_tokenizer
from composer_pipeline.training.run import held_out_losses, prepare, read_steps, train
from composer_pipeline.training.windows import Windows
from trainers.trl.__main__ import main

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recipe(tiny_model):
    return tiny_recipe(
        tiny_model, diloco={"replicas": 2, "rounds": 2, "inner_steps": 2, "min_quorum": 2},
        eval_every=1, eval_rows=2, keep_best=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(lake, recipe, tmp_path_factory):
    seen = []
    result = train(
        lake, recipe, tmp_path_factory.mktemp("runs"), progress=lambda *step: seen.append(step)
    )
    return result, seen


def test_two_processes_commit_every_round_and_leave_a_checkpoint(finished):
    result, seen = finished
    assert not result.reused
    assert seen[-1] == ("train", 8, 8)
    metrics = result.metrics
    assert metrics["rounds"] == metrics["rounds_with_all_replicas"] == 2
    assert metrics["dpo_loss_last"] < metrics["dpo_loss_first"] < 0.6932
    assert metrics["dpo_active"] == 2 * 4 * 2
    assert metrics["grpo_active"] > 0
    assert metrics["sdpo_active"] > 0
    composer = json.loads((result.run_dir / "composer.json").read_text())
    assert [c["included"] for c in composer["commits"]] == [[0, 1], [0, 1]]
    assert composer["rows"] == {"grpo": 8, "sdpo": 8, "dpo": 8, "sft": 8}
    assert 0 <= metrics["hints_kept_share"] <= 1
    assert metrics["grpo_best_gain_last"] > metrics["grpo_worst_gain_last"]
    assert metrics["sft_loss_last"] < metrics["sft_loss_first"]
    steps = read_steps(result.run_dir)
    assert set(steps) == {(s, k) for s in (0, 1) for k in (1, 2, 3, 4)}
    for slot in (0, 1):
        assert steps[slot, 1]["dpo_loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert [c["merged"] for c in composer["commits"]] == [True, True]
    assert metrics["rounds_merged"] == 2
    # The gate of publishing finds nothing private in a real checkpoint.
    files = publish_model(result.run_dir, "me/x", dry_run=True, allow_simulated=True).files
    assert {"README.md", "composer.json", "adapter_model.safetensors"} <= set(files)
    modes = {path.stat().st_mode for path in result.checkpoint.iterdir()}
    assert len(modes) == 1, "who may read one file may read all"
    adapter = load_file(result.checkpoint / "adapter_model.safetensors")
    assert any(float(v.abs().max()) > 0 for k, v in adapter.items() if "lora_B" in k)


def test_both_replicas_end_with_the_committed_state(finished):
    result, _ = finished
    shas = {}
    for slot in (0, 1):
        for line in (result.run_dir / "replicas" / f"slot-{slot}.log").read_text().splitlines():
            if line.startswith('{"event": "commit"'):
                event = json.loads(line)
                shas[slot, event["round"]] = event["state_sha"]
    composer = json.loads((result.run_dir / "composer.json").read_text())
    for commit in composer["commits"]:
        assert {shas[slot, commit["round"]] for slot in (0, 1)} == {commit["state_sha"]}


def test_the_checkpoint_is_that_of_the_round_with_the_lowest_held_out_loss(finished):
    result, _ = finished
    losses = held_out_losses(result.run_dir)
    assert sorted(losses) == [1, 2]
    best = min(losses, key=lambda round_: losses[round_])
    assert result.metrics["checkpoint_round"] == best
    assert result.metrics[f"held_out_loss_round_{best}"] == losses[best]
    url = str(result.run_dir / "outer")
    (kept, _), (other, _) = (read_state(url, "run", round_) for round_ in (best, 3 - best))
    adapter = load_file(result.checkpoint / "adapter_model.safetensors")
    assert all(torch.equal(adapter[name.replace(".default", "")], t) for name, t in kept.items())
    assert any(not torch.equal(kept[name], other[name]) for name in kept)


def test_the_same_inputs_are_not_trained_again(finished, lake, recipe, monkeypatch):
    result, _ = finished

    def refuse(*arguments, **options):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    again = train(lake, recipe, result.run_dir.parent)
    assert again.reused
    assert (again.run_dir, again.metrics) == (result.run_dir, result.metrics)
    other = recipe.model_copy(update={"seed": 1})
    assert prepare(lake, other, result.run_dir.parent).run_dir != result.run_dir


def test_evaluation_before_and_after(finished, lake, recipe, tmp_path):
    result, _ = finished
    told = []
    first = evaluate(lake, result.run_dir, progress=lambda *event: told.append(event))
    assert first.states == {"hard_covered": 3}
    assert told[-1] == ("evaluate", 6, 6)
    numbers = first.metrics
    for name in ("exact", "canonical", "valid_call", "preference", "margin", "right_nll",
                 "wrong_nll", "error_logp", "hint_gain"):  # fmt: skip
        assert f"hard_covered_{name}_before" in numbers
        assert f"hard_covered_{name}_after" in numbers
    assert numbers["hard_covered_right_nll_after"] < numbers["hard_covered_right_nll_before"]
    assert numbers["hard_covered_margin_after"] > numbers["hard_covered_margin_before"]
    assert numbers["hard_covered_kl_after"] > 0
    assert not first.reused
    base_nll = pytest.approx(_base_nll(lake, recipe), rel=1e-4)
    assert numbers["hard_covered_right_nll_before"] == base_nll
    again = evaluate(lake, result.run_dir)
    assert again.reused
    assert (again.metrics, again.cells) == (numbers, first.cells)
    assert "| hard_covered | canonical |" in (result.checkpoint / "README.md").read_text()
    shorter = evaluate(lake, result.run_dir, max_new_tokens=2)
    assert not shorter.reused
    only_train = Lake(tmp_path / "lake")
    write_dataset(only_train, rows=2)
    with pytest.raises(InputError, match="split=validation"):
        evaluate(only_train, result.run_dir)
    with pytest.raises(InputError, match="no finished training run"):
        evaluate(lake, tmp_path)


def _base_nll(lake, recipe):
    """The chosen actions' loss a token, as transformers itself computes it; the mean of rows."""
    windows = Windows(load_tokenizer(recipe.model), recipe.data)
    model = AutoModelForCausalLM.from_pretrained(recipe.model, dtype=torch.float32)
    losses = []
    for row in lake.rows("dataset_pairs", split="validation"):
        made = pair(windows, row)
        ids = torch.tensor([[*made.prompt_ids, *made.chosen_ids]])
        labels = ids.clone()
        labels[:, : len(made.prompt_ids)] = -100
        with torch.no_grad():
            losses.append(float(model(input_ids=ids, labels=labels).loss))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("broken", ["no rows", "unknown model", "unknown field"])
def test_bad_input_is_one_sentence_and_exit_code_2(
    broken, lake, recipe, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process's own stays
    run = prepare(lake, recipe, tmp_path)
    command = list(run.command)
    if broken == "no rows":
        command[command.index("--lake") + 1] = str(tmp_path / "empty")
    else:
        path = tmp_path / "recipe.yaml"
        text = "name: x\nmodel: ./nowhere\n" if broken == "unknown model" else "name: x\nfoo: 1\n"
        path.write_text(text)
        command[command.index("--recipe") + 1] = str(path)
    assert main(command[command.index("trainers.trl") + 1 :]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    said = {"no rows": "dataset_groups", "unknown model": "nowhere", "unknown field": "foo"}
    assert said[broken] in err


def test_smollm2_trains_and_learns_the_chosen_actions(lake, tmp_path):
    """The offline default for real: 135M parameters, and held-out rows."""
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


def test_a_nightly_run_goes_on_from_the_last_ones_adapter(finished, lake, recipe, tmp_path):
    result, _ = finished
    short = recipe.diloco.model_copy(update={"replicas": 1, "rounds": 1, "min_quorum": 1})
    nightly = recipe.model_copy(update={"start_from": str(result.run_dir), "diloco": short})
    second = train(lake, nightly, tmp_path, merge=True)
    assert second.merged == second.run_dir / "merged"
    begun, _ = read_state(str(second.run_dir / "outer"), "run", 0)
    earlier, _ = read_state(str(result.run_dir / "outer"), "run")
    assert begun.keys() == earlier.keys()
    for name, tensor in begun.items():
        assert torch.equal(tensor, earlier[name]), name
    composer = json.loads((second.run_dir / "composer.json").read_text())
    assert composer["start_from"]["name"] == result.run_dir.name
    assert str(result.run_dir) not in (second.run_dir / "composer.json").read_text()
    assert (second.run_dir / "merged" / "model.safetensors").is_file()
