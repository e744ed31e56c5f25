"""The stage: a run folder in, frozen states, results, report and numbers out."""

import dataclasses
import json
import re
import shutil
import sys

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.evaluate import TRAINED, evaluate
from composer_pipeline.evaluation.results import BASE, read_results
from composer_pipeline.evaluation.select_states import select_states
from composer_pipeline.evaluation.states import read_states, row_of, write_states
from composer_pipeline.lake.store import Lake
from composer_pipeline.testing.training import tiny_recipe, write_dataset, write_tiny_model
from composer_pipeline.training.models import load_tokenizer
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rows import build
from composer_pipeline.training.run import write_json, write_recipe
from composer_pipeline.training.windows import Windows


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    lake = Lake(tmp_path_factory.mktemp("lake") / "lake")
    write_dataset(lake)
    write_dataset(lake, rows=12, split="validation")
    return lake


@pytest.fixture(scope="module")
def run(lake, tmp_path_factory):
    """A finished run: its adapter likes the right actions a little more than its base does."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    model = str(write_tiny_model(tmp_path_factory.mktemp("model") / "tiny"))
    recipe = tiny_recipe(model)
    folder.mkdir()
    write_recipe(recipe, folder)
    tokenizer = load_tokenizer(model)
    data = build(lake, tokenizer, recipe, folder / "data")
    torch.manual_seed(0)
    peft = get_peft_model(
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        LoraConfig(r=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"),
    )
    optimizer = torch.optim.AdamW([p for p in peft.parameters() if p.requires_grad], lr=0.02)
    for _ in range(8):
        for row in data.pairs[:2]:
            ids = torch.tensor([[*row.prompt_ids, *row.chosen_ids]])
            labels = ids.clone()
            labels[:, : len(row.prompt_ids)] = -100
            peft(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    peft.save_pretrained(str(folder / "checkpoint"))
    (folder / "checkpoint" / "README.md").unlink()  # PEFT's own
    rest = {"base": {}, "dataset_sha": "", "rows": {}, "versions": {}, "fidelity": {}}
    write_json(folder / "composer.json", {"recipe": {}, **rest, "metrics": {}})
    return folder


@pytest.fixture(scope="module")
def report(lake, run):
    return evaluate(lake, run, max_new_tokens=5)


@pytest.mark.slow
def test_numbers_are_those_of_both_models_by_hand(report, lake, run, windows):
    said = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert said["states"] == {"hard_covered": 12}
    assert (report.sessions, report.dropped) == (12, {})
    windows = Windows(windows.tokenizer, tiny_recipe("x").data)
    found = read_results(run / "evaluation" / "results.parquet")
    assert list(found) == [BASE, TRAINED]
    bare = AutoModelForCausalLM.from_pretrained(
        TrainingRecipe.load(run / "recipe.yaml").model, dtype=torch.float32
    ).eval()
    states = {s.state_id: s for s in read_states(run / "evaluation" / "states.parquet")}
    for result in found[BASE]:
        row = row_of(windows, states[result.state_id])
        ids = torch.tensor([[*row.prompt_ids, *row.wrong_ids]])
        labels = ids.clone()
        labels[:, : len(row.prompt_ids)] = -100
        with torch.no_grad():
            loss = float(bare(input_ids=ids, labels=labels).loss)
        assert result.logp_wrong == pytest.approx(-loss * len(row.wrong_ids), rel=1e-4)
    after, before = (report.metrics[f"hard_covered_right_nll_{w}"] for w in ("after", "before"))
    assert after < before - 0.1
    nll = next(
        c for c in report.cells
        if (c.kind, c.measure, c.arm) == ("hard_covered", "right_nll", TRAINED)
    )  # fmt: skip
    assert nll.claimed
    assert nll.difference.mean == pytest.approx(after - before)


def test_it_is_not_measured_twice(report, lake, run, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("a process was started")

    stage = sys.modules["composer_pipeline.evaluation.evaluate"]
    monkeypatch.setattr(stage, "run_process", refuse)
    again = evaluate(lake, run, max_new_tokens=5)
    assert again.reused
    assert (again.cells, again.metrics, again.states_hash) == (
        report.cells, report.metrics, report.states_hash,
    )  # fmt: skip
    for changed in ({"max_new_tokens": 6}, {"per_kind": 3}, {"tolerance": 0.1}, {"force": True}):
        with pytest.raises(AssertionError, match="a process was started"):
            evaluate(lake, run, **{"max_new_tokens": 5, **changed})  # type: ignore[arg-type]
    assert json.loads((run / "evaluation.json").read_text())["max_new_tokens"] == 5


def test_what_it_leaves_behind(report, run):
    folder = run / "evaluation"
    text = (folder / "report.md").read_text()
    assert "12 hard_covered, of 12 sessions (validation)" in text
    assert "| right_nll |" in text
    assert "Not known whether it is worse than its base on easy states" in text
    assert report.states_hash in text
    drawn = {path.name for path in folder.glob("*.svg")}
    assert "right_nll.svg" in drawn
    assert drawn == set(re.findall(r"\]\((\S+\.svg)\)", text))
    assert report.unknown == ("easy states: there is none", "recovery states: there is none")
    assert not report.worse


def test_states_that_were_trained_on_are_refused(lake, run, tmp_path):
    with pytest.raises(InputError, match="8 of its sessions were trained on"):
        evaluate(lake, run, split="train")
    # A set of one's own, with a training prompt under another name.
    train = select_states(lake, "train")[0]
    write_states(
        tmp_path / "own.parquet", [dataclasses.replace(train, state_id="new", session_id="new")]
    )
    with pytest.raises(InputError, match="prompts of 1 of its states"):
        evaluate(lake, run, states=tmp_path / "own.parquet")
    # A dataset that was split differently when the run was trained.
    other = Lake(tmp_path / "lake")
    for table in ("dataset_pairs", "dataset_groups", "dataset_hints"):
        rows = lake.read(table, split="train").drop_columns(["split"])
        other.write(table, rows.slice(3), split="validation")
        other.write(table, rows.slice(0, 0), split="train")
    with pytest.raises(InputError, match=r"was trained on 5 of its states \(train-3, …\)"):
        evaluate(other, run)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"per_kind": 0}, "per_kind must be at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"tolerance": 1.0}, "tolerance must be in"),
        ({"split": "elsewhere"}, "no state with split=elsewhere"),
        ({"states": "nowhere.parquet"}, "nowhere.parquet cannot be read"),
    ],
)
def test_bad_options_are_one_sentence(lake, run, options, said):
    with pytest.raises(InputError, match=said):
        evaluate(lake, run, **options)


def test_a_run_that_is_not_finished_is_refused(lake, tmp_path):
    with pytest.raises(InputError, match="no finished training run"):
        evaluate(lake, tmp_path)


def test_a_failing_worker_says_why_and_leaves_no_numbers(lake, run, tmp_path):
    broken = shutil.copytree(run, tmp_path / "broken")
    (broken / "evaluation.json").unlink(missing_ok=True)
    recipe = tiny_recipe("x").model_copy(update={"model": str(tmp_path / "none")})
    write_recipe(recipe, broken)
    with pytest.raises(InputError, match="no such folder"):
        evaluate(lake, broken)
    assert not (broken / "evaluation.json").exists()
