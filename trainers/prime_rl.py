"""Write what PRIME-RL needs to run a recipe (``python -m trainers.prime_rl``).

``<run>/sft.toml`` with ``data/sft/train.parquet`` for a recipe of SFT alone, or ``rl.toml`` for
sampled GRPO in the environment server; ``command.txt`` has the command that runs it. The layout is
that of PRIME-RL at commit 559b447 (September 2026). It needs GPUs and vLLM and was not run here,
so this ends with exit code 1 and a sentence, and writes no ``composer.json``.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.files import make_folder, replace
from composer_pipeline.lake.parquet import TableFile
from composer_pipeline.lake.schema import JSON_LIST
from composer_pipeline.lake.store import Lake
from composer_pipeline.training.events import line
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import PrimeOptions
from composer_pipeline.training.rows import require_rows

COMMAND = "command.txt"


def toml(table: Mapping[str, Any], name: str = "") -> Iterator[str]:
    """Yield the lines of a table: its values, then the tables in it, as TOML wants them."""
    if name:
        yield f"\n[{name}]"
    for key, value in table.items():
        if not isinstance(value, Mapping):
            yield f"{key} = {_value(value)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from toml(value, f"{name}.{key}" if name else key)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):  # in a list
        return f"{{{', '.join(f'{key} = {_value(item)}' for key, item in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)  # JSON's text, numbers and truth are TOML's


def _model(recipe: TrainingRecipe) -> dict[str, Any]:
    model: dict[str, Any] = {"name": recipe.model}
    if recipe.lora.r:
        lora: dict[str, Any] = {"rank": recipe.lora.r, "alpha": float(recipe.lora.alpha)}
        if recipe.lora.targets != "all-linear":
            lora["target_modules"] = list(recipe.lora.targets)
        model["lora"] = lora
    return model


def _optimizer(recipe: TrainingRecipe) -> dict[str, Any]:
    return {
        "type": "adamw", "lr": recipe.learning_rate, "weight_decay": recipe.weight_decay,
        "max_norm": recipe.max_grad_norm,
    }  # fmt: skip


def sft(recipe: TrainingRecipe, data: Path) -> dict[str, Any]:
    """Return the configuration of ``sft``; ``data`` is the folder of its Parquet files."""
    options = PrimeOptions.model_validate(recipe.backend.options)
    length = recipe.data.max_prompt_tokens + recipe.data.max_completion_tokens
    renderer = {"renderer": {"name": options.renderer}} if options.renderer else {}
    return {
        "max_steps": recipe.total_steps,
        "model": _model(recipe),
        **renderer,
        "data": {
            "name": str(data), "seq_len": length, "seed": recipe.seed,
            "batch_size": recipe.channels.sft.rows_per_step,
        },
        "optim": _optimizer(recipe),
    }  # fmt: skip


def write_sft(lake: Lake, path: Path) -> None:
    """Write prompt, completion and tools of every consensus, as ``export --format sft`` does."""
    columns = dict.fromkeys(("prompt", "completion", "tools"), JSON_LIST)
    file = TableFile(path, columns, f"run folder {path.parents[2]}")
    with ExitStack() as stack:
        stack.callback(file.discard)
        wanted = ["prompt", "consensus", "tools"]
        for row in lake.iter_rows("dataset_groups", columns=wanted, split="train"):
            file.add(row | {"completion": row["consensus"]})
        file.commit()


def rl(recipe: TrainingRecipe, states: list[str]) -> dict[str, Any]:
    """Return the configuration of ``rl``, whose episodes begin at these states."""
    options, grpo = PrimeOptions.model_validate(recipe.backend.options), recipe.channels.grpo
    taskset = {
        "id": "openenv", "base_url": options.environment_url,
        "resets": [{"state_id": state} for state in states],
    }  # fmt: skip
    player = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    source = {"name": "composer", "env": {"taskset": taskset, "player": player}}
    return {
        "max_steps": recipe.total_steps,
        "seq_len": recipe.data.max_prompt_tokens + recipe.data.max_completion_tokens,
        "deployment": {"num_train_gpus": 1, "num_infer_gpus": 1},
        "model": _model(recipe),
        "orchestrator": {
            "batch_size": grpo.groups_per_step * grpo.group_size,
            "group_size": grpo.group_size,
            "renderer": {"name": options.renderer or "default"},
            "algo": {"type": "grpo"},
            "train": {
                "source": [source],
                "sampling": {"max_completion_tokens": recipe.data.max_completion_tokens},
            },
        },
        "trainer": {"optim": _optimizer(recipe)},
        "inference": {},
    }


def render(recipe: TrainingRecipe, lake: Lake, run_dir: Path) -> Path:
    """Write configuration, data and command into a run folder; return the file of the command."""
    make_folder(run_dir)
    recipe = recipe.resolved(require_rows(lake, recipe))
    kind = "sft" if recipe.channels.sft.weight else "rl"
    if kind == "sft":
        data = run_dir / "data" / "sft"
        make_folder(data)
        write_sft(lake, data / "train.parquet")
        configuration = sft(recipe, data)
    else:
        rows = lake.iter_rows("dataset_groups", columns=["state_id"], split="train")
        configuration = rl(recipe, sorted({row["state_id"] for row in rows}))
    replace(run_dir / f"{kind}.toml", "\n".join(toml(configuration)).lstrip() + "\n")
    replace(run_dir / COMMAND, f"uv run {kind} @ {run_dir / f'{kind}.toml'}\n")
    return run_dir / COMMAND


def plan(recipe: TrainingRecipe, lake: Lake) -> dict[str, Any]:
    """Return the fields of ``PlanReport``, as far as they are known without PRIME-RL."""
    rows = require_rows(lake, recipe)
    recipe = recipe.resolved(rows)
    return {
        "lengths": "assumed", "rows": rows, "steps": recipe.total_steps,
        "steps_per_epoch": recipe.steps_per_epoch(rows), "tokens_per_step": 0.0, "memory_gib": {},
        "peak_gib": 0.0, "worst_channel": "", "limit_gib": 0.0,
        "where": "the GPUs of PRIME-RL, whose memory is not predicted",
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Write the files, or print the plan; return the exit code."""
    parser = argparse.ArgumentParser(prog="trainers.prime_rl", description=__doc__)
    parser.add_argument("--recipe", required=True, help="training recipe (YAML)")
    parser.add_argument("--lake", required=True, help="folder or URL of the lake")
    parser.add_argument("--run-dir", required=True, type=Path, help="folder of this run")
    parser.add_argument("--plan", action="store_true", help="print the plan, and write nothing")
    parser.add_argument("--model-config", help="not read: nothing depends on the model's shape")
    options, odd = parser.parse_known_args(argv)
    try:
        recipe, lake = TrainingRecipe.load(options.recipe), Lake(options.lake)
        if odd:
            raise InputError(f"{odd[0]}: trainer 'prime-rl' predicts no memory")
        if options.plan:
            print(line({"event": "plan", **plan(recipe, lake)}), flush=True)
            return 0
        command = render(recipe, lake, options.run_dir)
        raise ComposerError(
            f"PRIME-RL was not started, its files are in {options.run_dir}: run the command in"
            f" {command.name} in a checkout of PRIME-RL with GPUs"
        )
    except ComposerError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, InputError) else 1


if __name__ == "__main__":
    sys.exit(main())
