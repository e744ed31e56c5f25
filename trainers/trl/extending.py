"""Taking over what an earlier run left, so that a longer one goes on from its last round.

Belongs here: copying commits, states and each replica's private state into a run folder of its
own. Does not belong here: what the two must have in common (``training.runs.extension``). Imports
no torch. Everything is copied again by a start after a kill: nothing trains before all is there.
"""

import shutil
from pathlib import Path

from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.errors import InputError
from composer_pipeline.files import writing
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import METRICS
from composer_pipeline.training.runs.extension import require_continues
from trainers.trl.outer_log import place

#: What a run's log holds of its rounds; claims and signs of life are each run's own.
ROUNDS = ("state", "rounds")
#: What a replica goes on from besides the log.
OWN = ("channels-*.safetensors", "inner.safetensors")


def take_over(recipe: TrainingRecipe, run_dir: Path, base: str, rows: str) -> None:
    """Fill a run folder and its log with the run that a recipe extends; nothing without one.

    Args:
        recipe: with its length resolved.
        run_dir: of the longer run.
        base: digest of the model.
        rows: digest of the training rows.

    Raises:
        InputError: the recipe does not continue that run, or its log is the same.
    """
    if not recipe.extends:
        return
    before = require_continues(recipe, base, rows)
    folder = Path(recipe.extends)
    here, there = place(recipe, run_dir), place(before, folder)
    if here == there:
        raise InputError(
            f"recipe field diloco.run_id: {here[1]} is {folder.name}'s own; an extended run needs"
            " another"
        )
    new = OuterLog.open(*here)
    if new.spec() is None:
        _copy_rounds(OuterLog.open(*there), new)
    with writing(f"run folder {run_dir}"):
        for slot in sorted(folder.glob("replicas/slot-*/")):
            target = run_dir / "replicas" / slot.name
            target.mkdir(parents=True, exist_ok=True)
            for file in (file for pattern in OWN for file in slot.glob(pattern)):
                _copy(file, target / file.name)
        _copy(folder / METRICS, run_dir / METRICS)


def _copy_rounds(old: OuterLog, new: OuterLog) -> None:
    """Copy states and rounds; a commit after all that it names, round after round."""
    keys = [entry.key for folder in ROUNDS for entry in old.store.list(folder)]
    commits = [f"rounds/{round_}/commit.json" for round_ in range(old.last_round() + 1)]
    there = {entry.key for folder in ROUNDS for entry in new.store.list(folder)}
    for key in [*(key for key in keys if key not in commits), *commits]:
        data = None if key in there else old.store.get(key)
        if data is not None:
            new.store.put(key, data)


def _copy(file: Path, target: Path) -> None:
    """Copy a file that the target folder lacks, so that it appears whole or not at all."""
    if file.is_file() and not target.exists():
        part = target.with_name(f".{target.name}.part")
        shutil.copyfile(file, part)
        part.replace(target)
