"""The built-in backend: what it can do, and its command.

Belongs here: facts about ``trainers.trl`` that need no torch. Does not belong here: training.
"""

from collections.abc import Sequence
from pathlib import Path

from composer_pipeline.training.checkout import repo_root
from composer_pipeline.training.trainer import Capabilities


class TRL:
    """``python -m trainers.trl``: every channel, on CPU or one GPU a replica."""

    name = "trl"

    def capabilities(self) -> Capabilities:
        """Every channel, with DiLoCo; GRPO on recorded answers is a surrogate."""
        install = "pip install 'composer-pipeline[train]'"
        return Capabilities(
            channels={"grpo": "surrogate", "sdpo": "exact", "dpo": "exact", "sft": "exact"},
            diloco=True,
            modules=dict.fromkeys(("torch", "trl", "peft", "transformers"), install),
        )

    def command(self, python: str, recipe: Path, lake: str, run_dir: Path) -> Sequence[str]:
        """Return ``python -m trainers.trl --recipe … --lake … --run-dir …``."""
        options = ["--recipe", str(recipe), "--lake", lake, "--run-dir", str(run_dir)]
        return [python, "-m", "trainers.trl", *options]

    def merge_command(self, python: str, run_dir: Path) -> Sequence[str]:
        """Return ``python -m trainers.trl.checkpoints.merge --run-dir …``."""
        return [python, "-m", "trainers.trl.checkpoints.merge", "--run-dir", str(run_dir)]

    def plan_command(self, python: str, recipe: Path, lake: str, run_dir: Path) -> Sequence[str]:
        """Return ``python -m trainers.trl.plan --recipe … --lake … --run-dir …``."""
        options = ["--recipe", str(recipe), "--lake", lake, "--run-dir", str(run_dir)]
        return [python, "-m", "trainers.trl.plan", *options]

    def code(self) -> Sequence[Path]:
        """Return the folder ``trainers/trl``."""
        return [repo_root() / "trainers" / "trl"]
