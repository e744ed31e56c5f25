"""Training an arm in this process, with the parts that the trainer's command runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from composer_pipeline.errors import ComposerError
from composer_pipeline.lake.store import Lake
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rows import TrainingData, build
from trainers.common.base_pass import base_policy, score
from trainers.common.base_scores import gate
from trainers.common.policy import load_base
from trainers.trl.trainer import ComposerTrainer

#: A change of the rows before they are trained on.
Change = Callable[[TrainingData], TrainingData]


@dataclass(frozen=True)
class Trained:
    """A trained arm: the model, the numbers of its hint gate and of its last step."""

    model: Any
    gate: dict[str, float]
    numbers: dict[str, float]


def train_arm(
    lake: Lake, recipe: TrainingRecipe, run_dir: Path, change: Change | None = None
) -> Trained:
    """Train a recipe's model on a lake's dataset and return it."""
    import torch

    model = resolve_model(recipe.model)
    tokenizer = load_tokenizer(model)
    data = build(lake, tokenizer, recipe, run_dir / "data")
    recipe = recipe.resolved(data.counts())
    if change is not None:
        data = change(data)
    base = score(base_policy(model, recipe, tokenizer), recipe, data, run_dir)
    data, gated = gate(recipe, data, base.gains())
    steps: list[dict[str, float]] = []
    if torch.cuda.is_available():  # the peak is the arm's own
        torch.cuda.reset_peak_memory_stats()
    trainer = ComposerTrainer(
        model=load_base(model, recipe),
        recipe=recipe,
        data=data,
        base=base,
        output_dir=run_dir,
        tokenizer=tokenizer,
        on_event=lambda kind, step, numbers: steps.append(numbers) if kind == "step" else None,
    )
    trainer.train()
    if not steps:
        raise ComposerError(f"arm {recipe.name!r}: no step had a finite loss and gradient")
    numbers = {
        **steps[-1],
        "step_seconds": median(step["seconds"] for step in steps),
        "step_tokens": mean(step["tokens"] for step in steps),
    }
    return Trained(trainer.policy.model.eval(), gated, numbers)


def rows_trained(run_dir: Path, change: Change | None = None) -> dict[str, float]:
    """Return the rows of each channel, and those left out by reason."""
    data = TrainingData.load(run_dir / "data")
    data = change(data) if change else data
    found = {f"rows {channel}": float(n) for channel, n in data.counts().items() if n}
    return found | {f"left out, {why}": float(n) for why, n in data.dropped.items()}


def rows_said(numbers: Mapping[str, float]) -> tuple[str, str]:
    """Return the rows that ``numbers.json`` says an arm had, and those left out."""
    rows, left = (
        ", ".join(f"{k}: {n:.0f}" for k, n in numbers.items() if k.startswith(name))
        for name in ("rows ", "left out, ")
    )
    return rows, left
