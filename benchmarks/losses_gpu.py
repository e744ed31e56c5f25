"""The composer's step beside TRL's GRPO, SDPO and DPO trainers on the same rows, on one GPU.

Random weights of real shapes (V = 151,936), bf16, a LoRA adapter; offline. One state: a prompt,
four answers of a group, a pair, and the failed action with its hint. Prints tokens a second and
peak memory, writes benchmarks/results/losses_gpu.md. Tokens are those of the rows as TRL runs
them, for both. TRL's seconds are the sum of its three steps, its peak the largest of them; DPO's
reference is known beforehand on both sides. Without CUDA it says so and exits 2; ``--small`` runs
tiny shapes on the CPU, to see that the script works: its numbers mean nothing. ``--cpu`` runs a
model of SmolLM2-135M's shape with a prompt of 1,024 tokens on the CPU, in fp32 and CPU seconds, and
writes benchmarks/results/three_steps.md. A model's folder in place of a shape: see
``model_steps``.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parent / "results" / "losses_gpu.md"
ON_CPU = RESULT.with_name("three_steps.md")
#: The composer's step over the sum of TRL's three, on the CPU.
BAR = 0.5
#: hidden, intermediate, layers, heads, key-value heads, vocabulary: those of Qwen2.5 and SmolLM2,
#: and a toy's.
SHAPES = {
    "0.5B": (896, 4864, 24, 14, 2, 151936),
    "7B": (3584, 18944, 28, 28, 4, 151936),
    "135M": (576, 1536, 30, 9, 3, 49152),
    "tiny": (32, 64, 2, 4, 2, 49152),
}
ANSWER, HINT, GROUP, STEPS = 128, 64, 4, 3
LORA = {"r": 16, "alpha": 32, "targets": ["q_proj", "v_proj"]}


def main() -> int:
    """Measure every shape and prompt, each way in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument(
        "--one", nargs=3, metavar=("SHAPE", "PROMPT", "WAY"), help=argparse.SUPPRESS
    )
    parser.add_argument("--cpu", action="store_true", help="SmolLM2's shape on the CPU")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    small = options.small or options.cpu
    if not torch.cuda.is_available() and not small:
        print("bench-losses-gpu: no CUDA device here, so nothing was run", file=sys.stderr)
        return 2
    if options.one:
        shape, prompt, way = options.one
        print(json.dumps(measure(shape, int(prompt), way)))
        return 0
    if options.cpu:
        return _on_cpu("135M", 1024)
    lines = [
        "| shape | prompt | tokens | ours: tokens/s | peak GiB | TRL: tokens/s | peak GiB |"
        " faster | peak ratio |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    cases = (
        [("tiny", 96)] if options.small else [(s, p) for s in ("0.5B", "7B") for p in (4096, 16384)]
    )
    for shape, prompt in cases:
        ours, theirs = (alone(shape, prompt, way, small=options.small) for way in ("ours", "trl"))
        lines.append(_row(shape, prompt, ours, theirs))
        print(lines[-1], file=sys.stderr, flush=True)
    text = "\n".join(lines) + "\n"
    if not options.small:
        head = (
            "# The composer's step beside TRL's trainers, on a GPU\n\n`make bench-losses-gpu`:"
            f" {machine()}.\n\n"
        )
        RESULT.write_text(head + text, encoding="utf-8")
    print(text)
    return 0


def machine() -> str:
    """Return the device with its memory and driver, and the libraries' versions."""
    import torch
    import transformers
    import trl

    device = "CPU, one thread"
    if torch.cuda.is_available():
        query = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        answer = subprocess.run(
            ["nvidia-smi", *query], capture_output=True, text=True, check=False
        ).stdout if shutil.which("nvidia-smi") else ""  # fmt: skip
        device = "; ".join(answer.splitlines()) or torch.cuda.get_device_name()
        device += f", CUDA {torch.version.cuda}"
    return (
        f"{device}, torch {torch.__version__}, trl {trl.__version__}, transformers"
        f" {transformers.__version__}"
    )


