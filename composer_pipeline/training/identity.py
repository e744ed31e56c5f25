"""What makes two runs the same: recipe, training rows and the code that trains.

Belongs here: hashes. Does not belong here: running anything.
"""

import hashlib
from pathlib import Path

from composer_pipeline.lake.store import Lake
from composer_pipeline.training.data import TABLE_OF
from composer_pipeline.training.recipe import TrainingRecipe


def fingerprint(lake: Lake, recipe: TrainingRecipe) -> str:
    """Return the identity of a run: recipe, training rows and code, 12 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=6)
    digest.update(recipe.model_dump_json().encode())
    digest.update(dataset_digest(lake, recipe).encode())
    root = repo_root()
    for folder in ("composer_pipeline/losses", "composer_pipeline/diloco", "trainers/trl"):
        for path in sorted((root / folder).glob("*.py")):
            digest.update(path.read_bytes())
    for name in ("data.py", "windows.py", "rewards.py", "models.py"):
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()


def dataset_digest(lake: Lake, recipe: TrainingRecipe, *, split: str = "train") -> str:
    """Return a hash of the Parquet bytes of a split of the weighted channels' tables."""
    digest = hashlib.blake2b(digest_size=16)
    for channel in sorted(recipe.channels.weights()):
        path = lake.path(TABLE_OF[channel], split=split).removeprefix(lake.root + "/")
        digest.update(channel.encode())
        digest.update(lake.get_bytes(path) if lake.exists(path) else b"")
    return digest.hexdigest()


def repo_root() -> Path:
    """Return the folder that ``composer_pipeline`` lies in."""
    return Path(__file__).resolve().parents[2]
