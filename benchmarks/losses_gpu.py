"""The composer's step beside TRL's GRPO, SDPO and DPO trainers on the same rows, on one GPU.

Random weights of real shapes (V = 151,936), bf16, a LoRA adapter; offline. One state: a prompt,
four answers of a group, a pair, and the failed action with its hint. Every side runs through its
trainer's own ``train()``. Beside tokens a second and peak memory stands what each side's first
layer was seen to read, with dtype and checkpointing: where these are unequal, it exits with 1.
Tokens are those of the rows as TRL runs them, for both. TRL's seconds are the sum of its three
steps, its peak the largest of them; DPO's reference is known beforehand on both sides. Without CUDA
it says so and exits 2; ``--small`` runs tiny shapes on the CPU, to see that the script works: its
numbers mean nothing. ``--cpu`` runs a model of SmolLM2-135M's shape with a prompt of 1,024 tokens,
fp32 and CPU seconds, and writes benchmarks/results/three_steps.md. A model's folder in place of a
shape: see ``model_steps``.
"""

import argparse
import gc
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
    "1.5B": (1536, 8960, 28, 12, 2, 151936),
    "7B": (3584, 18944, 28, 28, 4, 151936),
    "135M": (576, 1536, 30, 9, 3, 49152),
    "tiny": (32, 64, 2, 4, 2, 49152),
}
#: Tokens of an answer and a hint, answers of a group, timed steps behind a first one.
ANSWER, HINT, GROUP, STEPS = 128, 64, 4, 2
LORA: dict[str, Any] = {"r": 16, "alpha": 32, "targets": ["q_proj", "v_proj"]}


@dataclass
class Found:
    """What a way's steps took; nothing but ``ran`` where memory ran out.

    ``seconds`` a step, on a CPU its own; ``peak`` bytes of a device; ``ran``: what the first layer
    read in a step, such as ``4 x 1,152``, by what its dtype, weights and checkpointing were.
    """

    seconds: float = 0.0
    peak: float = 0.0
    ran: dict[str, list[str]] = field(default_factory=dict)


