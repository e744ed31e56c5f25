"""``make proof-gpu``: the proof with a real model on one GPU, and its step beside TRL's trainers.

    python -m examples.proof.gpu --model Qwen/Qwen2.5-0.5B-Instruct --arms sft,shipped,culprit

Every other option is one of ``proof.run``, whose default arms it takes, with one seed;
``report.md`` below ``--out`` ends with the steps. A run that was killed goes on with what is
missing.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from composer_pipeline.errors import InputError
from composer_pipeline.training.models import resolve_model
from composer_pipeline.training.registry import repo_root
from examples.proof import run
from examples.proof.report import STEPS_BESIDE

#: That of recipes/train/gpu-24gb.yaml, whose memory is predicted for 24 GB.
MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
GRID = ("--seeds", "1")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the steps, then run the grid; exit 2 without a device or a model."""
    options, grid = _options(argv)
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write("proof-gpu: no CUDA device here, so nothing was run\n")
        return 2
    try:
        folder = resolve_model(options.model)
    except InputError as error:
        sys.stderr.write(f"proof-gpu: {error}; name a folder or a Hub id with --model\n")
        return 2
    steps = options.out / STEPS_BESIDE
    if not (steps.is_file() and f" {options.model} " in steps.read_text(encoding="utf-8")):
        options.out.mkdir(parents=True, exist_ok=True)
        script = repo_root() / "benchmarks" / "model_steps.py"
        command = [sys.executable, str(script), folder, "--name", options.model]
        command += ["--record", str(steps.absolute()), "--prompts", *options.prompts.split(",")]
        command += ["--cpu"] if options.device == "cpu" else []
        if code := subprocess.run(command, cwd=repo_root(), check=False).returncode:
            sys.stderr.write(f"proof-gpu: the steps beside TRL's ended with exit code {code}\n")
            return 1
    student = ["--model", options.model, "--lora", str(options.lora), "--dtype", options.dtype]
    return run.main([*GRID, "--out", str(options.out), *student, *grid])


def _options(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="make proof-gpu", description=__doc__)
    parser.add_argument("--model", default=MODEL, help=f"folder or Hub id ({MODEL})")
    parser.add_argument("--lora", type=int, default=16, help="rank (16)")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--out", type=Path, default=Path("proof-gpu"))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try it")
    parser.add_argument("--prompts", default="1024,4096", help="tokens of the steps' prompts")
    return parser.parse_known_args(argv)


if __name__ == "__main__":
    sys.exit(main())
