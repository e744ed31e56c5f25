"""What the ranks of a replica must have in common before they train.

Belongs here: naming it, with digests. Does not belong here: comparing (``Ranks.same``).
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from composer_pipeline.training.recipe import TrainingRecipe


def facts_of(identity: str, run_dir: Path, recipe: TrainingRecipe) -> dict[str, str]:
    """Return digests by name: of base model and recipe, rows, and the base model's scores.

    Args:
        identity: as from ``trainers.trl.policy.loading.base_identity``: names and digests in turn.
        run_dir: holds rows and scores.
        recipe: of the run.
    """
    words = identity.split()
    return {
        **dict(zip(words[::2], words[1::2], strict=True)),
        "ranks": recipe.ranks.model_dump_json(),
        "rows": _digest(run_dir / "data"),
        "scores of the base model": _digest(run_dir / "base"),
    }


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in _files(folder):
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    yield from (path for path in sorted(folder.rglob("*")) if path.is_file())