def main() -> int:
    """Measure every shape and prompt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--cpu", action="store_true", help="SmolLM2's shape on the CPU")
    parser.add_argument("--shapes", nargs="+", choices=[*SHAPES], default=["0.5B", "7B"])
    parser.add_argument("--prompts", nargs="+", type=int, default=[4096, 16384], help="tokens each")
    parser.add_argument("--record", type=Path, default=RESULT, help="the page")
    options = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    import torch

    torch.set_num_threads(1)
    if not torch.cuda.is_available() and not options.small and not options.cpu:
        print("bench-losses-gpu: no CUDA device here, so nothing was run", file=sys.stderr)
        return 2
    if options.cpu:
        return _on_cpu("135M", 1024)
    cases = [(shape, prompt) for shape in options.shapes for prompt in options.prompts]
    lines, seen, equal = list[str](), list[str](), True
    for shape, prompt in [("tiny", 96)] if options.small else cases:
        ours, theirs = (measure(shape, prompt, way) for way in ("ours", "trl"))
        lines.append(_row(shape, prompt, ours, theirs))
        seen += [
            f"| {shape} | {prompt} | {way} | {', '.join(calls)} | {setting} |"
            for way, found in (("ours", ours), ("TRL", theirs))
            for setting, calls in found.ran.items()
        ]
        equal &= set(ours.ran) == set(theirs.ran) and len(ours.ran) == 1
        print("\n".join([lines[-1], *seen[-2:]]), file=sys.stderr, flush=True)
        if not options.small:  # what is measured is kept, even if the next case is not
            options.record.write_text(_page(lines, seen), encoding="utf-8")
    print(_page(lines, seen))
    if not equal:
        print("bench-losses-gpu: the sides ran with unequal settings", file=sys.stderr)
    return int(not equal)


def _page(lines: list[str], seen: list[str]) -> str:
    return (
        f"# The composer's step beside TRL's trainers, on a GPU\n\n`make bench-losses-gpu`:"
        f" {machine()}.\n\nGRPO, SDPO and DPO of one state, the same rows on both sides: a prompt,"
        f" {GROUP} answers, a pair, a failed action with a hint of {HINT} tokens, {ANSWER} tokens"
        f" an answer. Random weights of the shape of Qwen2.5, LoRA r {LORA['r']} on"
        f" {', '.join(LORA['targets'])}. Through each trainer's `train()`, mean of {STEPS} steps"
        " behind a first one; optimizer included, TRL's seconds are the sum of its three trainers,"
        " its peak the largest.\n\n"
        "| shape | prompt | tokens | ours: tokens/s | peak GiB | TRL: tokens/s | peak GiB |"
        " faster | peak ratio |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|\n" + "\n".join(lines)
        + "\n\nWhat the first layer was seen to read in one step (rows x tokens):\n\n"
        "| shape | prompt | side | forwards | hidden states, weights, checkpointing |\n"
        "|---|--:|---|---|---|\n" + "\n".join(seen) + "\n"
    )  # fmt: skip


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

    ours, theirs = (measure(shape, prompt, way).seconds for way in ("ours", "trl"))
    ratio = ours / theirs
    text = (
        "# The composer's step beside the sum of TRL's three steps, on a CPU\n\n"
        "`make bench-three-steps`: GRPO, SDPO and DPO of one state, the same rows: a prompt of"
        f" {prompt:,} tokens, {GROUP} answers, a pair, a hint, {ANSWER} tokens an answer; random"
        f" weights of SmolLM2-135M's shape, fp32, LoRA, one thread; torch {torch.__version__}, trl"
        f" {trl.__version__}. One step of each trainer's `train()` behind a first one. TRL's are"
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


def _row(shape: str, prompt: int, ours: Found, theirs: Found) -> str:
    """Return a line of the table; a way that ran out of memory has no numbers."""
    tokens = (GROUP + 4) * (prompt + ANSWER) + HINT
    cells = []
    for found in (ours, theirs):
        cells += (
            [f"{tokens / found.seconds:.0f}", f"{found.peak / 2**30:.2f}"]
            if found.seconds
            else ["out of memory", ""]
        )
    both = bool(ours.seconds and theirs.seconds)
    faster = f"{theirs.seconds / ours.seconds:.2f}" if both else ""
    peak = f"{ours.peak / max(theirs.peak, 1):.2f}" if both else ""
    return f"| {shape} | {prompt} | {tokens} | {' | '.join(cells)} | {faster} | {peak} |"


def measure(shape: str, prompt: int, way: str) -> Found:
    """Train each trainer of a way (``ours``, ``trl`` or one of TRL's) on the same rows."""
    import torch

    ids = random.Random(0)
    # A small model of the user's may have fewer tokens than the shapes.
    words = range(1000, 40000) if shape in SHAPES else range(_vocabulary(shape))

    def tokens(n: int) -> list[int]:
        return [ids.choice(words) for _ in range(n)]

    rows = {
        "prompt": tokens(prompt), "hinted": tokens(prompt + HINT), "failed": tokens(ANSWER),
        "chosen": tokens(ANSWER), "answers": [tokens(ANSWER) for _ in range(GROUP)],
    }  # fmt: skip
    theirs = {"grpo": _grpo, "sdpo": _sdpo, "dpo": _dpo}
    ways: dict[str, list[Any]] = {"ours": [_ours], "trl": [*theirs.values()]}
    whole, cuda = Found(), torch.cuda.is_available()
    for make in ways[way] if way in ways else [theirs[way]]:
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(0)
            try:
                with _watched(whole.ran) as callback:
                    trainer = make(shape, rows, Path(folder), callback)
                    trainer.train()
                whole.seconds += callback.seconds / callback.steps
                whole.peak = max(whole.peak, callback.peak)
            except torch.OutOfMemoryError:
                return Found(ran=whole.ran)
            finally:
                trainer = callback = None
                gc.collect()
                if cuda:
                    torch.cuda.empty_cache()
    return whole


@contextmanager
def _watched(ran: dict[str, list[str]]) -> Iterator[Any]:
    """Time the steps behind a first one, and note what the first layer of the last one reads."""
    import torch
    from transformers import TrainerCallback
    from transformers.modeling_layers import GradientCheckpointingLayer

    cuda = torch.cuda.is_available()
    clock = time.perf_counter if cuda else time.process_time
    calls: list[tuple[str, str]] = []

    class Watch(TrainerCallback):  # type: ignore[misc]  # untyped upstream
        seconds, peak, steps, began = 0.0, 0.0, 0, 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            calls.clear()
            if cuda:
                torch.cuda.synchronize()
                if state.global_step == 1:
                    torch.cuda.reset_peak_memory_stats()
            self.began = clock()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if cuda:
                torch.cuda.synchronize()
                self.peak = float(torch.cuda.max_memory_allocated())
            if state.global_step > 1:
                self.seconds, self.steps = self.seconds + clock() - self.began, self.steps + 1

    inner = GradientCheckpointingLayer.__call__

    def seen(layer: Any, hidden: Any, *args: Any, **options: Any) -> Any:
        if layer.self_attn.layer_idx == 0:
            kept = bool(layer.gradient_checkpointing and layer.training)
            setting = (
                f"{hidden.dtype}, {layer.input_layernorm.weight.dtype}, {'on' if kept else 'off'}"
            )
            grad = "" if torch.is_grad_enabled() else " without gradient"
            calls.append((setting, f"{hidden.shape[0]} x {hidden.shape[1]:,}{grad}"))
        return inner(layer, hidden, *args, **options)

    GradientCheckpointingLayer.__call__ = seen
    try:
        yield Watch()
    finally:
        GradientCheckpointingLayer.__call__ = inner
        for setting, call in calls:
            ran.setdefault(setting, []).append(call)


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
        "diloco": {"replicas": 1, "rounds": 1,
                   "inner_steps": STEPS + 1 if torch.cuda.is_available() else 2},
        "activation_checkpointing": True, "micro_batch_tokens": 2 * (prompt + ANSWER + HINT),
    })  # fmt: skip


