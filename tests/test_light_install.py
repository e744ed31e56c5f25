"""Without any extra: sessions in, training columns out, and no heavy library in sight."""

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.places import ROOT

#: What the extras bring, by the names that one imports.
HEAVY = {
    "torch", "trl", "transformers", "peft", "accelerate", "datasets", "safetensors", "gguf",
    "dagster", "dagster_webserver", "dotenv", "ray", "data_juicer", "sklearn", "scipy", "pandas",
    "krippendorff", "huggingface_hub", "obstore", "psycopg", "betterleaks",
    "openenv",
}  # fmt: skip

SCRIPT = """
import json, sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HEAVY:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

HEAVY = set(json.loads(sys.argv[1]))
sys.meta_path.insert(0, Missing())
from composer_pipeline.cli.__main__ import main
from composer_pipeline.settings import recipes_dir
from composer_pipeline.testing.samples import sample_sessions_dir
from examples.demo.profile import loopback

def run(*arguments):
    try:
        main([*arguments, "--json"])
    except SystemExit as left:
        if left.code:
            raise

teachers = ["--teachers", str(recipes_dir() / "teachers" / "demo.yaml"), "--day", "2026-11-16"]
run("init")
run("ingest", str(sample_sessions_dir()))
run("plan", *teachers)
with loopback():
    run("replay", *teachers, "--max-usd", "1")
run("pairs")
run("statistics")
run("normalize", "--recipe", "none")
run("dataset")
run("report")
for form in ("dpo", "kto", "sft", "sdpo"):
    run("export", "--format", form, "--out", form + ".parquet")
run("status")
run("verify")
loaded = {name.partition(".")[0] for name in sys.modules}
print(json.dumps({"loaded": sorted(loaded & HEAVY)}))
"""


@pytest.mark.slow
def test_ingest_to_export_without_an_extra(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("COMPOSER_")}
    env |= {"PYTHONPATH": str(ROOT), "COMPOSER_ENV_FILE": str(tmp_path / ".env")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(sorted(HEAVY))],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said: list[Any] = [json.loads(line) for line in done.stdout.splitlines()]
    assert said[-1] == {"loaded": []}
    assert said[-2]["problems"] == []
    exports = [one for one in said if one.get("format")]
    assert [one["format"] for one in exports] == ["dpo", "kto", "sft", "sdpo"]
    assert all(one["rows"] for one in exports)
    assert (tmp_path / "lake" / "dataset_pairs").is_dir()


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_dependencies_bring_nothing_heavy_along() -> None:
    """Nor does what they need: the whole tree of requirements, as installed here."""
    heavy = {name.replace("_", "-") for name in HEAVY} | {"scikit-learn", "py-data-juicer"}
    seen: set[str] = set()
    left = [Requirement(line) for line in project()["dependencies"]]
    while left:
        one = left.pop()
        name = one.name.lower().replace("_", "-")
        if name in seen or (one.marker and not one.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        try:
            left += [Requirement(line) for line in requires(name) or ()]
        except PackageNotFoundError:
            continue
    assert seen & heavy == set()


@pytest.mark.parametrize("extra", list(project()["optional-dependencies"]))
def test_the_usage_page_says_what_an_extra_brings(extra: str) -> None:
    assert f"| `{extra}` |" in (ROOT / "docs" / "usage.md").read_text()
