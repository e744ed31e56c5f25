"""Student tokens and CPU seconds of a step, with and without shared prefixes, on the demo's rows.

    python benchmarks/shared_prefix.py --lake lake-demo

The lake is what ``make demo`` leaves; the model is the recipe's, with real scores of the base
model. Steps take turns; times are CPU seconds of the process, one thread. Tokens need no model and
are counted for every step of each replica: of the recipe's own run, and of an epoch of the channel
that needs most steps.
"""

import argparse
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from composer_pipeline.lake.store import Lake
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rows import TrainingData, build
from trainers.common.base_pass import score
from trainers.common.policy import Policy, load_base
from trainers.common.rows import Row, planned, rows_of
from trainers.common.trees import Item, trees_of
from trainers.trl.trainer import ComposerTrainer

ROOT = Path(__file__).resolve().parent.parent
DRAWS = ("independent", "by-state")
ABOUT = """\
`make bench-shared-prefix` after `make demo`: tokens that the backbone of the student reads, and CPU
seconds of the process, with `shared_prefix: off` and `on`, for the same rows, drawn as the recipe's
`draw` says. Tokens are counted for all replicas; CPU steps take turns, one thread, float32.
"""
NOTES = """\
Bars: 0.30 of the tokens and 0.45 of the CPU. Channels have different numbers of rows ({rows}), so
they go through their epochs at different speeds: rows of one state meet most often in a run's first
steps, and less often later. The line of the epoch says what is left of the saving then.
"""
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
        table = [_all_rows(recipe, data)]
        for draw in DRAWS:
            drawn = recipe.model_copy(update={"draw": draw})
            scratch = Path(folder) / draw
            table += _counted(drawn, data)
            table += _steps(drawn, data, resolved, options.steps, scratch)
    rows = ", ".join(f"{c} {len(rows_of(data, c))}" for c in recipe.channels.weights())
    notes = NOTES.format(rows=rows)
    text = "\n".join(["| what | separate | shared | ratio |", "|---|---|---|---|", *table])
    print(text)
    if options.record:
        RESULT.write_text(f"# Shared prefixes on the demo's rows\n\n{ABOUT}\n{text}\n\n{notes}")


def _sequences(channel: str, row: Any) -> list[list[Row]]:
    """Return the items of a row, each as its sequences."""
    if channel == "grpo":
        return [[Row(row.prompt_ids, answer)] for answer in row.completions]
    if channel == "dpo":
        return [[Row(row.prompt_ids, side) for side in (row.chosen_ids, row.rejected_ids)]]
    if channel == "sdpo":
        return [[Row(row.prompt_ids, row.response_ids, row.start, row.length)]]
    return [[Row(row.prompt_ids, row.response_ids)]]


def _items(
    recipe: TrainingRecipe, data: TrainingData, plan: dict[str, list[int]], step: int
) -> list[Item]:
    """Return what a step of a plan puts into its forwards."""
    return [
        Item(channel, row, sequences)
        for channel, many in recipe.channels.rows_per_step().items()
        for number in plan[channel][step * many : (step + 1) * many]
        for row in [rows_of(data, channel)[number]]
        for sequences in _sequences(channel, row)
    ]


def _tokens(items: list[Item], limit: int) -> tuple[int, int]:
    """Return the tokens of separate and of shared forwards."""
    apart = sum(len(r.prompt) + len(r.response) for i in items for r in i.sequences)
    return apart, sum(len(of.tree) for of in trees_of(items, limit))


def _all_rows(recipe: TrainingRecipe, data: TrainingData) -> str:
    """Return a line: tokens of every row of the data once, packed within the recipe's limit."""
    items = [
        Item(channel, row, sequences)
        for channel in recipe.channels.weights()
        for row in rows_of(data, channel)
        for sequences in _sequences(channel, row)
    ]
    what = f"student tokens, all rows of the data once ({len(items)} items)"
    return _line(what, *_tokens(items, recipe.micro_batch_tokens))


def _counted(recipe: TrainingRecipe, data: TrainingData) -> list[str]:
    """Return the lines of whole runs: tokens of all replicas."""
    per_step, replicas = recipe.channels.rows_per_step(), recipe.diloco.replicas
    epoch = max(-(-len(rows_of(data, c)) // (n * replicas)) for c, n in per_step.items())
    lines = []
    for what, steps in (("the recipe's run", recipe.total_steps), ("an epoch", epoch)):
        length = {"rounds": 1, "inner_steps": steps}
        run = recipe.model_copy(update={"diloco": recipe.diloco.model_copy(update=length)})
        plans = [planned(run, data, slot) for slot in range(replicas)]
        *tokens, states = _of_plans(run, data, plans, steps)
        what += f", {replicas} replicas of {steps} steps ({states:.1f} states a step)"
        lines.append(_line(f"`{recipe.draw}`: student tokens, {what}", *tokens))
    return lines


def _of_plans(
    recipe: TrainingRecipe, data: TrainingData, plans: list[dict[str, list[int]]], steps: int
) -> tuple[int, int, float]:
    """Return tokens apart and shared of the first steps of plans, and the mean states of a step."""
    apart = shared = states = 0
    for plan in plans:
        for step in range(steps):
            items = _items(recipe, data, plan, step)
            tokens = _tokens(items, recipe.micro_batch_tokens)
            apart, shared = apart + tokens[0], shared + tokens[1]
            states += len({tuple(item.row.prompt_ids) for item in items})
    return apart, shared, states / (len(plans) * steps)


def _steps(
    recipe: TrainingRecipe, data: TrainingData, resolved: str, steps: int, folder: Path
) -> list[str]:
    """Return the lines of real steps: tokens and CPU seconds."""
    tokenizer = load_tokenizer(resolved)
    length = {"replicas": 1, "rounds": 1, "inner_steps": steps + 1, "min_quorum": 1}
    short = recipe.model_copy(update={"diloco": recipe.diloco.model_copy(update=length)})
    bare = Policy(load_base(resolved, recipe).eval(), pad=tokenizer.pad_token_id, device="cpu")
    base = score(bare, short, data, folder / "base")
    trainers = {}
    for how in ("off", "on"):
        taken = short.model_copy(update={"shared_prefix": how})
        trainer = ComposerTrainer(
            model=load_base(resolved, recipe), recipe=taken, data=data, base=base,
            output_dir=folder, tokenizer=tokenizer,
        )  # fmt: skip
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        trainers[how] = trainer
    seconds, tokens = defaultdict[str, float](float), defaultdict[str, float](float)
    for step in range(steps + 1):
        for how, trainer in trainers.items():
            trainer.state.global_step = step
            began = time.process_time()
            trainer.training_step(trainer.model, {})
            spent = time.process_time() - began
            for parameter in trainer.policy.parameters():
                parameter.grad = None
            if step:  # the first one warms up, and keeps the channels apart
                seconds[how] += spent
                for channel in trainer.channels:
                    window = channel.window(trainer.policy, step)
                    sides = [r for row in window for r in channel.sequences(row)]
                    tokens["off"] += sum(len(r.prompt) + len(r.response) for r in sides) / 2
                if how == "on":
                    tokens["on"] += trainer._metrics["train"]["student_tokens"][-1]
    return [
        _line(f"`{recipe.draw}`: student tokens, {steps} timed steps", tokens["off"], tokens["on"]),
        _line(f"`{recipe.draw}`: CPU seconds, {steps} timed steps", seconds["off"], seconds["on"]),
    ]


def _line(what: str, apart: float, together: float) -> str:
    return f"| {what} | {apart:,.1f} | {together:,.1f} | {together / apart:.2f} |"


if __name__ == "__main__":
    main()
