"""A checkpoint on another machine: it loads, it says what it is, and it names no path of ours."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from peft import get_peft_model
from transformers import AutoModelForCausalLM

from composer_pipeline.diloco.codecs import encode_state
from composer_pipeline.diloco.log import Commit, OuterLog
from composer_pipeline.diloco.outer_optimizer import OuterState
from composer_pipeline.errors import InputError, StorageError
from composer_pipeline.testing.training import tiny_recipe
from composer_pipeline.training.model_card import card
from composer_pipeline.training.registry import RECORDED
from composer_pipeline.training.run import (
    CHECKPOINT,
    CONTENTS,
    MERGED,
    RECIPE,
    RESULT,
    model_content,
    write_json,
)
from composer_pipeline.training.run import write_recipe as write_recipe_file
from tests.places import ROOT
from trainers.common.adapters import check_start
from trainers.common.checkpoints import appearing, merge, write_checkpoint
from trainers.common.policy import load_base, lora_config

IDS = [[5, 6, 7, 8, 9, 10]]


def random_adapter(model):
    """Give every adapter weight a value: an untrained one is zero and would prove nothing."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


def result_of(recipe, base):
    public = recipe.model_dump(mode="json") | {"model": base["name"]}
    return {
        "recipe": public, "base": base, "start_from": None, "versions": {"trl": "1"},
        "fidelity": {"grpo": {"fidelity": "surrogate", "why": RECORDED}},
        "dataset_sha": "ab" * 16, "simulated": {"dataset_groups": 8, "dataset_pairs": 0},
        "rows": {"grpo": 7, "sdpo": 8, "dpo": 8}, "seen": {"grpo": 8, "sdpo": 8, "dpo": 8},
        "dropped": {"grpo: zero-variance group": 1},
        "commits": [{"round": 1, "merged": True, "included": [0]}],
        "metrics": {"seconds": 2.0},
    }  # fmt: skip


@pytest.fixture(scope="module")
def run(tiny_model, tmp_path_factory):
    """A finished run: its committed state has values that training would give it."""
    run_dir = tmp_path_factory.mktemp("machine") / "runs" / "tiny-abc"
    run_dir.mkdir(parents=True)
    recipe = tiny_recipe(tiny_model)
    model = random_adapter(get_peft_model(load_base(tiny_model, recipe), lora_config(recipe)))
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    log = OuterLog.open(str(run_dir / "outer"), "run")
    data = bytes(encode_state(OuterState.initial(trained)))
    key, digest = log.put_state(0, data)
    log.try_commit(Commit(0, (), (), "", digest, key, len(data), 0))
    base = asdict(model_content(tiny_model))
    result = result_of(recipe, base)
    write_recipe_file(recipe, run_dir)
    files = {"README.md": card(result), RESULT: json.dumps(result)}
    write_checkpoint(
        recipe, str(run_dir / "outer"), "run", run_dir / CHECKPOINT, base=base, files=files
    )
    write_json(run_dir / RESULT, result)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(IDS)).logits
    return run_dir, logits


LOAD = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
base, adapter = sys.argv[1:]
if base:
    from peft import PeftModel
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
else:
    model = AutoModelForCausalLM.from_pretrained(adapter)
AutoTokenizer.from_pretrained(adapter)
with torch.no_grad():
    logits = model(input_ids=torch.tensor([[5, 6, 7, 8, 9, 10]])).logits
