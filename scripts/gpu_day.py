"""Prepare a day on a lent CUDA machine, and record it: ``make gpu-day``.

    make gpu-day                                  # build/gpu-day, and the commands in order
    make gpu-day GPU_DAY_ARGS=--dry-run           # the sizes only
    make gpu-day GPU_DAY_ARGS="--record OUT"      # what came back into benchmarks/results/gpu.md

The machine has Python 3.12, torch 2.11 to 2.13, accelerate and pytest, no network, and keeps
nothing: everything else travels, at most 64 MiB. Wheels are those of constraints.txt.
"""

import argparse
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER, RECORD = ROOT / "build" / "gpu-day", ROOT / "benchmarks" / "results" / "gpu.md"
LIMIT = 64 * 2**20
#: What the trainer imports and such a machine lacks, or has in another version.
WHEELS = (
    "annotated-types", "dagster-pipes", "datasets", "dill", "fsspec", "httpcore2", "httpx2",
    "huggingface_hub", "jsonschema", "jsonschema-specifications", "msgspec", "multiprocess",
    "obstore", "orjson", "peft", "pydantic", "pydantic_core", "referencing", "rpds-py",
    "tokenizers", "transformers", "trl", "truststore", "typing-inspection", "zstandard",
)  # fmt: skip
TREE = (
    "composer_pipeline", "trainers", "recipes", "benchmarks", "pyproject.toml",
    "tests/gpu", "tests/places.py", "tests/trainers/trl/toy.py",
    "tests/trainers/trl/oracle.py",
)  # fmt: skip
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")
COMMANDS = """\
1. Carry {folder} to the machine (H100, H200, or 24 GB and more with --shapes 0.5B in run.sh).
2. There: bash run.sh OUT        # tests/gpu, then bench-losses-gpu; under ten minutes
3. Bring OUT back; here: make gpu-day GPU_DAY_ARGS="--record OUT"
Before it, without a GPU: COMPOSER_GPU_TESTS=cpu python -m pytest tests/gpu -m gpu
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Prepare or record; return 1 where what must travel is too large or a run failed."""
    parser = argparse.ArgumentParser(prog="make gpu-day", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="print sizes and commands only")
    parser.add_argument("--record", type=Path, help="folder that came back")
    options = parser.parse_args(argv)
    if options.record:
        text, failed = record(options.record)
        RECORD.write_text(text, encoding="utf-8")
        print(text)
        return int(failed)
    if options.dry_run:
        with tempfile.TemporaryDirectory() as folder:
            return _report(Path(folder))
    return _report(FOLDER)


def _report(folder: Path) -> int:
    """Fill a folder, print what it weighs and what to do; return 1 where it is too large."""
    prepare(folder)
    sizes = {part: size_of(folder / part) for part in ("wheels", "tree", "run.sh")}
    for part, size in sizes.items():
        print(f"{part:8} {size / 2**20:6.1f} MiB")
    whole = sum(sizes.values())
    fits = whole <= LIMIT
    verdict = "fits" if fits else "does not fit"
    print(f"together {whole / 2**20:6.1f} MiB of {LIMIT / 2**20:.0f}: {verdict}\n")
    print(COMMANDS.format(folder=FOLDER.relative_to(ROOT)))
    return int(not fits)


def prepare(folder: Path) -> None:
    """Fill ``folder`` with wheels for Python 3.12, the tree as committed, and the script."""
    (folder / "wheels").mkdir(parents=True, exist_ok=True)
    pinned = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    platforms = [f"--platform={name}_x86_64" for name in PLATFORMS]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:",
         "--python-version=3.12", "--implementation=cp", *platforms, f"--dest={folder / 'wheels'}",
         *(f"{name}=={pinned[name]}" for name in WHEELS)],
        check=True,
    )  # fmt: skip
    archive = subprocess.run(
        ["git", "archive", "HEAD", *TREE], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
        tree.extractall(folder / "tree", filter="data")
    script = (ROOT / "scripts" / "gpu_day.sh").read_text(encoding="utf-8")
    (folder / "run.sh").write_text(script, encoding="utf-8")


def pins(constraints: str) -> dict[str, str]:
    """Return the pinned version of each package of WHEELS."""
    found = dict(re.findall(r"^([\w.-]+)==(\S+)$", constraints, re.M))
    return {name: found[name] for name in WHEELS}


def size_of(path: Path) -> int:
    """Return the bytes of a file or of all files below a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def record(folder: Path) -> tuple[str, bool]:
    """Return the page of what came back, and whether a test failed or none ran."""
    machine = (folder / "machine.txt").read_text(encoding="utf-8").strip()
    log = (folder / "tests.log").read_text(encoding="utf-8").splitlines()
    ended = next((line for line in reversed(log) if re.search(r"\d (passed|failed)", line)), "")
    seen = [line for line in log if re.match(r"fp32|bf16|bytes a token|graphs|MiB", line)]
    failed = [line for line in log if line.startswith("FAILED")]
    text = (
        "# tests/gpu on a lent machine\n\n"
        f"`tests/gpu`, from the folder that `make gpu-day` prepares: {machine}.\n\n"
        f"{ended.strip('= ') or 'The tests did not end.'}\n\nWhat they measured:\n\n```\n"
        + "\n".join(dict.fromkeys([*seen, *failed])) + "\n```\n"
    )  # fmt: skip
    return text, bool(failed) or " passed" not in ended


if __name__ == "__main__":
    sys.exit(main())
