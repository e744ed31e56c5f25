"""The wheel holds the library, its sample sessions and the recipes, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path


def test_wheel(root: Path, tmp_path: Path) -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--wheel-dir", str(tmp_path), str(root)),
        ],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"composer_pipeline"}
    for name in ("teachers/default.yaml", "normalize/default.yaml", "train/demo.yaml"):
        assert f"composer_pipeline/_recipes/{name}" in names
    assert "composer_pipeline/py.typed" in names
    assert sum(name.endswith(".jsonl") for name in names) >= 12


def test_every_extra_and_pin_resolve_to_one_version(root: Path) -> None:
    pins: dict[str, str] = {}
    for line in (root / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            assert version, line
            assert name not in pins, line
            pins[name] = version
    assert pins["torch"] == "2.13.0"
