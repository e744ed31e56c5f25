"""Predicted against measured peak memory of training steps, on a CPU.

Run: ``python -m benchmarks.train_memory > benchmarks/results/train_memory.md``; about a quarter
of an hour. Each setting trains two real steps of ``ComposerTrainer`` on SmolLM2-135M
in a process of its own, twice. Measured is the peak resident set (``VmHWM``, reset when the
trainer stands) above the resident set with all libraries loaded and no model; predicted is
``composer_pipeline.training.plan.peak`` for the same rows. *Live* is what tensors hold: measured
with ``MALLOC_MMAP_THRESHOLD_=65536``, where glibc gives every large block back at once. *Resident*
is measured with glibc as it is, which keeps freed blocks; half of the live bytes is predicted for
that, a share that one setting fits and another does not. A device has another allocator.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ALL = "all-linear"
#: name, recipe fields, channels.
SETTINGS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("fp32", {"micro_batch_tokens": 1024}, ("sft",)),
    ("fp32, half the micro-batch", {"micro_batch_tokens": 512}, ("sft",)),
    ("fp32, checkpointing", {"micro_batch_tokens": 1024, "activation_checkpointing": True},
     ("sft",)),
    ("bf16", {"micro_batch_tokens": 1024, "dtype": "bf16"}, ("sft",)),
    ("bf16, checkpointing", {"micro_batch_tokens": 1024, "dtype": "bf16",
                             "activation_checkpointing": True}, ("sft",)),
    ("fp32, all channels, uneven rows", {"micro_batch_tokens": 512},
     ("grpo", "sdpo", "dpo", "sft")),
    ("fp32, every weight, checkpointing", {"micro_batch_tokens": 512, "lora": {"r": 0},
                                           "activation_checkpointing": True}, ("sft",)),
    ("bf16, all channels", {"micro_batch_tokens": 512, "dtype": "bf16"},
     ("grpo", "sdpo", "dpo", "sft")),
    ("fp32, SDPO and DPO, rows apart", {"micro_batch_tokens": 512, "shared_prefix": "off"},
     ("sdpo", "dpo")),
    ("fp32, all channels, checkpointing", {"micro_batch_tokens": 512,
                                           "activation_checkpointing": True},
     ("grpo", "sdpo", "dpo", "sft")),
]  # fmt: skip
STEPS = 2


def memory(key: str) -> int:
    """Return a line of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def rows(channels: tuple[str, ...]) -> Any:
    """Return rows of 256 tokens, for all channels uneven ones, and the base's opinion of them."""
    from composer_pipeline.training.rows import Demonstration, Group, Hint, Pair, TrainingData
    from trainers.common.base_scores import BaseScores

    number = random.Random(0)

    def ids(n: int) -> list[int]:
        return [number.randrange(1000, 40000) for _ in range(n)]

    cut = 30 if len(channels) > 1 else 0
    data = TrainingData(
        groups=[Group("g", ids(200), [ids(56), ids(56 - cut)], [1, 1], [1.0, 0.0], "{}")],
        pairs=[Pair("p", ids(200), ids(56), ids(56 - cut))],
        hints=[Hint("h", ids(200), ids(216), ids(40), 0, 40)],
        demonstrations=[Demonstration(str(i), ids(200 - cut * (i % 2)), ids(56)) for i in range(4)],
    )
    base = {
        "grpo": {"g": [[-1.0] * 56, [-1.0] * (56 - cut)]},
        "dpo": {"p": [[-50.0], [-50.0]]},
        "sdpo": {"h": [[-1.0] * 40, [-40.0], [-40.0], [], []]},
    }
    return data, BaseScores(base)


def measure(number: int, folder: Path) -> dict[str, float]:
    """Train two steps of a setting in this process."""
    import torch
    import trl  # noqa: F401 - loaded before the baseline is taken
    from transformers import AutoConfig, AutoTokenizer

    from composer_pipeline.training.models import resolve_model
    from composer_pipeline.training.plan import ModelShape, peak
    from composer_pipeline.training.recipe import TrainingRecipe
    from trainers.common.policy import load_base
    from trainers.common.rows import loads, windows_of
    from trainers.trl.trainer import ComposerTrainer

    _, fields, channels = SETTINGS[number]
    given = {name: {} if name in channels else {"weight": 0} for name in
             ("grpo", "sdpo", "dpo", "sft")}  # fmt: skip
    if "sft" in channels:
        given["sft"] = {"rows_per_step": 4}
    if "dpo" in channels:
        given["dpo"] = {"pairs_per_step": 1}
    recipe = TrainingRecipe.model_validate(
        {"name": "x", "lora": {"r": 16, "alpha": 32, "targets": ALL}, "channels": given,
         "diloco": {"replicas": 1, "rounds": 1, "inner_steps": STEPS}, **fields}
    )  # fmt: skip
    data, base = rows(channels)
    folder_of_model = resolve_model(recipe.model)
    tokenizer = AutoTokenizer.from_pretrained(folder_of_model)
    AutoConfig.from_pretrained(folder_of_model)
    torch.set_num_threads(1)
    torch.ones(8, requires_grad=True).sum().backward()
    baseline = memory("VmRSS")
    trainer = ComposerTrainer(
        model=load_base(folder_of_model, recipe), recipe=recipe, data=data, base=base,
        output_dir=folder, tokenizer=tokenizer,
    )  # fmt: skip
    Path("/proc/self/clear_refs").write_text("5")
    trainer.train()
    shape = ModelShape.load(Path(folder_of_model))
    predicted = peak(shape, recipe, loads(recipe, windows_of(recipe, data)), device=False)
    return {"measured": memory("VmHWM") - baseline, "predicted": predicted.total,
            "baseline": baseline, **predicted.parts()}  # fmt: skip


def main() -> None:
    """Run every setting twice in a process of its own and print a table."""
    print("# Peak memory of training: predicted against measured\n")
    print(__doc__.split("\n\n", 1)[1].strip(), "\n")
    print("| setting | live: predicted MiB | measured | error | resident: predicted | measured |")
    print("|---|---|---|---|---|---|")
    for number, (name, _, _) in enumerate(SETTINGS):
        live, resident = _run(number, {"MALLOC_MMAP_THRESHOLD_": "65536"}), _run(number, {})
        predicted = live["predicted"] - live["allocator"]
        print(
            f"| {name} | {predicted:.0f} | {live['measured']:.0f} |"
            f" {predicted / live['measured'] - 1:+.1%} | {resident['predicted']:.0f} |"
            f" {resident['measured']:.0f} |",
            flush=True,
        )
    print(f"\nLibraries alone: {resident['baseline']:.0f} MiB of resident memory.")


def _run(number: int, changes: dict[str, str]) -> dict[str, float]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
           "TRL_EXPERIMENTAL_SILENCE": "1", **changes}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "benchmarks.train_memory", str(number), folder]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return {k: v / 2**20 for k, v in json.loads(done.stdout.splitlines()[-1]).items()}


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(int(sys.argv[1]), Path(sys.argv[2]))))
    else:
        main()
