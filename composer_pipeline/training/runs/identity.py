"""What makes two runs the same: recipe, training rows and the code that trains.

Belongs here: hashes. Does not belong here: running anything.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.training.data import tables_of
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.trainer import Trainer

#: The library's own code that decides what comes out of a training, below its folder.
LIBRARY = (
    "losses", "diloco", "training/data", "training/windows", "training/rewards.py",
    "training/models.py",
)  # fmt: skip


def fingerprint(lake: Lake, recipe: TrainingRecipe, trainer: Trainer) -> str:
    """Return the identity of a run: recipe, training rows and code, 12 hexadecimal digits.

    Raises:
        InputError: the trainer names code that is not there.
    """
    for path in trainer.code():
        if not path.exists():
            raise InputError(f"trainer {trainer.name!r} names code that is not there: {path}")
    digest = hashlib.blake2b(digest_size=6)
    digest.update(recipe.model_dump_json().encode())
    digest.update(dataset_digest(lake, recipe).encode())
    library = Path(__file__).parents[2]
    for name, path in files_of([*(library / part for part in LIBRARY), *trainer.code()]):
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


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
    channels = sorted(recipe.channels.weights())
    digest.update("\0".join(channels).encode())
    for table in tables_of(channels):
        path = lake.path(table, split=split).removeprefix(lake.root + "/")
        digest.update(f"\0{table}\0".encode())
        digest.update(lake.get_bytes(path) if lake.exists(path) else b"")
    return digest.hexdigest()
