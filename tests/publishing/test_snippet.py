"""The card's snippet, as it stands, against the Hub's stand-in: every row trains."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.dataset.manifest import read_build
from composer_pipeline.lake.store import Lake
from composer_pipeline.publishing.card import MODEL, card_files
from composer_pipeline.testing.hub.server import LoopbackHub
from composer_pipeline.testing.training import write_tiny_model
from composer_pipeline.training.models import SMOLLM2

pytestmark = pytest.mark.slow
REPO, TOKEN = "someone/agent-pairs", "hf_loopback"


class File(NamedTuple):
    config: str
    split: str
    local: Path


def upload(hub: LoopbackHub, repo: str, files: dict[str, bytes], kind: str) -> None:
    """Commit files with the client of the Hub itself."""
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi(endpoint=hub.endpoint, token=TOKEN)
    api.create_repo(repo, repo_type=kind, private=True)
    adds = [CommitOperationAdd(name, data) for name, data in files.items()]
    api.create_commit(repo, adds, commit_message="files", repo_type=kind)


def test_the_snippet_trains_on_every_row(
    whole_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    lake = Lake(shutil.copytree(whole_lake, tmp_path / "lake"))
    build_dataset(lake, tokenizer=SMOLLM2)
    build = read_build(lake)
    data = {file.path: lake.get_bytes(file.name) for file in build.files}
    files = [File(f.config, f.split, Path(lake.root) / f.name) for f in build.files]
    made = card_files(lake, REPO, build, files)
    model = write_tiny_model(tmp_path / "tiny")
    weights = {path.name: path.read_bytes() for path in model.iterdir()}
    snippet = re.findall(r"```python\n(.*?)```", made["README.md"].decode(), re.S)[0]
    with LoopbackHub(TOKEN) as hub:
        upload(hub, REPO, data | made, "dataset")
        upload(hub, MODEL, weights, "model")
        environment = os.environ | {
            "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "CUDA_VISIBLE_DEVICES": "",
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", snippet], cwd=tmp_path, env=environment, text=True,
            capture_output=True, timeout=600, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.splitlines()
    (told,) = [line for line in said if "rows kept" in line]
    kept, rows, equal = map(int, re.findall(r"\d+", told))
    assert rows == sum(f.rows for f in build.files if (f.config, f.split) == ("pairs_8k", "train"))
    assert rows > 10
    assert kept >= 0.99 * rows
    assert equal == 0
    # At the first step the model is its own reference; after one step it is not.
    margins = ast.literal_eval(said[-1])
    assert len(margins) == 2
    assert margins[1] != 0
