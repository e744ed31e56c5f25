#!/usr/bin/env bash
# What a lent machine runs, in the folder that `make gpu-day` made: bash run.sh OUT
# It has CUDA, torch, accelerate and pytest, and no network. Under ten minutes.
set -uo pipefail
out=$(realpath "$1"); mkdir -p "$out"; cd "$(dirname "$0")/tree" || exit 1
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
  --target /tmp/gpu-day ../wheels/*.whl || exit 1
export PYTHONPATH=/tmp/gpu-day:$PWD PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
export HF_HUB_OFFLINE=1 TRL_EXPERIMENTAL_SILENCE=1
python3 -c "from benchmarks.losses_gpu import machine; print(machine())" > "$out/machine.txt" || exit 1
timeout 180 python3 -m pytest -q -p no:cacheprovider -n 6 -rA --show-capture=stdout \
  tests/gpu -m gpu > "$out/tests.log" 2>&1
timeout 380 python3 -m benchmarks.losses_gpu --shapes 1.5B 7B --record "$out/losses_gpu.md" \
  > "$out/bench.log" 2>&1
tail -3 "$out/tests.log"; cat "$out/losses_gpu.md"
