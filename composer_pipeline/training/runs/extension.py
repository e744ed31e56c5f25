"""A finished run that goes on: the longer run's recipe, and what it must have in common with it.

Belongs here: recipes and their comparison. Does not belong here: taking over what the earlier run
left (``trainers.trl.extending``).

The longer run has a folder of its own; the earlier one stays as it is.
"""

import json
from pathlib import Path
from typing import Any

from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.errors import InputError
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.runs.content import Content

RECIPE, RESULT = "recipe.yaml", "composer.json"


def earlier(run_dir: Path) -> tuple[TrainingRecipe, dict[str, Any]]:
    """Return a finished run's recipe and its result.

    Raises:
        InputError: the folder holds no finished run.
    """
    if not (run_dir / RESULT).is_file():
        raise InputError(
            f"{run_dir} holds no finished training run: only such a one can be extended; one that"
            " was interrupted goes on with the command that began it"
        )
    result: dict[str, Any] = json.loads((run_dir / RESULT).read_text(encoding="utf-8"))
    return TrainingRecipe.load(run_dir / RECIPE), result


def run_content(name: str) -> Content:
    """Return what a recipe's ``extends`` is now: the last state that the run committed.

    Raises:
        InputError: it is no finished run.
    """
    run_dir = Path(name).expanduser()
    _, result = earlier(run_dir)
    return Content(run_dir.name, "run", f"sha256:{result['commits'][-1]['state_sha']}")


def extended(run_dir: str | Path, rounds: int) -> TrainingRecipe:
    """Return the recipe of a finished run, to be trained on to ``rounds`` rounds in all.

    It keeps the outer step of the earlier run, also where a longer one would have another by
    default.

    Raises:
        InputError: no finished run, or not more rounds than it has.
    """
    folder = Path(run_dir).expanduser().absolute()
    recipe, _ = earlier(folder)
    if rounds <= recipe.rounds:
        raise InputError(
            f"--rounds {rounds}: {folder.name} has {recipe.rounds} rounds already; say how many it"
            " shall have in all"
        )
    lr, momentum = outer_of(recipe)
    changed = {
        "rounds": rounds, "run_id": "", "outer_lr": lr, "outer_momentum": momentum,
    }  # fmt: skip
    diloco = recipe.diloco.model_copy(update=changed)
    update = {"extends": str(folder), "diloco": diloco, "steps": None, "epochs": None}
    return recipe.model_copy(update=update)


def outer_of(recipe: TrainingRecipe) -> tuple[float, float]:
    """Return the outer learning rate and momentum of a recipe whose length is known."""
    options = recipe.diloco
    lr, momentum = options.outer_numbers
    return DiLoCoSpec(
        rounds=recipe.rounds, inner_steps=options.inner_steps, replicas=options.replicas,
        fragments=options.fragments, min_quorum=options.min_quorum, outer_lr=lr,
        outer_momentum=momentum,
    ).outer  # fmt: skip


def require_continues(recipe: TrainingRecipe, base: str, rows: str) -> TrainingRecipe:
    """Return the recipe of the run that a recipe extends.

    Args:
        recipe: with its length resolved; its ``extends`` is set.
        base: digest of its model now.
        rows: digest of its training rows now.

    Raises:
        InputError: it differs from the earlier run in more than its length; names the field.
    """
    name = Path(recipe.extends).name
    before, result = earlier(Path(recipe.extends))
    if recipe.rounds <= before.rounds:
        raise InputError(
            f"recipe field diloco.rounds: {recipe.rounds}, and {name}, which it extends, has"
            f" {before.rounds} already"
        )
    same = {"model": (result["base"]["digest"], base), "rows": (result["dataset_sha"], rows)}
    for what, (then, now) in same.items():
        if then != now:
            raise InputError(
                f"{name} cannot be extended: its {what} have changed since; train anew, or with its"
                " adapter as start_from"
            )
    if outer_of(before) != outer_of(recipe):
        raise InputError(
            f"recipe fields diloco.outer_lr and diloco.outer_momentum are {outer_of(recipe)}, and"
            f" {name}, which it extends, has {outer_of(before)}: say so in the recipe"
        )
    then, now = json.loads(before.agreed()), json.loads(recipe.agreed())
    if odd := next((field for field in then if then[field] != now.get(field)), ""):
        raise InputError(
            f"recipe field {odd} is {now.get(odd)!r}, and {name}, which it extends, has"
            f" {then[odd]!r}: an extended run keeps what it began with; start_from begins another"
        )
    return before
