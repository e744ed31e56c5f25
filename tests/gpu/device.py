"""Where the tests of this folder run: on a CUDA device.

``COMPOSER_GPU_TESTS=cpu`` tries on the CPU what it can, with FlexAttention emulated.
"""

import os

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from composer_pipeline.training.recipe import TrainingRecipe
from tests.trainers.trl import toy

DEVICE = os.environ.get("COMPOSER_GPU_TESTS", "cuda")
CUDA = DEVICE == "cuda"
on_a_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(CUDA and not torch.cuda.is_available(), reason="no CUDA device here"),
]
needs_cuda = pytest.mark.skipif(not CUDA, reason="measures a CUDA device")


def model(*, layers=2, **changes):
    """Return a random Llama in float32, with as many query heads a key head as Qwen2.5-7B."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 448, "intermediate_size": 512, "num_attention_heads": 7,
        "num_key_value_heads": 1, "vocab_size": 1000,
    }  # fmt: skip
    config = LlamaConfig(
        **sizes | changes, num_hidden_layers=layers,
        max_position_embeddings=32768, tie_word_embeddings=True, initializer_range=0.08,
        pad_token_id=4, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def rows(count=4, longest=500 if CUDA else 60):
    """Return rows of all channels; some share the beginning of their prompt."""
    return toy.random_rows(count, longest)


def recipe(**changes):
    """Return a recipe of all four channels with an adapter on every map."""
    fields = {
        "name": "gpu", "model": "toy", "dtype": "bf16", "learning_rate": 1e-3,
        "lora": {"r": 8, "alpha": 16, "targets": "all-linear"},
        "channels": {
            "grpo": {"weight": 0.7, "groups_per_step": 2, "off_policy_threshold": None},
            "sdpo": {"weight": 1.3, "rows_per_step": 2, "hint_gain": False},
            "dpo": {"weight": 0.45, "pairs_per_step": 2},
            "sft": {"weight": 0.3, "rows_per_step": 2},
        },
        "data": {"max_prompt_tokens": 1024, "max_completion_tokens": 64},
        "diloco": {"replicas": 1, "rounds": 1, "inner_steps": 4}, "micro_batch_tokens": 2048,
    }  # fmt: skip
    return TrainingRecipe.model_validate(fields | changes)


def relative(found, wanted):
    """Return |found - wanted| / |wanted| in float64."""
    found, wanted = found.detach().double().cpu(), wanted.detach().double().cpu()
    return float((found - wanted).norm() / wanted.norm())


def compiled_graphs():
    """Return how many graphs Dynamo has compiled in this process."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