def _on_cpu(shape: str, prompt: int) -> int:
    """Compare one step in CPU seconds and write the page; return 1 where the bar is missed."""
    import torch
    import trl

    ours, theirs = (alone(shape, prompt, way, small=True)["seconds"] for way in ("ours", "trl"))
    ratio = ours / theirs
    text = (
        "# The composer's step beside the sum of TRL's three steps, on a CPU\n\n"
        "`make bench-three-steps`: GRPO, SDPO and DPO of one state, the same rows: a prompt of"
        f" {prompt:,} tokens, {GROUP} answers, a pair, a hint, {ANSWER} tokens an answer; random"
        f" weights of SmolLM2-135M's shape, fp32, LoRA, one thread; torch {torch.__version__}, trl"
        f" {trl.__version__}. Forward and backward, behind a first step. TRL's steps are"
        " GRPOTrainer's, SDPOTrainer's and DPOTrainer's, each with its own forwards; ours runs the"
        " prompt once. A step that takes each channel's gradient apart (`norms_every`, one in ten)"
        " costs two more backward passes and is not this one.\n\n"
        "| | CPU s | share | bar |\n|---|--:|--:|--:|\n"
        f"| TRL: GRPO + SDPO + DPO | {theirs:.1f} | 1 | |\n"
        f"| composer | {ours:.1f} | {ratio:.2f} | {BAR} |\n"
    )
    ON_CPU.write_text(text, encoding="utf-8")
    print(text)
    return int(ratio > BAR)


def _row(shape: str, prompt: int, ours: dict[str, float], theirs: dict[str, float]) -> str:
    """Return a line of the table; a way that ran out of memory has no numbers."""
    tokens = (GROUP + 4) * (prompt + ANSWER) + HINT
    cells = []
    for found in (ours, theirs):
        cells += (
            [f"{tokens / found['seconds']:.0f}", f"{found['peak'] / 2**30:.2f}"]
            if found
            else ["out of memory", ""]
        )
    both = bool(ours and theirs)
    faster = f"{theirs['seconds'] / ours['seconds']:.2f}" if both else ""
    peak = f"{ours['peak'] / max(theirs['peak'], 1):.2f}" if both else ""
    return f"| {shape} | {prompt} | {tokens} | {' | '.join(cells)} | {faster} | {peak} |"


def alone(shape: str, prompt: int, way: str, *, small: bool) -> dict[str, float]:
    """Return what :func:`measure` finds in a process of its own; nothing where memory ran out."""
    argv = [sys.executable, "-m", "benchmarks.losses_gpu", *(["--small"] if small else [])]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(
        [*argv, "--one", shape, str(prompt), way], env=env, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if "OutOfMemoryError" in done.stderr or "out of memory" in done.stderr:
        return {}
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(shape: str, prompt: int, way: str) -> dict[str, float]:
    """Return seconds of a step behind a first one, on a CPU its own, and peak bytes (there 0)."""
    import torch

    torch.manual_seed(0)
    ids = random.Random(0)

    # A small model of the user's may have fewer tokens than the shapes.
    words = range(1000, 40000) if shape in SHAPES else range(_vocabulary(shape))

    def tokens(n: int) -> list[int]:
        return [ids.choice(words) for _ in range(n)]

    rows = {
        "prompt": tokens(prompt), "hinted": tokens(prompt + HINT), "failed": tokens(ANSWER),
        "chosen": tokens(ANSWER), "answers": [tokens(ANSWER) for _ in range(GROUP)],
    }  # fmt: skip
    seconds = peak = 0.0
    with tempfile.TemporaryDirectory() as folder:
        theirs = {"grpo": _grpo, "sdpo": _sdpo, "dpo": _dpo}
        ways: dict[str, list[Any]] = {"ours": [_ours], "trl": [*theirs.values()]}
        steps = ways[way] if way in ways else [theirs[way]]
        for make in steps:
            step = make(shape, rows, Path(folder))
            step()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            cuda = torch.cuda.is_available()
            clock, count = (time.perf_counter, STEPS) if cuda else (time.process_time, 1)
            start = clock()
            for _ in range(count):
                step()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
                peak = max(peak, float(torch.cuda.max_memory_allocated()))
            seconds += (clock() - start) / count
            del step
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    return {"seconds": seconds, "peak": peak}


def _vocabulary(folder: str) -> int:
    """Return the rows of a model's embedding."""
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(folder).get_text_config().vocab_size)


