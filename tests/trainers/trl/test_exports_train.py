"""Each export trains as it is: one step in TRL's trainer of its kind, with every row kept."""

from typing import Any

import pytest
import torch
import trl
from datasets import load_dataset
from transformers import AutoModelForCausalLM

from composer_pipeline.exporting.columns import export

TRAINERS = {
    "dpo": ("DPOConfig", "DPOTrainer"),
    "kto": ("KTOConfig", "KTOTrainer"),
    "sft": ("SFTConfig", "SFTTrainer"),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", TRAINERS)
def test_one_step(form: str, lake: Any, tiny_model: str, tokenizer: Any, tmp_path: Any) -> None:
    report = export(lake, form, tmp_path / form)
    file = str(tmp_path / form / "train.parquet")
    rows = load_dataset("parquet", data_files=file, split="train", cache_dir=str(tmp_path / "c"))
    assert rows.num_rows == report.files[file] > 0
    config, trainer_name = TRAINERS[form]
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    before = model.model.layers[0].self_attn.q_proj.weight.detach().clone()
    options = getattr(trl, config)(
        output_dir=str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=2,
        use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none",
        save_strategy="no", max_length=2048, learning_rate=1e-3, disable_tqdm=True,
    )  # fmt: skip
    trainer = getattr(trl, trainer_name)(
        model=model, args=options, train_dataset=rows, processing_class=tokenizer
    )
    trainer.train()
    assert trainer.train_dataset.num_rows == rows.num_rows
    assert not torch.equal(before, model.model.layers[0].self_attn.q_proj.weight)
