"""The wheel holds the library, the trainers, the Dagster definitions and the recipes, and works."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import yaml

from composer_pipeline.testing.training import write_tiny_model
from tests.fixtures.whole_lake import make_whole_lake
from tests.places import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(ROOT)], check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"composer_pipeline", "assets", "trainers"}
    recipes = ("teachers/default.yaml", "normalize/default.yaml", "train/demo.yaml")
    for name in ("prices.yaml", *recipes):
        assert f"composer_pipeline/_recipes/{name}" in names
    assert {"composer_pipeline/py.typed", "assets/definitions.py"} <= set(names)
    assert {f"composer_pipeline/view/static/view.{kind}" for kind in ("html", "js", "css")} <= {
        *names
    }
    assert sum(name.endswith(".jsonl") for name in names) >= 12


@pytest.mark.slow
def test_an_installed_wheel_trains_and_has_the_definitions(wheel: Path, tmp_path: Path) -> None:
    """In an environment that has the dependencies, but neither this checkout nor its install."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    # A path file of a path file is not read, so the editable install stays out.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", str(site), str(wheel)], check=True)
    lake = make_whole_lake(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"COMPOSER_LAKE": str(lake)}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [python, *arguments], cwd=empty, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    where = (
        "import trainers.trl, assets, composer_pipeline as c; print(c.__file__, assets.__file__)"
    )
    assert all(part.startswith(str(site)) for part in run("-c", where).split())
    # What it ships, with a small random model: the real one has its own test.
    shipped = site / "composer_pipeline" / "_recipes" / "train" / "smoke.yaml"
    model = {"model": str(write_tiny_model(tmp_path / "model"))}
    recipe = tmp_path / "smoke.yaml"
    recipe.write_text(yaml.safe_dump(yaml.safe_load(shipped.read_text()) | model))
    assert '"steps"' in run(
        "-m", "composer_pipeline.cli", "train", "--recipe", str(recipe), "--json"
    )
    run("-m", "dagster", "definitions", "validate", "-m", "assets.definitions")


def test_every_extra_and_pin_resolve_to_one_version(root: Path) -> None:
    pins: dict[str, str] = {}
    for line in (root / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            assert version, line
            assert name not in pins, line
            pins[name] = version
    assert pins["torch"] == "2.13.0"