def _model(shape: str) -> Any:
    """Return a model of random weights, made where it runs, or the one of a folder."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    if shape not in SHAPES:
        half = torch.bfloat16 if torch.cuda.is_available() else torch.float32
        return AutoModelForCausalLM.from_pretrained(shape, dtype=half)
    hidden, inner, layers, heads, pairs, vocabulary = SHAPES[shape]
    config = Qwen2Config(
        hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=pairs, vocab_size=vocabulary,
        max_position_embeddings=32768, tie_word_embeddings=shape != "7B", pad_token_id=0,
    )  # fmt: skip
    cuda = torch.cuda.is_available()
    with torch.device("cuda" if cuda else "cpu"):
        dtype = torch.bfloat16 if cuda else torch.float32
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def _tokenizer() -> Any:
    """Return a tokenizer that trainers insist on; the rows are ids already."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def _targets(shape: str) -> Any:
    """Return the linear maps with an adapter: of a user's model all, whatever their names."""
    return LORA["targets"] if shape in SHAPES else "all-linear"


def _recipe(prompt: int, shape: str = "0.5B") -> Any:
    """Return the three channels, each with one row a step."""
    import torch

    from composer_pipeline.training.recipe import TrainingRecipe

    return TrainingRecipe.model_validate({
        "name": "bench", "lora": {**LORA, "targets": _targets(shape)},
        "dtype": "bf16" if torch.cuda.is_available() else "fp32",
        "channels": {"grpo": {}, "sdpo": {"hint_gain": False}, "dpo": {"pairs_per_step": 1},
                     "sft": {"weight": 0}},
        "data": {"max_prompt_tokens": prompt, "max_completion_tokens": ANSWER},
        "diloco": {"replicas": 1, "rounds": 1, "inner_steps": STEPS + 1},
        "activation_checkpointing": True, "micro_batch_tokens": 2 * (prompt + ANSWER + HINT),
    })  # fmt: skip


def _ours(shape: str, rows: dict[str, Any], folder: Path) -> Callable[[], None]:
    """Return a step of ``ComposerTrainer``."""
    from composer_pipeline.training.rows import Group, Hint, Pair, TrainingData
    from trainers.trl.base_scores import BaseScores
    from trainers.trl.trainer import ComposerTrainer

    prompt, known = rows["prompt"], [-1.0] * ANSWER
    rewards = [1.0, 0.0, 0.5, 0.25]
    data = TrainingData(
        groups=[Group("g", prompt, rows["answers"], [1] * GROUP, rewards, "{}")],
        pairs=[Pair("p", prompt, rows["chosen"], rows["failed"])],
        hints=[Hint("h", prompt, rows["hinted"], rows["failed"], 0, ANSWER)],
        demonstrations=[],
    )
    base = BaseScores({
        "grpo": {"g": [known] * GROUP}, "dpo": {"p": [[-100.0], [-100.0]]},
        "sdpo": {"h": [known, [-100.0], [-100.0], [], []]},
    })  # fmt: skip
    trainer = ComposerTrainer(
        model=_model(shape),
        recipe=_recipe(len(prompt), shape),
        data=data,
        base=base,
        output_dir=folder,
        tokenizer=_tokenizer(),
    )
    trainer.current_gradient_accumulation_steps = 1

    def step() -> None:
        # The first step of a round, which warms up, takes each channel's gradient apart.
        trainer.training_step(trainer.model, {})
        trainer.state.global_step += 1

    return step


