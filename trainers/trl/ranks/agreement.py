"""What the ranks of a replica must have in common before they train.

Belongs here: naming it, with digests. Does not belong here: comparing (``Ranks.same``).
"""

import hashlib
from pathlib import Path

from composer_pipeline.diloco.spec import identity_by_name
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.runs.content import file_digest


def facts_of(identity: str, run_dir: Path, recipe: TrainingRecipe) -> dict[str, str]:
    """Return digests by name: of base model and recipe, rows, and the base model's scores.

    Args:
        identity: as from ``trainers.trl.policy.loading.base_identity``: names and digests in turn.
        run_dir: holds rows and scores.
        recipe: of the run.
    """
    return {
        **identity_by_name(identity),
        "ranks": recipe.ranks.model_dump_json(),
        "rows": _digest(run_dir / "data"),
        "scores of the base model": _digest(run_dir / "base"),
    }


def _digest(folder: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(folder)}\0{file_digest(path)}\0".encode())
    return digest.hexdigest()
