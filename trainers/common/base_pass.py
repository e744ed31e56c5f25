"""The base model's scores of the rows: ``python -m trainers.common.base_pass --run-dir D``.

One pass before any replica starts: DPO's reference, the log-probabilities of GRPO's off-policy
mask, and the gain of each hint. A killed pass continues with the missing parts. Imports no TRL.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from composer_pipeline.diloco.supervisor import end_with_supervisor
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.files import out_of_space
from composer_pipeline.training.events import line
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rows import Group, Hint, Pair, SomeRows, TrainingData
from trainers.common.base_scores import BaseScores, join, parts, scored, write
from trainers.common.policy import Policy, device_memory, load_base, tree_attention
from trainers.common.rows import Row, micro_batches, planned, rows_of
from trainers.common.shared_prefix import SharedStates, why_not
from trainers.common.trees import Item, trees_of

#: A row's sequences, and what is kept of their log-probabilities.
Sequences = Callable[[Any], list[Row]]
Shape = Callable[[Any, list[list[float]]], list[list[float]]]


def main() -> int:
    """Score what is missing; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument(
        "--part", action="append", required=True, help="folder of the run whose rows are scored"
    )
    options = parser.parse_args()
    end_with_supervisor()
    try:
        with out_of_space(f"run folder {options.run_dir}"), device_memory("the base pass"):
            _run([options.run_dir / part for part in options.part])
    except ComposerError as error:
        print(f"error: {error}", flush=True)
        return 2 if isinstance(error, InputError) else 1
    return 0


def _run(folders: Sequence[Path]) -> None:
    recipes = {folder: TrainingRecipe.load(folder / "recipe.yaml") for folder in folders}
    recipe = recipes[folders[0]]  # all parts have the run's model
    if recipe.threads_alone:
        torch.set_num_threads(recipe.threads_alone)
    resolved = resolve_model(recipe.model)
    policy = base_policy(resolved, recipe, load_tokenizer(resolved))
    for folder, taking in recipes.items():
        score(policy, taking, TrainingData.load(folder / "data"), folder, say)


def base_policy(resolved: str, recipe: TrainingRecipe, tokenizer: Any) -> Policy:
    """Load a recipe's model without adapter, on the GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_base(resolved, recipe).to(device).eval()
    return Policy(model, pad=tokenizer.pad_token_id, device=device)


def say(channel: str, done: int, of: int) -> None:
    """Print a progress event."""
    print(line({"event": "base", "channel": channel, "done": done, "of": of}), flush=True)


@torch.no_grad()
def score(
    policy: Policy,
    recipe: TrainingRecipe,
    data: TrainingData,
    run_dir: Path,
    say: Callable[[str, int, int], None] = lambda channel, done, of: None,
) -> BaseScores:
    """Score every hint, and what any replica takes of other channels, unless it is scored."""
    shared: bool | None = None  # asked of the model only if something is missing
    for channel, rows in rows_to_score(recipe, data).items():
        sequences, shape = _HOW[channel]
        missing = sum(len(part) for _, part in parts(run_dir, channel, range(len(rows))))
        done = len(rows) - missing
        for path, part in parts(run_dir, channel, rows):
            if shared is None:
                shared = why_not(policy, recipe) is None
            rows_of_part = [sequences(row) for row in part]
            values = _logps(policy, rows_of_part, recipe.micro_batch_tokens, shared=shared)
            scores = [shape(row, lists) for row, lists in zip(part, values, strict=True)]
            write(path, [row.id for row in part], scores)
            done += len(part)
            say(channel, done, len(rows))
        join(run_dir, channel, len(rows))
    return BaseScores.load(run_dir)


def rows_to_score(recipe: TrainingRecipe, data: TrainingData) -> dict[str, Sequence[Any]]:
    """Return the rows to score by channel: all hints, and other rows that any replica takes."""
    plans = [planned(recipe, data, slot) for slot in range(recipe.diloco.replicas)]
    out: dict[str, Sequence[Any]] = {}
    for channel in scored(recipe):
        rows = out[channel] = rows_of(data, channel)
        if channel != "sdpo":
            out[channel] = SomeRows(rows, sorted({i for plan in plans for i in plan[channel]}))
    return out


def _logps(
    policy: Policy, sequences: Sequence[Sequence[Row]], limit: int, *, shared: bool
) -> list[list[list[float]]]:
    """Return log p of each token of each sequence of each row."""
    out: list[list[list[float]]] = [[[] for _ in rows] for rows in sequences]
    if shared:
        trees = trees_of([Item("", i, rows) for i, rows in enumerate(sequences)], limit)
        for grown in micro_batches(trees, [len(of.tree) for of in trees], limit):
            with tree_attention(policy):
                states = SharedStates(policy, grown)
            for item in (item for of in grown for item in of.items):
                out[item.row] = [p.double().tolist() for p in states.logps(item.sequences)]
        return out
    flat = [(i, j, row) for i, rows in enumerate(sequences) for j, row in enumerate(rows)]
    sizes = [len(row.prompt) + len(row.response) for _, _, row in flat]
    for batch in micro_batches(flat, sizes, limit):
        for (i, j, _), piece in zip(batch, policy.logps([row for _, _, row in batch]), strict=True):
            out[i][j] = piece.double().tolist()
    return out


def _pair(row: Pair) -> list[Row]:
    return [Row(row.prompt_ids, row.chosen_ids), Row(row.prompt_ids, row.rejected_ids)]


def _group(row: Group) -> list[Row]:
    return [Row(row.prompt_ids, completion) for completion in row.completions]


def _hint(row: Hint) -> list[Row]:
    prompts = (row.prompt_ids, row.teacher_prompt_ids)
    rows = [Row(prompt, row.response_ids) for prompt in prompts]
    return rows + [Row(prompt, row.target_ids) for prompt in prompts if row.target_ids]


def _sums(_: Any, lists: list[list[float]]) -> list[list[float]]:
    return [[sum(values)] for values in lists]


def _hint_scores(row: Hint, lists: list[list[float]]) -> list[list[float]]:
    return [lists[0], *_sums(row, lists), *([[], []] if not row.target_ids else [])]


_HOW: dict[str, tuple[Sequences, Shape]] = {
    "dpo": (_pair, _sums),
    "grpo": (_group, lambda _, lists: lists),
    "sdpo": (_hint, _hint_scores),
}


if __name__ == "__main__":
    sys.exit(main())