def _common(folder: Path) -> dict[str, Any]:
    """Return the arguments that TRL's trainers share."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "output_dir": str(folder), "report_to": "none", "disable_tqdm": True, "use_cpu": not cuda,
        "bf16": cuda, "activation_checkpointing": True,
    }  # fmt: skip


def _lora(shape: str) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=LORA["r"], lora_alpha=LORA["alpha"], target_modules=_targets(shape), task_type="CAUSAL_LM"
    )


def _batch(prompt: list[int], answers: list[list[int]], device: Any) -> dict[str, Any]:
    """Return rows without padding, under the keys of TRL's trainers."""
    import torch

    prompts = torch.tensor([prompt] * len(answers), device=device)
    completions = torch.tensor(answers, device=device)
    return {
        "prompt_ids": prompts, "prompt_mask": torch.ones_like(prompts),
        "completion_ids": completions, "completion_mask": torch.ones_like(completions),
    }  # fmt: skip


def _stepping(trainer: Any, loss_of: Callable[[], Any]) -> Callable[[], None]:
    trainer.model.train()

    def step() -> None:
        trainer.model.zero_grad()
        trainer.accelerator.backward(loss_of())

    return step


def _grpo(shape: str, rows: dict[str, Any], folder: Path) -> Callable[[], None]:
    """Return a step of TRL's GRPO on the group."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    trainer = GRPOTrainer(
        model=_model(shape), reward_funcs=[_no_reward], processing_class=_tokenizer(),
        args=GRPOConfig(**_common(folder), per_device_train_batch_size=GROUP, num_generations=GROUP,
                        max_completion_length=ANSWER),
        train_dataset=Dataset.from_dict({"prompt": ["none"] * GROUP}), peft_config=_lora(shape),
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    batch = _batch(rows["prompt"], rows["answers"], trainer.accelerator.device)
    batch["advantages"] = torch.tensor([1.0, -1.0, 0.5, -0.5]).to(batch["prompt_ids"].device)
    batch["num_items_in_batch"] = batch["completion_mask"].sum()
    return _stepping(trainer, lambda: trainer._compute_loss(trainer.model, batch))


def _sdpo(shape: str, rows: dict[str, Any], folder: Path) -> Callable[[], None]:
    """Return a step of TRL's SDPO over the full vocabulary on the failed action."""
    import torch
    from datasets import Dataset
    from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

    trainer = SDPOTrainer(
        model=_model(shape), reward_funcs=[_no_reward], processing_class=_tokenizer(),
        args=SDPOConfig(**_common(folder), per_device_train_batch_size=2, num_generations=2,
                        distillation_mode="full_logits", distillation_alpha=0.5,
                        teacher_model_kind="base"),
        train_dataset=Dataset.from_dict({"prompt": ["none"] * 2}), peft_config=_lora(shape),
    )  # fmt: skip
    batch = _batch(rows["prompt"], [rows["failed"]], trainer.accelerator.device)
    taught = torch.tensor([rows["hinted"] + rows["failed"]], device=trainer.accelerator.device)
    batch |= {"teacher_input_ids": taught, "teacher_attention_mask": torch.ones_like(taught)}

    def loss() -> Any:
        logits = trainer._compute_teacher_student_logits(
            trainer.model, trainer.teacher_model, batch
        )
        return trainer._compute_self_distillation_loss(trainer.model, batch, logits)

    return _stepping(trainer, loss)


def _dpo(shape: str, rows: dict[str, Any], folder: Path) -> Callable[[], None]:
    """Return a step of TRL's DPO on the pair."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    class Tokenised(DPOTrainer):  # type: ignore[misc]  # untyped upstream
        """TRL's trainer on rows that are tokens already."""

        def _prepare_dataset(self, dataset: Any, *args: Any, **options: Any) -> Any:
            return dataset

    trainer = Tokenised(
        model=_model(shape), processing_class=_tokenizer(), peft_config=_lora(shape),
        args=DPOConfig(**_common(folder), per_device_train_batch_size=1, max_length=None,
                       precompute_ref_log_probs=True),
        train_dataset=Dataset.from_dict({
            "prompt_ids": [rows["prompt"]], "chosen_ids": [rows["chosen"]],
            "rejected_ids": [rows["failed"]],
        }),
    )  # fmt: skip
    (batch,) = list(trainer.get_train_dataloader())
    return _stepping(trainer, lambda: trainer.compute_loss(trainer.model, batch))


def _no_reward(**_: Any) -> list[float]:
    raise AssertionError("nothing is sampled here")


if __name__ == "__main__":
    sys.exit(main())