def _ours(shape: str, rows: dict[str, Any], folder: Path, callback: Any) -> Any:
    """Return a ``ComposerTrainer``, whose first step takes each channel's gradient apart."""
    from composer_pipeline.training.rows import Group, Hint, Pair, TrainingData
    from trainers.common.base_scores import BaseScores
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
    return ComposerTrainer(
        model=_model(shape), recipe=_recipe(len(prompt), shape), data=data, base=base,
        output_dir=folder, tokenizer=_tokenizer(), callbacks=[callback],
    )  # fmt: skip


def _common(folder: Path) -> dict[str, Any]:
    """Return the arguments that TRL's trainers share; those of ``ComposerTrainer`` are alike."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "output_dir": str(folder), "report_to": "none", "disable_tqdm": True, "use_cpu": not cuda,
        "bf16": cuda, "activation_checkpointing": True, "max_steps": STEPS + 1 if cuda else 2,
        "gradient_accumulation_steps": 1, "save_strategy": "no", "learning_rate": 1e-4,
        "activation_checkpointing_kwargs": {"use_reentrant": False},
    }  # fmt: skip


def _lora(shape: str) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=LORA["r"], lora_alpha=LORA["alpha"], target_modules=_targets(shape), task_type="CAUSAL_LM"
    )


def _batch(prompt: list[int], answers: list[list[int]]) -> dict[str, Any]:
    """Return rows without padding, under the keys of TRL's trainers."""
    import torch

    prompts, completions = torch.tensor([prompt] * len(answers)), torch.tensor(answers)
    return {
        "prompt_ids": prompts, "prompt_mask": torch.ones_like(prompts),
        "completion_ids": completions, "completion_mask": torch.ones_like(completions),
    }  # fmt: skip


def _fixed(kind: Any, batch: dict[str, Any], **options: Any) -> Any:
    """Return a trainer of TRL's that trains on one batch instead of what it would sample."""

    class Fixed(kind):  # type: ignore[misc]  # untyped upstream
        def _prepare_inputs(self, _: Any) -> dict[str, Any]:
            return {name: value.to(self.accelerator.device) for name, value in batch.items()}

    return Fixed(reward_funcs=[_no_reward], processing_class=_tokenizer(), **options)


def _grpo(shape: str, rows: dict[str, Any], folder: Path, callback: Any) -> Any:
    """Return TRL's GRPO on the group."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    batch = _batch(rows["prompt"], rows["answers"])
    batch["advantages"] = torch.tensor([1.0, -1.0, 0.5, -0.5])
    batch["num_items_in_batch"] = batch["completion_mask"].sum()
    return _fixed(
        GRPOTrainer, batch, model=_model(shape), callbacks=[callback], peft_config=_lora(shape),
        args=GRPOConfig(**_common(folder), per_device_train_batch_size=GROUP, num_generations=GROUP,
                        max_completion_length=ANSWER),
        train_dataset=Dataset.from_dict({"prompt": ["none"] * GROUP}),
    )  # fmt: skip


def _sdpo(shape: str, rows: dict[str, Any], folder: Path, callback: Any) -> Any:
    """Return TRL's SDPO over the full vocabulary on the failed action."""
    import torch
    from datasets import Dataset
    from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

    taught = torch.tensor([rows["hinted"] + rows["failed"]])
    batch = _batch(rows["prompt"], [rows["failed"]])
    batch |= {"teacher_input_ids": taught, "teacher_attention_mask": torch.ones_like(taught)}
    return _fixed(
        SDPOTrainer, batch, model=_model(shape), callbacks=[callback], peft_config=_lora(shape),
        args=SDPOConfig(**_common(folder), per_device_train_batch_size=2, num_generations=2,
                        distillation_mode="full_logits", distillation_alpha=0.5,
                        teacher_model_kind="base"),
        train_dataset=Dataset.from_dict({"prompt": ["none"] * 2}),
    )  # fmt: skip


def _dpo(shape: str, rows: dict[str, Any], folder: Path, callback: Any) -> Any:
    """Return TRL's DPO on the pair."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    class Tokenised(DPOTrainer):  # type: ignore[misc]  # untyped upstream
        """TRL's trainer on rows that are tokens already."""

        def _prepare_dataset(self, dataset: Any, *args: Any, **options: Any) -> Any:
            return dataset

    return Tokenised(
        model=_model(shape), processing_class=_tokenizer(), peft_config=_lora(shape),
        callbacks=[callback],
        args=DPOConfig(**_common(folder), per_device_train_batch_size=1, max_length=None,
                       precompute_ref_log_probs=True),
        train_dataset=Dataset.from_dict({
            "prompt_ids": [rows["prompt"]], "chosen_ids": [rows["chosen"]],
            "rejected_ids": [rows["failed"]],
        }),
    )  # fmt: skip


def _no_reward(**_: Any) -> list[float]:
    raise AssertionError("nothing is sampled here")


if __name__ == "__main__":
    sys.exit(main())
