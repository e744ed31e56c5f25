"""What makes two runs the same: recipe, model, training rows and the code that trains.

Belongs here: hashes. Does not belong here: running anything.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from composer_pipeline.errors import InputError
from composer_pipeline.lake import TABLES, Lake
from composer_pipeline.training.data import tables_of
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.runs.content import adapter_content, model_content
from composer_pipeline.training.runs.extension import run_content
from composer_pipeline.training.trainer import Trainer

#: The library's own code that decides what comes out of a training, below its folder.
LIBRARY = (
    "losses", "diloco", "training/data", "training/windows", "training/rewards",
    "training/models.py", "training/hub_models.py",
)  # fmt: skip


#: File of a run folder with what is behind the recipe's names, and what it holds:
#: field of the recipe to :class:`~composer_pipeline.training.runs.content.Content`.
CONTENTS = "contents.json"
Contents = dict[str, dict[str, str]]


def fingerprint(lake: Lake, recipe: TrainingRecipe, trainer: Trainer) -> str:
    """Return the identity of a run, 12 hexadecimal digits.

    It covers the recipe, the content of its model and of the adapter it starts from, the
    training rows, the code that trains, and the versions of the modules that the trainer
    says it needs.

    Raises:
        InputError: the trainer names code that is not there, or the model cannot be found.
    """
    for path in trainer.code():
        if not path.exists():
            raise InputError(f"trainer {trainer.name!r} names code that is not there: {path}")
    digest = hashlib.blake2b(digest_size=6)
    digest.update(recipe.model_dump_json().encode())
    digest.update(dataset_digest(lake, recipe).encode())
    digest.update(json.dumps([contents(recipe), versions(trainer)]).encode())
    library = Path(__file__).parents[2]
    for name, path in files_of([*(library / part for part in LIBRARY), *trainer.code()]):
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def contents(recipe: TrainingRecipe) -> Contents:
    """Return what is behind the names in a recipe: ``model``, ``start_from``, ``extends``.

    Raises:
        InputError: one of them cannot be found.
    """
    found = {"model": model_content(recipe.model)}
    if recipe.start_from:
        found["start_from"] = adapter_content(recipe.start_from)
    if recipe.extends:
        found["extends"] = run_content(recipe.extends)
    return {name: content.to_dict() for name, content in found.items()}


def versions(trainer: Trainer) -> dict[str, str]:
    """Return the installed versions of the modules that a trainer needs."""
    out = {}
    for module in sorted(trainer.capabilities().modules):
        try:
            out[module] = version(module)
        except PackageNotFoundError:
            out[module] = ""
    return out


def files_of(code: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Yield (name, file): files as they are, folders with every ``*.py`` below, by name.

    A name begins with that of the file or folder that was given, so that the same code in
    another place is the same code.
    """
    for given in code:
        if given.is_dir():
            for path in sorted(given.rglob("*.py")):
                yield f"{given.name}/{path.relative_to(given).as_posix()}", path
        else:
            yield given.name, given


def dataset_digest(lake: Lake, recipe: TrainingRecipe, *, split: str = "train") -> str:
    """Return a hash of the Parquet bytes of a split of the weighted channels' tables."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update("\0".join(sorted(recipe.channels.weights())).encode())
    for table in tables_of(recipe.channels):
        path = lake.path(table, split=split).removeprefix(lake.root + "/")
        digest.update(f"\0{table}\0".encode())
        digest.update(lake.get_bytes(path) if lake.exists(path) else b"")
    return digest.hexdigest()


def simulated_rows(lake: Lake, recipe: TrainingRecipe, *, split: str = "train") -> dict[str, int]:
    """Return how many rows of each table that is trained on come from a simulated teacher."""
    out = {}
    for name in tables_of(recipe.channels):
        if "simulated" in TABLES[name].schema.names:
            rows = lake.rows(name, columns=["simulated"], split=split)
            out[name] = sum(bool(row["simulated"]) for row in rows)
    return out
