"""The dataset's Parquet trains in ``trl.DPOTrainer`` without a line of glue."""

import json
import re
from typing import Any

import pytest
import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer

from composer_pipeline.cli.__main__ import main
from composer_pipeline.lake.store import Lake
from composer_pipeline.testing.training import write_dataset
from tests.places import ROOT

USAGE = (ROOT / "docs" / "usage.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_parquet_to_dpo_trainer(lake, tiny_model, tokenizer, tmp_path):
    file = lake.path("dataset_pairs", split="train")
    dataset = load_dataset("parquet", data_files=file, split="train", cache_dir=str(tmp_path))
    assert dataset.num_rows == 8
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    before = model.model.layers[0].self_attn.q_proj.weight.detach().clone()
    trainer = DPOTrainer(
        model=model,
        args=DPOConfig(
            output_dir=str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=1,
            use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none",
            save_strategy="no", max_length=2048, learning_rate=1e-3, disable_tqdm=True,
        ),
        train_dataset=dataset,
        processing_class=tokenizer,
    )  # fmt: skip
    output = trainer.train()
    assert abs(output.training_loss - 0.6931) < 0.01
    assert not torch.equal(before, model.model.layers[0].self_attn.q_proj.weight)


@pytest.fixture
def long_lake(tmp_path):
    """Rows whose prompts have forty turns, thousands of tokens."""
    lake = Lake(tmp_path / "lake")
    write_dataset(lake, rows=2)
    text = "the price list of the shop is read once and kept for an hour after that\n" * 3
    turns = [
        {"role": "user" if n % 2 else "assistant", "content": f"{n}: {text}"} for n in range(80)
    ]
    rows = [{k: v for k, v in row.items() if k != "split"} for row in lake.rows("dataset_pairs")]
    longer = [{**row, "prompt": [row["prompt"][0], *turns, row["prompt"][-1]]} for row in rows]
    lake.write("dataset_pairs", longer, split="train")
    return lake


@pytest.mark.slow
def test_the_snippet_of_the_usage_page_trains_on_every_row(
    long_lake, tiny_model, tmp_path, capsys, monkeypatch
):
    """Word for word but for the model; TRL's default ``max_length`` of 1,024 filters nothing."""
    monkeypatch.chdir(tmp_path)
    command, snippet = (
        re.findall(pattern, USAGE, re.M | re.S)[0].replace("YOUR_MODEL", tiny_model)
        for pattern in (r"^(composer-pipeline export --format dpo --out pairs .*?)$",
                        r"^```python\n(from datasets import.*?)^```$")
    )  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        main([*command.split()[1:], "--lake", long_lake.url, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert ended.value.code in (0, None)
    assert (report["rows"], report["left_out"]) == (2, {})
    there: dict[str, Any] = {}
    shorter = "max_steps=1, use_cpu=True, per_device_train_batch_size=1"
    exec(snippet.replace("max_steps=10", shorter), there)
    kept = there["trainer"].train_dataset
    assert kept.num_rows == 2
    for row in kept:
        longest = max(len(row["chosen_ids"]), len(row["rejected_ids"]))
        assert 700 < len(row["prompt_ids"]) + longest <= 1024
        assert row["chosen_ids"] != row["rejected_ids"]
