"""Rows as sizes, packed as training packs them: what a run will put into its forwards.

Belongs here: sizes of rows, and the micro-batches of a run. Does not belong here: bytes
(``composer_pipeline.training.planning``) and tensors.
"""

from collections.abc import Sequence
from typing import Any

from composer_pipeline.training.data import TrainingData
from composer_pipeline.training.planning import RowSize
from composer_pipeline.training.recipe import TrainingRecipe
from trainers.trl.rows.batches import micro_batches
from trainers.trl.rows.streams import planned, rows_of


def sizes_of(row: Any, channel: str) -> list[RowSize]:
    """Return what a row brings into a window: a group its answers, any other row itself."""
    prompt = len(row.prompt_ids)
    if channel == "grpo":
        lengths = [len(answer) for answer in row.completions]
        return [RowSize(prompt + n, prompt, (n,), n) for n in lengths]
    if channel == "dpo":
        sides = (len(row.chosen_ids), len(row.rejected_ids))
        return [RowSize(2 * (prompt + max(sides)), prompt, sides, sum(sides))]
    answer = len(row.response_ids)
    if channel == "sdpo":
        # What is kept for backward is the student's forward; the teacher's counts for packing.
        size = max(prompt, len(row.teacher_prompt_ids)) + answer
        return [RowSize(size, prompt, (answer,), row.length)]
    return [RowSize(prompt + answer, prompt, (answer,), answer)]


def windows_of(
    recipe: TrainingRecipe, data: TrainingData, *, slot: int = 0
) -> dict[str, list[list[RowSize]]]:
    """Return, by channel, the rows of each optimizer step of a replica; reads each row once."""
    out = {}
    plans = planned(recipe, data, slot)
    for channel, per_step in recipe.channels.rows_per_step().items():
        rows = rows_of(data, channel)
        taken = plans[channel]
        known: dict[int, list[RowSize]] = {}
        for number in taken:
            if number not in known:
                known[number] = sizes_of(rows[number], channel)
        out[channel] = [
            [size for number in taken[start : start + per_step] for size in known[number]]
            for start in range(0, len(taken), per_step)
        ]
    return out


def packed(
    windows: dict[str, list[list[RowSize]]], recipe: TrainingRecipe
) -> dict[str, list[list[RowSize]]]:
    """Return the micro-batches of windows, with prompts cut to the recipe's length."""
    longest = recipe.data.max_prompt_tokens
    return {
        channel: [
            batch
            for window in many
            for batch in _micro_batches([_cut(row, longest) for row in window], recipe)
        ]
        for channel, many in windows.items()
    }


def _micro_batches(rows: Sequence[RowSize], recipe: TrainingRecipe) -> list[list[RowSize]]:
    return micro_batches(rows, [row.size for row in rows], recipe.micro_batch_tokens)


def _cut(row: RowSize, longest: int) -> RowSize:
    over = row.prompt - longest
    if over <= 0:
        return row
    return RowSize(row.size - over * len(row.responses), longest, row.responses, row.selected)
