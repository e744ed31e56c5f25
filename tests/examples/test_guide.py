"""The guide, word for word: each of its commands, in order, in the practice shell."""

import re
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.practice import practise

GUIDE = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
COMMANDS = "\n".join(re.findall(r"^```bash\n(.*?)^```$", GUIDE, re.M | re.S))


@pytest.mark.slow
def test_every_command_of_the_guide_runs(tmp_path: Path) -> None:
    done = practise(tmp_path, COMMANDS, OPENROUTER_API_KEY="sk-or-must-not-be-passed-on")
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