print(json.dumps(logits.double().tolist()))
"""


def logits_elsewhere(base, folder, tmp_path):
    """Load copies in another folder, in a process with another home."""
    (tmp_path / "home").mkdir(exist_ok=True)
    places = [tmp_path / "theirs" / f"copy-{i}" for i in range(2)]
    for source, place in zip((base, folder), places, strict=True):
        if source:
            shutil.copytree(source, place)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("COMPOSER_", "HF_"))}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(places[0]) if base else "", str(places[1])],
        env=env | {"HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path / "home",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return torch.tensor(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_an_adapter_loads_on_another_machine_with_the_same_logits(run, tiny_model, tmp_path):
    run_dir, logits = run
    found = logits_elsewhere(tiny_model, run_dir / CHECKPOINT, tmp_path)
    torch.testing.assert_close(found, logits, atol=1e-6, rtol=1e-5)


def test_the_last_state_of_an_interrupted_run_is_an_adapter_to_start_from(
    run, tiny_model, tmp_path, monkeypatch
):
    """With the lines that the guide gives, from a folder without a result."""
    run_dir, _ = run
    there = tmp_path / "interrupted"
    shutil.copytree(run_dir / "outer", there / "outer")
    shutil.copyfile(run_dir / RECIPE, there / RECIPE)
    write_json(there / CONTENTS, {"model": asdict(model_content(tiny_model))})
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    lines = guide.partition("### After an upgrade")[2].partition("```python")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(lines.replace("build/lake/runs/first-0123456789ab", "interrupted"))
    recipe = tiny_recipe(tiny_model, start_from=str(tmp_path / "last-state"))
    check_start(recipe, asdict(model_content(tiny_model)))
    name = "adapter_model.safetensors"
    assert (tmp_path / "last-state" / name).read_bytes() == (
        run_dir / CHECKPOINT / name
    ).read_bytes()


def test_nothing_of_this_machine_is_in_a_checkpoint(run, tiny_model, tmp_path_factory):
    run_dir, _ = run
    ours = [str(tmp_path_factory.getbasetemp()), str(Path.home()), str(Path(tiny_model).parent)]
    names = {path.name for path in (run_dir / CHECKPOINT).iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md", RESULT} <= names
    for path in (run_dir / CHECKPOINT).rglob("*"):
        data = path.read_bytes()
        assert [place for place in ours if place.encode() in data] == [], path.name
    config = json.loads((run_dir / CHECKPOINT / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == Path(tiny_model).name


def _measured(kind, worse=()):
    """What an evaluation of one measure writes: the base's cell, and the trained model's."""
    before = {"mean": 0.5, "states": 8, "sessions": 4}
    change = {"mean": 0.5, "low": 0.25, "high": 0.75}
    cell = {"kind": kind, "measure": "exact"}
    return {
        "split": "validation", "max_new_tokens": 32, "worse": list(worse), "unknown": [],
        "cells": [
            {**cell, "against": None, "value": before, "difference": None},
            {**cell, "against": "base", "value": {**before, "mean": 1.0}, "difference": change},
        ],
    }  # fmt: skip


def test_the_card_says_what_a_reader_needs(run, tiny_model):
    run_dir, _ = run
    text = (run_dir / CHECKPOINT / "README.md").read_text()
    digest = model_content(tiny_model).digest
    for said in (
        "library_name: peft", digest, "PeftModel.from_pretrained", "`dataset_pairs`", "| 8 | 7 |",
        "1 × grpo: zero-variance group", "ab" * 16, "offline surrogate", "8 of `dataset_groups`",
        "1 of 1 rounds merged", "Not evaluated", "## Licence",
    ):  # fmt: skip
        assert said in text, said
    result = json.loads((run_dir / RESULT).read_text())
    assert (
        "| hard_covered | exact | 0.5000 | 1.0000 | +0.5000 [+0.2500, +0.7500] | 8 (4) |"
        in card(result, _measured("hard_covered"))
    )
    assert "**Worse than its base on easy.**" in card(result, _measured("easy", worse=["easy"]))
    kept = {**result, "metrics": {**result["metrics"], "hints_kept_share": 0.25}}
    kept["fidelity"] = {"grpo": {"fidelity": "exact", "why": ""}}
    kept["recipe"] = {**result["recipe"], "channels": {"grpo": {"source": "sampled"}}}
    assert "25% were trained on" in card(kept)
    assert "offline surrogate" not in card(kept)
    hub = {"kind": "hub", "name": "org/base", "digest": "commit:abc", "licence": ""}
    assert "base_model: org/base" in card({**result, "base": hub})
    assert "channels.safetensors" not in card(result)
    own = {"sdpo": {"teacher": "ema", "divergence": "taid"}}
    said = card({**result, "recipe": {**result["recipe"], "channels": own}})
    assert "`channels.safetensors` holds the averaged teacher and TAID's schedule" in said
    assert "base_model" not in text.split("---")[1], "a local name is no id of the Hub"


@pytest.mark.slow
def test_merged_weights_load_alone_with_the_same_logits(run, tmp_path):
    run_dir, logits = run
    merge(run_dir)
    assert "PeftModel" not in (run_dir / MERGED / "README.md").read_text()
    found = logits_elsewhere("", run_dir / MERGED, tmp_path)
    torch.testing.assert_close(found, logits, atol=1e-5, rtol=1e-4)
    base = AutoModelForCausalLM.from_pretrained(json.loads(_recipe(run_dir))["model"])
    with torch.no_grad():
        plain = base(input_ids=torch.tensor(IDS)).logits
    assert float((plain - logits).abs().max()) > 1e-2, "the adapter must matter"


def _recipe(run_dir):
    import yaml

    return json.dumps(yaml.safe_load((run_dir / RECIPE).read_text()))


def test_a_full_disk_leaves_no_half_folder(small_disk):
    target = small_disk / CHECKPOINT
    target.mkdir()
    (target / "old").write_text("whole")
    model = load_model_large()
    with (
        pytest.raises(StorageError, match="No space left on device"),
        appearing(target) as scratch,
    ):
        model.save_pretrained(str(scratch))
    assert [path.name for path in small_disk.iterdir()] == [CHECKPOINT]
    assert (target / "old").read_text() == "whole"


def load_model_large():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 4096, "hidden_size": 128, "intermediate_size": 128}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=4))


def test_merging_needs_a_finished_run_with_an_adapter(run, tiny_model, tmp_path):
    with pytest.raises(InputError, match="no finished training run"):
        merge(tmp_path)
    recipe = tiny_recipe(tiny_model, lora={"r": 0}, channels={"sdpo": {"weight": 0}})
    write_recipe_file(recipe, tmp_path)
    write_json(tmp_path / RESULT, result_of(recipe, {"name": "tiny"}))
    with pytest.raises(InputError, match="already a whole model"):
        merge(tmp_path)
