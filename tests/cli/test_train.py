"""``train`` through the command line: plans that fit or do not, and what is refused at once."""

import json
from pathlib import Path

import pytest
import yaml

from composer_pipeline.cli.__main__ import main
from composer_pipeline.cli.training import recipe_of
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import Settings
from composer_pipeline.testing.training import write_dataset
from composer_pipeline.training.plan import Device
from tests.places import ROOT

CONFIG = str(ROOT / "tests" / "fixtures" / "configs" / "smollm2-135m.json")


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train") / "lake"
    write_dataset(Lake(folder), rows=4)
    return folder


@pytest.fixture
def train(lake, tmp_path, capsys):
    """Run ``train`` with a recipe of these fields; return exit code, output and what was said."""

    def run(*options, **fields) -> tuple[int, str, str]:
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump({"name": "recipe", **fields}))
        code = 0
        try:
            main(["train", "--recipe", str(path), "--lake", str(lake), *map(str, options)])
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_a_plan_that_fits_and_one_that_does_not(train, lake):
    plan = ("--plan", "--model-config", CONFIG, "--memory-gib")
    code, out, err = train(*plan, 8, "--json", micro_batch_tokens=2048)
    assert code == 0, err
    found = json.loads(out)
    assert found["rows"] == {"grpo": 4, "sdpo": 4, "dpo": 4, "sft": 4}
    assert 1 < found["peak_gib"] < found["limit_gib"] == 8
    assert (found["lengths"], found["where"]) == ("assumed", "--memory-gib")
    code, out, err = train(*plan, 3, micro_batch_tokens=2048)
    assert (code, out) == (2, "")
    assert "--memory-gib has 3.0 GiB: with activation_checkpointing: true" in err
    assert len(err.strip().splitlines()) == 1
    assert not (lake / "runs").exists(), "a plan without its model leaves nothing"


def adapter(folder: Path) -> str:
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    return str(folder)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "./nowhere"}, "model './nowhere': no such folder"),
        ({"lora": {"targets": ["q_proj", "lm_head"]}}, "lora: targets has lm_head"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"learning_rate": float("inf")}, "learning_rate"),
        ({"trainer": "verl"}, "trainer"),
        ({"steps": 2, "epochs": 1}, "steps and epochs both set the length of the run"),
        ({"start_from": "./gone"}, "start_from './gone': no such folder"),
        ({"channels": {"sdpo": {"teacher": "student"}}}, "channels.sdpo.teacher"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_what_is_refused_before_anything_starts(train, lake, fields, said):
    code, out, err = train(**fields)
    assert (code, out) == (2, ""), err
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert not (lake / "runs").exists()


def test_an_adapter_is_no_model(train, tmp_path):
    code, _, err = train(model=adapter(tmp_path / "adapter"))
    assert code == 2
    assert "is an adapter; give the model it was trained on as model" in err


def test_options_of_a_plan_without_plan(train):
    for option in (("--probe",), ("--memory-gib", 3), ("--model-config", CONFIG)):
        code, _, err = train(*option)
        assert code == 2
        assert "need --plan" in err


@pytest.mark.parametrize(
    ("given", "own", "gpus", "taken", "told"),
    [
        ("", "", 0, "smollm2-cpu.yaml", True),
        ("", "", 1, "default.yaml", False),
        ("mine.yaml", "", 0, "mine.yaml", False),
        ("", "ours.yaml", 0, "ours.yaml", False),
    ],
)
def test_without_a_gpu_the_recipe_for_a_cpu_is_taken(
    monkeypatch, capsys, given, own, gpus, taken, told
):
    monkeypatch.setattr(
        "composer_pipeline.training.plan.devices",
        lambda: [Device(str(n), 1) for n in range(gpus)],
    )
    settings = Settings(train=own) if own else Settings()
    assert Path(recipe_of(given, settings)).name == taken
    assert ("no GPU here" in capsys.readouterr().err) is told
