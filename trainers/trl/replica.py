"""One training process of a run: ``python -m trainers.trl.replica --run-dir D``.

Belongs here: putting model, data and DiLoCo's callback together. Does not belong here: the
loss (``trainers.trl.composer``) and the other processes (``trainers.trl.__main__``).

Reads ``recipe.yaml`` and ``data/`` of the run folder and DiLoCo's place from the
environment. Prints one JSON object a line for each step and commit. Exit codes are those of
``diloco.supervisor``: 2 for bad input and a channel that does nothing, 4 for what would fail
again (too many bad steps, a full disk), 1 for what another start may get past.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from composer_pipeline.diloco.callback import DiLoCoCallback, Diverged
from composer_pipeline.diloco.log import OuterLogError
from composer_pipeline.diloco.supervisor import (
    EXIT_BAD_INPUT,
    EXIT_WOULD_REPEAT,
    end_with_supervisor,
)
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.files import out_of_space
from composer_pipeline.training.data import TrainingData
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.runs.events import line
from trainers.trl.base_model.base_scores import BaseScores
from trainers.trl.base_model.hint_gain import gate
from trainers.trl.channel_state import ChannelStates, earlier_state
from trainers.trl.checkpoints.adapters import load_start
from trainers.trl.composer import ComposerTrainer
from trainers.trl.gradients import DeadChannel
from trainers.trl.held_out import FOLDER, HeldOut
from trainers.trl.policy.loading import base_identity, load_base


def main() -> int:
    """Train until the run's last round is committed; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir = parser.parse_args().run_dir
    end_with_supervisor()
    try:
        with out_of_space(f"run folder {run_dir}"):
            train(run_dir)
    except ComposerError as error:
        print(f"error: {error}", flush=True)
        if isinstance(error, InputError | DeadChannel):
            return EXIT_BAD_INPUT
        # The other replicas may bring back what is missing in the log, or a state to go on from.
        return 1 if isinstance(error, OuterLogError | Diverged) else EXIT_WOULD_REPEAT
    return 0


def train(run_dir: Path) -> None:
    """Run this replica.

    Raises:
        InputError: recipe, model or the DiLoCo environment do not fit.
        DeadChannel: a channel with a weight had no gradient for a round.
        BadSteps: too many steps in a row were not finite.
    """
    recipe = TrainingRecipe.load(run_dir / "recipe.yaml")
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    callback = DiLoCoCallback.from_env(on_commit=lambda _, info: emit("commit", info))
    start = callback.start_round()
    resolved = resolve_model(recipe.model)
    folder = run_dir / "replicas" / f"slot-{callback.slot}"
    folder.mkdir(parents=True, exist_ok=True)
    first = (start - 1) * recipe.diloco.inner_steps

    def on_event(kind: str, step: int, numbers: dict[str, Any]) -> None:
        emit(kind, {"slot": callback.slot, "step": step, "of": recipe.total_steps, **numbers})

    states = ChannelStates(
        run_dir, callback.slot, keep_all=recipe.keep_best, first=earlier_state(recipe)
    )
    base = BaseScores.load(run_dir)
    data, _ = gate(recipe, TrainingData.load(run_dir / "data"), base.gains())
    model, tokenizer = load_base(resolved, recipe), load_tokenizer(resolved)
    callback.replica.base = base_identity(model, tokenizer, recipe)
    trainer = ComposerTrainer(
        model=model,
        recipe=recipe,
        data=data,
        base=base,
        output_dir=folder,
        tokenizer=tokenizer,
        slot=callback.slot,
        skip_steps=first,
        callbacks=[callback],
        on_event=on_event,
        states=states,
        committed=lambda: callback.replica.round - 1,
    )
    if recipe.eval_every is not None and callback.slot == 0:
        held_out = TrainingRecipe.load(run_dir / FOLDER / "recipe.yaml")
        trainer.held_out = HeldOut(held_out, run_dir, trainer.student, trainer.trl_loss)
    load_start(trainer.accelerator.unwrap_model(trainer.model), recipe)
    trainer.train()


def emit(kind: str, numbers: dict[str, Any]) -> None:
    """Print one event for the supervisor, which tails this process's output."""
    print(line({"event": kind, **numbers}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
