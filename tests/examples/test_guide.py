"""The guide, word for word: each of its commands, in order, in the practice shell."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from composer_pipeline.settings import recipes_dir
from composer_pipeline.testing.training import write_tiny_model
from tests.places import ROOT

GUIDE = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
COMMANDS = "\n".join(re.findall(r"^```bash\n(.*?)^```$", GUIDE, re.M | re.S))


@pytest.mark.slow
def test_every_command_of_the_guide_runs(tmp_path: Path) -> None:
    """The model alone is another, random and small, and one replica trains it."""
    recipe = yaml.safe_load((recipes_dir() / "train" / "demo.yaml").read_text())
    recipe["model"] = str(write_tiny_model(tmp_path / "model"))
    recipe["diloco"] = {"replicas": 1, "rounds": 1, "inner_steps": 2}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(recipe))
    for name in ("recipes", "examples", "trainers", "assets"):
        (tmp_path / name).symlink_to(ROOT / name)
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo.shell", "bash", "-euxo", "pipefail", "-c", COMMANDS],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "COMPOSER_TRAIN": str(tmp_path / "train.yaml"),
            "OPENROUTER_API_KEY": "sk-or-must-not-be-passed-on",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (run,) = (tmp_path / "build" / "practice" / "runs").glob("*/checkpoint/..")
    assert (run / "checkpoint" / "adapter_model.safetensors").is_file()
    assert (run / "evaluation.json").is_file()
    assert {file.name for file in (tmp_path / "build/kto").iterdir()} == {
        "train.parquet", "validation.parquet",
    }  # fmt: skip
    assert "must-not-be-passed-on" not in done.stdout + done.stderr


def test_the_guide_names_every_command_that_makes_something() -> None:
    stages = "ingest sessions states state plan replay pairs statistics normalize dataset train"
    for stage in f"{stages} evaluate publish export budget doctor".split():
        assert re.search(rf"composer-pipeline {stage}\b", COMMANDS), stage
