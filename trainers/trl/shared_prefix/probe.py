"""Can this model take a tree? Asked with numbers, at the start of a run.

Belongs here: one small tree beside its sequences, and the sentence that says why not. Does not
belong here: the tree's forward (``trainers.trl.shared_prefix.forward``).

A sliding window, linear attention, positions that are not taken from ``position_ids``, an
attention that reads a mask in its own way: all of them show in the states.
"""

import importlib.util
from typing import Any

import torch

from composer_pipeline.errors import InputError
from composer_pipeline.training.recipe import TrainingRecipe
from trainers.trl.policy.student import Student
from trainers.trl.rows.batches import Row, backbone_and_head
from trainers.trl.shared_prefix.forward import SharedStates, masked_attention
from trainers.trl.shared_prefix.tree import Item, Shared

#: States may differ by this part of their norm: in float32, and in 16 bits.
NEAR, NEAR_HALF = 1e-4, 3e-2
#: Prompt of the probe; longer where the model's attention reaches less far than the run's rows.
PROMPT = 12
#: What a model does that was never asked for a mask of this kind.
REFUSALS = (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError)


def why_not(student: Student, recipe: TrainingRecipe) -> str | None:
    """Return why a run's rows go through separate forwards, or ``None`` where they share.

    Raises:
        InputError: the recipe demands sharing (``shared_prefix: on``) and it is not possible.
    """
    if recipe.shared_prefix == "off":
        return "the recipe says shared_prefix: off"
    reason = _no_flex(student) or _no_mask(student, recipe)
    if reason and recipe.shared_prefix == "on":
        raise InputError(f"recipe field shared_prefix: on, but {reason}; use auto or off")
    return reason


def _no_flex(student: Student) -> str | None:
    config = backbone_and_head(student.model)[0].config
    if torch.device(student.device).type != "cuda" or config._attn_implementation == "eager":
        return None
    missing = [name for name in ("torch.nn.attention.flex_attention", "triton") if not _has(name)]
    if not missing:
        return None
    return (
        f"FlexAttention is missing (no module {missing[0]}): install a CUDA build of torch with"
        " triton, or set attention: eager"
    )


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@torch.no_grad()
def _no_mask(student: Student, recipe: TrainingRecipe) -> str | None:
    model = student.model
    config = backbone_and_head(model)[0].config
    trained = model.training
    model.eval()
    try:
        rows = probe_rows(config, recipe)
        shared = Shared()
        shared.take(Item("", None, rows), 0)
        apart = torch.cat([student.states([row])[0] for row in rows]).float()
        with masked_attention(student):
            together = SharedStates(student, [shared]).states(rows)[0].float()
    except torch.OutOfMemoryError:
        raise
    except REFUSALS as error:
        return f"model {config.model_type} does not take a block mask ({error})"
    finally:
        model.train(trained)
    off = float((together - apart).norm() / apart.norm())
    half = next(model.parameters()).dtype in (torch.bfloat16, torch.float16)
    if not off < (NEAR_HALF if half or recipe.dtype == "bf16" else NEAR):
        return f"the attention of model {config.model_type} does not keep to a block mask"
    return None


def probe_rows(config: Any, recipe: TrainingRecipe) -> list[Row]:
    """Return two answers to one prompt, which reaches further than a window that would bite."""
    longest = recipe.data.max_prompt_tokens + recipe.data.max_completion_tokens
    reach = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    bites = [size for size in reach if isinstance(size, int) and 0 < size < longest]
    prompt = max([PROMPT, *(min(2 * size, longest) for size in bites)])
    words = min(config.vocab_size, 32)
    return [
        Row([(7 * i + 3) % words for i in range(prompt)], [(i * i + k) % words for i in range(5)])
        for k in (1, 2)
    ]
