"""Student tokens and CPU seconds of a step, with and without shared prefixes, on the demo's rows.

    python benchmarks/shared_prefix.py --lake lake-demo

Belongs here: the same steps of the demo's recipe, run with ``shared_prefix`` on and off, and a
count of all rows of the data. Does not belong here: kernels alone.

The lake is what ``make demo`` leaves. The model is the recipe's, with real scores of the base
model. Steps take turns; times are CPU seconds of the process, one thread.
"""

import argparse
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from composer_pipeline.lake import Lake
from composer_pipeline.training.data import TrainingData, build
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.recipe import TrainingRecipe
from trainers.trl.base_model.base_pass import score
from trainers.trl.composer import ComposerTrainer
from trainers.trl.policy.loading import load_base
from trainers.trl.policy.student import Student
from trainers.trl.rows.batches import Row
from trainers.trl.rows.streams import rows_of
from trainers.trl.shared_prefix.tree import Item, trees_of

ROOT = Path(__file__).resolve().parent.parent
ABOUT = (
    "`make bench-shared-prefix` after `make demo`: tokens that the backbone of the student reads,"
    " and CPU seconds of the\nprocess, with `shared_prefix: off` and `on`. Steps of the recipe take"
    " turns; one thread, float32."
)
RESULT = ROOT / "benchmarks" / "results" / "shared_prefix.md"


def main() -> None:
    """Measure and print the table; ``--record`` writes it too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lake", type=Path, default=ROOT / "lake-demo")
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "train" / "demo.yaml")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    recipe = TrainingRecipe.load(options.recipe)
    channels = recipe.channels.model_dump()
    channels["sdpo"]["hint_gain"] = False  # which hints pass is not the question
    recipe = recipe.model_copy(
        update={"channels": type(recipe.channels).model_validate(channels), "norms_every": 1000}
    )
    resolved = resolve_model(recipe.model)
    tokenizer = load_tokenizer(resolved)
    with tempfile.TemporaryDirectory() as folder:
        data = build(Lake(options.lake), tokenizer, recipe, Path(folder) / "data")
        table = [*_all_rows(recipe, data), *_steps(recipe, data, resolved, options.steps, folder)]
    text = "\n".join(["| what | separate | shared | ratio |", "|---|---|---|---|", *table])
    print(text)
    if options.record:
        RESULT.write_text(f"# Shared prefixes on the demo's rows\n\n{ABOUT}\n\n{text}\n")


def _sequences(channel: str, row: Any) -> list[list[Row]]:
    """Return the items of a row, each as its sequences."""
    if channel == "grpo":
        return [[Row(row.prompt_ids, answer)] for answer in row.completions]
    if channel == "dpo":
        return [[Row(row.prompt_ids, side) for side in (row.chosen_ids, row.rejected_ids)]]
    if channel == "sdpo":
        return [[Row(row.prompt_ids, row.response_ids, row.start, row.length)]]
    return [[Row(row.prompt_ids, row.response_ids)]]


def _all_rows(recipe: TrainingRecipe, data: TrainingData) -> list[str]:
    """Return a line: tokens of every row of the data once, packed within the recipe's limit."""
    items = [
        Item(channel, row, sequences)
        for channel in recipe.channels.weights()
        for row in rows_of(data, channel)
        for sequences in _sequences(channel, row)
    ]
    apart = sum(len(r.prompt) + len(r.response) for i in items for r in i.sequences)
    together = sum(len(of.tree) for of in trees_of(items, recipe.micro_batch_tokens))
    return [
        _line(f"student tokens, all rows of the data once ({len(items)} items)", apart, together)
    ]


def _steps(
    recipe: TrainingRecipe, data: TrainingData, resolved: str, steps: int, folder: str
) -> list[str]:
    """Return the lines of real steps: tokens and CPU seconds."""
    tokenizer = load_tokenizer(resolved)
    length = {"replicas": 1, "rounds": 1, "inner_steps": steps + 1, "min_quorum": 1}
    short = recipe.model_copy(update={"diloco": recipe.diloco.model_copy(update=length)})
    bare = Student(load_base(resolved, recipe).eval(), pad=tokenizer.pad_token_id, device="cpu")
    base = score(bare, short, data, Path(folder) / "base")
    trainers = {}
    for how in ("off", "on"):
        taken = short.model_copy(update={"shared_prefix": how})
        trainer = ComposerTrainer(
            model=load_base(resolved, recipe), recipe=taken, data=data, base=base,
            output_dir=Path(folder), tokenizer=tokenizer,
        )  # fmt: skip
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        trainers[how] = trainer
    seconds, tokens = defaultdict[str, float](float), defaultdict[str, float](float)
    for step in range(steps + 1):
        for how, trainer in trainers.items():
            trainer.state.global_step = step
            began = time.process_time()
            trainer._compute_loss(trainer.model, {})
            spent = time.process_time() - began
            for parameter in trainer.student.parameters():
                parameter.grad = None
            if step:  # the first one warms up, and keeps the channels apart
                seconds[how] += spent
                for channel in trainer.channels:
                    window = channel.window(trainer.student, step)
                    sides = [r for row in window for r in channel.sequences(row)]
                    tokens["off"] += sum(len(r.prompt) + len(r.response) for r in sides) / 2
                if how == "on":
                    tokens["on"] += trainer._metrics["train"]["student_tokens"][-1]
    return [
        _line(f"student tokens, {steps} steps of the recipe", tokens["off"], tokens["on"]),
        _line(f"CPU seconds, {steps} whole steps", seconds["off"], seconds["on"]),
    ]


def _line(what: str, apart: float, together: float) -> str:
    return f"| {what} | {apart:,.1f} | {together:,.1f} | {together / apart:.2f} |"


if __name__ == "__main__":
    main()
