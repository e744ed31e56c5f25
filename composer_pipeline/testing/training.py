"""A small dataset and a small model, for tests of trainers."""

from pathlib import Path
from typing import Any

from composer_pipeline.lake.store import Lake
from composer_pipeline.training.recipe import TrainingRecipe

READ: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "Read",
        "description": "Read a file.",
        "parameters": {
            "type": "object",
            "properties": {"file_path": {"type": "string", "description": "The file."}},
            "required": ["file_path"],
        },
    },
}
BASH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "Bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}
NAMES = ("alder", "birch", "cedar", "dogwood", "elm", "fir", "ginkgo", "hazel")


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """Return an assistant message with one tool call, in chat form."""
    function = {"name": name, "arguments": arguments}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def prompt(index: int) -> list[dict[str, Any]]:
    """Return a prompt of three turns about one of eight files."""
    name = NAMES[index % len(NAMES)]
    return [
        {"role": "user", "content": f"The {name} check fails, find out why."},
        call("Bash", command=f"pytest tests/test_{name}.py"),
        {
            "role": "tool",
            "tool_call_id": "call_1",
            "name": "Bash",
            "content": f"FAILED tests/test_{name}.py - KeyError: '{name}'",
        },
    ]


def write_dataset(lake: Lake, *, rows: int = 8, split: str = "train") -> None:
    """Write ``rows`` rows of each dataset table; the agent's action is always wrong."""
    pairs, groups, hints, successes = [], [], [], []
    for i in range(rows):
        name = NAMES[i % len(NAMES)]
        right = call("Read", file_path=f"src/{name}.py")
        wrong = call("Read", file_path=f"lib/{name}.txt")
        other = call("Bash", command=f"cat src/{name}.py")
        messages = prompt(i)
        if split != "train":
            messages[0]["content"] += f" It is a {split} check."
        common = {
            "state_id": f"{split}-{i}", "group_id": f"g-{split}-{i}", "prompt": messages,
            "tools": [READ, BASH],
        }  # fmt: skip
        pairs.append(
            {**common, "pair_id": f"p-{split}-{i}", "chosen": [right], "rejected": [wrong]}
        )
        groups.append(
            {**common, "candidates": [wrong, right, right, other], "consensus": [right],
             "sources": ["agent", "one", "two", "three"], "simulated": True}
        )  # fmt: skip
        hint = f"File does not exist. The source of {name} is src/{name}.py."
        hints.append(
            {**common, "action": [wrong], "hint": hint, "source": "tool_error", "span_call": 0}
        )
        question = [{"role": "user", "content": f"Show me the {name} module of the {split} tree."}]
        successes.append(
            {**common, "state_id": f"own-{split}-{i}", "prompt": question, "action": [right]}
        )
    lake.write("dataset_pairs", pairs, split=split)
    lake.write("dataset_groups", groups, split=split)
    lake.write("dataset_hints", hints, split=split)
    lake.write("dataset_successes", successes, split=split)


def write_tiny_model(folder: Path, *, hidden: int = 32, layers: int = 2) -> Path:
    """Save a random Llama with SmolLM2's tokenizer and return its folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from composer_pipeline.training.models import SMOLLM2, load_tokenizer, resolve_model

    tokenizer = load_tokenizer(resolve_model(SMOLLM2))
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=2 * hidden,
        num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=2048, tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


def tiny_recipe(model: str, **changes: Any) -> TrainingRecipe:
    """Return a recipe of a few short steps; ``changes`` replace top-level fields."""
    fields: dict[str, Any] = {
        "name": "tiny",
        "model": model,
        "channels": {
            "grpo": {},
            "sdpo": {"rows_per_step": 2, "hint_gain": False},
            "dpo": {"pairs_per_step": 2},
        },
        "data": {"max_prompt_tokens": 400, "max_completion_tokens": 64, "max_tools_tokens": 0},
        "diloco": {"replicas": 1, "rounds": 1, "inner_steps": 2},
        "learning_rate": 1e-3,
    }
    return TrainingRecipe.model_validate(fields | changes)
