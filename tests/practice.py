"""Commands of pages, typed as a reader would, in the practice shell."""

import os
import subprocess
import sys
from pathlib import Path

import yaml

from composer_pipeline.settings import recipes_dir
from composer_pipeline.testing.training import write_tiny_model
from tests.places import ROOT


def practise(folder: Path, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run commands in a folder; they must end well.

    The model alone is another, random and small, in ``model``, and one replica trains it.
    """
    recipe = yaml.safe_load((recipes_dir() / "train" / "demo.yaml").read_text())
    recipe["model"] = str(write_tiny_model(folder / "model"))
    recipe["diloco"] = {"replicas": 1, "rounds": 1, "inner_steps": 2}
    (folder / "train.yaml").write_text(yaml.safe_dump(recipe))
    for name in ("recipes", "examples", "trainers", "assets"):
        (folder / name).symlink_to(ROOT / name)
    # The tests' own is no file, and `init` writes there.
    inherited = {name: value for name, value in os.environ.items() if name != "COMPOSER_ENV_FILE"}
    train = {"PYTHONPATH": str(ROOT), "COMPOSER_TRAIN": str(folder / "train.yaml")}
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo.shell", "bash", "-euxo", "pipefail", "-c", script],
        cwd=folder, env={**inherited, **train, **env}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done
