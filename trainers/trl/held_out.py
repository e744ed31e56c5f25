"""What the channels' losses are on held-out rows, between rounds.

Belongs here: the rows and the pass over them. Does not belong here: which round is kept
(``composer_pipeline.training.run``), and the evaluation of a finished run
(``composer_pipeline.evaluation``), which publishing reads.

``<run>/held-out/`` holds ``recipe.yaml`` ``data/`` ``base/``, like the run's own. The recipe takes
at most ``eval_rows`` rows of each channel in one step; SDPO's teacher is the model before training.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.training.build_rows import build, rows_of_tables
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rows import TrainingData
from composer_pipeline.training.run import HELD_OUT
from trainers.trl.base_scores import BaseScores
from trainers.trl.channels.grpo import TrlLoss
from trainers.trl.channels.registry import channels_of
from trainers.trl.policy import Student

FOLDER, SPLIT = HELD_OUT, "validation"


def prepare(lake: Lake, tokenizer: Any, recipe: TrainingRecipe, run_dir: Path) -> TrainingRecipe:
    """Build the held-out rows in ``<run>/held-out/data`` and return the recipe that takes them.

    A channel without held-out rows is left out.

    Raises:
        InputError: no channel has any.
    """
    seen = rows_of_tables(lake, recipe, SPLIT)
    if recipe.lora.r == 0:
        seen["sdpo"] = 0  # its teacher would be one more copy of the whole model
    if not any(seen.values()):
        raise InputError(
            f"recipe field eval_every: lake {lake.url} has no held-out row (split={SPLIT}) for any"
            " channel; leave eval_every out, or make the dataset with a validation share"
        )
    wanted = _of(recipe, {channel: recipe.eval_rows if n else 0 for channel, n in seen.items()})
    folder = run_dir / FOLDER / "data"
    data = (
        TrainingData.load(folder)
        if TrainingData.is_complete(folder)
        else build(lake, tokenizer, wanted, folder, split=SPLIT)
    )
    counts = data.counts()
    return _of(recipe, {c: min(recipe.eval_rows, counts[c]) if seen.get(c) else 0 for c in counts})


def _of(recipe: TrainingRecipe, rows: Mapping[str, int]) -> TrainingRecipe:
    """Return a recipe of one step that takes so many rows of each channel."""
    channels = recipe.channels
    grpo = {"groups_per_step": rows.get("grpo", 0), "source": "recorded"}
    sdpo = {"rows_per_step": rows.get("sdpo", 0), "teacher": "frozen", "hint_gain": False}
    sizes: dict[str, dict[str, Any]] = {
        "grpo": grpo, "sdpo": sdpo, "dpo": {"pairs_per_step": rows.get("dpo", 0)},
        "sft": {"rows_per_step": rows.get("sft", 0)},
    }  # fmt: skip
    changed = {
        name: getattr(channels, name).model_copy(
            update={**fields, "weight": getattr(channels, name).weight if rows.get(name) else 0.0}
        )
        for name, fields in sizes.items()
    }
    one = recipe.diloco.model_copy(
        update={"replicas": 1, "rounds": 1, "inner_steps": 1, "min_quorum": 1}
    )
    return recipe.model_copy(
        update={
            "channels": channels.model_copy(update=changed), "diloco": one, "steps": None,
            "epochs": None, "data": recipe.data.model_copy(update={"max_dropped_share": 1.0}),
        }
    )  # fmt: skip


class HeldOut:
    """Measures a model on the held-out rows.

    Args:
        recipe: as from :func:`prepare`.
        run_dir: holds the rows and the base model's scores of them.
        student: the model that is trained.
        trl_loss: TRL's loss of a batch of answers.
    """

    def __init__(
        self, recipe: TrainingRecipe, run_dir: Path, student: Student, trl_loss: TrlLoss
    ) -> None:
        data = TrainingData.load(run_dir / FOLDER / "data")
        base = BaseScores.load(run_dir / FOLDER)
        self._student, self._limit = student, recipe.micro_batch_tokens
        self._channels = channels_of(recipe, data, base, student, trl_loss, None, 0)

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Return each channel's numbers, and ``loss``: the weighted sum of DPO, SDPO and SFT.

        GRPO's loss says nothing of a model; where it is the only channel, ``loss`` is what its
        worst answers gained minus what its best ones did, in nats.
        """
        numbers: dict[str, float] = {}
        total, counted = 0.0, 0
        was_training = self._student.model.training
        self._student.model.eval()
        for channel in self._channels:
            window = channel.window(self._student, 0)
            for rows in channel.split(window, self._limit):
                channel.loss(self._student, rows, window)
            seen = channel.finish(window)
            numbers |= seen
            if f"{channel.name}_loss" in seen:
                total += channel.weight * seen[f"{channel.name}_loss"]
                counted += 1
        self._student.model.train(was_training)
        if not counted:
            total = numbers.get("grpo_worst_gain", 0.0) - numbers.get("grpo_best_gain", 0.0)
        return {**numbers, "loss": total}
