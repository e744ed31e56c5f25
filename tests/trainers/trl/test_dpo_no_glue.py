"""The dataset's Parquet trains in ``trl.DPOTrainer`` without a line of glue."""

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer


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
