"""``night``, ``models``, ``promote`` and ``rollback``, from session files to the Hub."""

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from composer_pipeline.cli.__main__ import main
from composer_pipeline.lake.store import Lake
from composer_pipeline.nights.learner import ProcessLearner
from composer_pipeline.states.load import load_states
from composer_pipeline.testing.hub.repository import Repo
from composer_pipeline.testing.hub.server import LoopbackHub
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.training.run import write_recipe
from examples.proof.arms import recipe_of
from examples.proof.toolworld.pipeline import Plan, loopback, recorded_sessions
from examples.proof.toolworld.world import (
    KEY_VARIABLE,
    ToolworldScript,
    teacher_set,
    write_files,
    write_session,
)

REPO = "someone/nights"
#: Replies are bought for days of the last month.
DAY = str(datetime.now(UTC).date() - timedelta(days=2))
Run = Callable[..., tuple[int, dict[str, Any], str]]


def train(self: ProcessLearner, data: Lake, recipe: Any) -> tuple[Path, dict[str, float]]:
    """Stand in for a training: a folder of weights."""
    folder = self.run_root / recipe.name / "checkpoint"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n# night\n")
    (folder / "composer.json").write_text(json.dumps({"simulated": {}}))
    (folder / "model.safetensors").write_bytes(recipe.name.encode())
    return folder, {"sft_loss_first": 2.0, "sft_loss_last": 1.0}


def measure(self: ProcessLearner, _: Any, weights: str, states: Any) -> dict[str, float]:
    """Every answer of a trained model is right, and those of its base but at mistakes."""
    return {s.state_id: float("night-" in weights or s.kind[:4] != "hard") for s in states}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, LoopbackHub]]:
    """Sessions of two days ago, their teachers on this machine, recipes, and a Hub."""
    folder = tmp_path_factory.mktemp("nights")
    drawn, answered = recorded_sessions(Plan(3, 64, "full", 0))
    written = [write_session(r, f"n-{i}", f"{DAY}T09:00") for i, r in enumerate(drawn)]
    answers = {
        m: a for w, of in zip(written, answered, strict=True)
        for m, a in zip(w.truth, of, strict=True)
    }  # fmt: skip
    write_files(written, folder / "projects")
    scratch = Lake(str(folder / "scratch"))
    ingest(scratch, [folder / "projects"])
    recipe = recipe_of({"sft": {"source": "both"}}, name="small")
    write_recipe(recipe, folder)
    (folder / "preferences.yaml").write_text(
        "accept: [style, lengths, variety, anywhere, checks]\n"
    )
    script = ToolworldScript(load_states(scratch), answers)
    with loopback(script) as url, LoopbackHub() as hub:
        teachers = teacher_set(url).model_dump(mode="json", exclude_none=True)
        (folder / "teachers.yaml").write_text(yaml.safe_dump(teachers))
        (folder / "key").write_text(os.environ[KEY_VARIABLE])  # each test begins without it
        yield folder, hub


@pytest.fixture
def night(world: tuple[Path, LoopbackHub], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Run:
    """Run a command on the lake of this file; return code, JSON and what was said."""
    folder, hub = world
    monkeypatch.setattr(ProcessLearner, "train", train)
    monkeypatch.setattr(ProcessLearner, "measure", measure)
    settings = {
        "LAKE": folder / "lake", "SESSIONS": folder / "projects", "MODEL_REPO": REPO,
        "TEACHERS": folder / "teachers.yaml", "TRAIN": folder / "recipe.yaml",
        "PREFERENCES": folder / "preferences.yaml", "PUBLISH_SIMULATED": "1",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(f"COMPOSER_{name}", str(value))
    monkeypatch.setenv(KEY_VARIABLE, (folder / "key").read_text())
    for name, value in {"HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.endpoint)  # read at import
    monkeypatch.setenv("HF_TOKEN", hub.token)

    def run(*arguments: str) -> tuple[int, dict[str, Any], str]:
        code = 0
        try:
            main([*arguments, "--json"])
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else {}, err

    return run


def served(hub: LoopbackHub, revision: str) -> bytes | None:
    """Return the weights that a branch or a tag of the repository holds."""
    repo: Repo = hub.models[REPO]
    commit = repo.find(revision)
    return commit.files.get("model.safetensors") if commit else None


@pytest.mark.slow
def test_nights_from_sessions_to_the_hub(night: Run, world: tuple[Path, LoopbackHub]) -> None:
    folder, hub = world
    code, _, said = night("night", "--dry-run")
    assert (code, (folder / "lake").exists()) == (2, False)
    assert "is not a lake" in said
    assert night("night", "--max-usd", "-1")[0] == 2

    # Too few are held out for any model to pass; the same day goes on with a larger share.
    recipe = folder / "preferences.yaml"
    accepted = recipe.read_text()
    recipe.write_text(accepted + "split: {validation_share: 0.05}\n")
    code, early, said = night("night", "--max-usd", "1")
    assert (code, early["outcome"], early["version"]) == (0, "too few", None), said
    assert "with fewer than 10 no model can be promoted" in early["why"][0]
    assert "No model was trained." in Path(early["page"]).read_text()
    assert night("models")[0] == 2
    recipe.write_text(accepted)

    code, first, said = night("night", "--max-usd", "1")
    assert code == 0, said
    assert first["usd"] == early["usd"], "nothing is bought twice"
    assert (code, first["outcome"], first["version"], first["parent"]) == (0, "promoted", 1, 0)
    assert first["usd"] > 0
    assert first["simulated"]
    assert first["losses"] == {"sft": [2.0, 1.0]}
    name = f"night-{first['night']}".encode()
    assert served(hub, "main") == served(hub, "v1") == name
    assert not list((folder / "lake" / "runs" / "nights").glob("*"))
    page = Path(first["page"]).read_text()
    assert first["why"][0] in page
    assert "(simulated)" in page

    assert night("night")[1] == first  # one night a day
    code, found, _ = night("models")
    assert [v["decision"] for v in found["versions"]] == ["first", "promoted"]
    assert (found["current"], [m["to"] for m in found["moves"]]) == (1, [0, 1])

    code, moved, _ = night("rollback", "--why", "slower")
    assert (code, moved["version"]) == (0, 0)
    assert night("rollback")[0] == 2
    code, moved, _ = night("promote", "1")
    assert (moved["version"], served(hub, "main")) == (1, name)
    code, _, said = night("promote", "7")
    assert (code, "no model version 7" in said) == (2, True)
    code, _, said = night("night", "--accept", first["night"])
    assert (code, "only a night that was held" in said) == (2, True)


def test_a_bad_rule_names_file_line_and_field(tmp_path: Path, capsys: Any) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("gate:\n  alpha: 2\n")
    with pytest.raises(SystemExit) as stop:
        main(["night", "--rules", str(rules), "--lake", str(tmp_path / "lake")])
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert "rules.yaml: line 2" in said
    assert "gate.alpha" in said
    assert not (tmp_path / "lake").exists()
