"""Seconds of a DiLoCo round for which training stands still, waiting and overlapped.

    python benchmarks/diloco_overlap.py [--record]

Two real processes on one machine share a folder. A step sleeps, as a CPU does while a GPU computes,
and adds noise to a few parameters, so that what is measured is the sync beside it: the callback of
the Trainer takes a copy, encodes, hashes, stores, reads and merges fp32 changes of all parameters.
Still is what a round took beyond its steps, as the training loop sees it, of the rounds between the
first and the last (which always waits); the mean of both replicas. GPU and network: not run.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pages

RESULTS = Path(__file__).parent / "results" / "diloco_overlap.md"
ROUNDS = 6
#: Million parameters, steps of a round, seconds of a step, and the steps that overlap.
SETTINGS = [(5, 50, 0.1, 0), (5, 50, 0.1, 10), (135, 80, 1.0, 0), (135, 80, 1.0, 16)]
BAR = 0.05


def replica(
    folder: str, slot: int, millions: int, steps: int, step_s: float, overlap: int
) -> dict[str, float]:
    """Run one slot; return what a round took beyond its steps, and its CPU seconds."""
    import torch

    from composer_pipeline.diloco.callback import DiLoCoCallback
    from composer_pipeline.diloco.spec import DiLoCoSpec

    torch.set_num_threads(1)
    spec = DiLoCoSpec(
        rounds=ROUNDS, inner_steps=steps, replicas=2, min_quorum=2, overlap_steps=overlap
    )
    model = torch.nn.ParameterList([torch.zeros(1000, 1000) for _ in range(millions)])
    callback = DiLoCoCallback(url=folder, run_id="run", slot=slot, spec=spec)
    state: Any = SimpleNamespace(max_steps=0, num_input_tokens_seen=0)
    control: Any = SimpleNamespace(should_training_stop=False)
    nothing: Any = None
    still: dict[int, float] = {}
    cpu = 0.0
    callback.on_train_begin(nothing, state, control, model=model)
    while not control.should_training_stop:
        round_ = callback.position() // steps + 1
        cpu = cpu or (time.process_time() if round_ == 2 else 0.0)
        began = time.monotonic()
        callback.on_step_begin(nothing, state, control, model=model)
        until = time.monotonic() + step_s
        with torch.no_grad():
            model[callback.position() % millions].add_(0.01 * torch.randn(1000, 1000))
        time.sleep(max(0.0, until - time.monotonic()))
        state.num_input_tokens_seen += 1
        callback.on_optimizer_step(nothing, state, control, model=model)
        callback.on_step_end(nothing, state, control, model=model)
        still[round_] = still.get(round_, 0.0) + time.monotonic() - began - step_s
    callback.on_train_end(nothing, state, control, model=model)
    between = [still[n] for n in range(2, ROUNDS)]
    spent = (time.process_time() - cpu) / (ROUNDS - 1)
    return {"still": fmean(between), "cpu": spent}


def measure(millions: int, steps: int, step_s: float, overlap: int) -> tuple[float, float]:
    """Return seconds standing still in a round, and CPU seconds of a round, of both replicas."""
    with tempfile.TemporaryDirectory() as folder:
        what = [folder, millions, steps, step_s, overlap]
        running = [
            subprocess.Popen(
                [sys.executable, __file__, "--replica", json.dumps([slot, *what])],
                stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for slot in (0, 1)
        ]  # fmt: skip
        found = [json.loads(process.communicate()[0]) for process in running]
    return fmean(one["still"] for one in found), fmean(one["cpu"] for one in found)


def main() -> int:
    """Measure, print and perhaps record; 1 where an overlapped round is above the bar."""
    if sys.argv[1:2] == ["--replica"]:
        slot, folder, millions, steps, step_s, overlap = json.loads(sys.argv[2])
        print(json.dumps(replica(folder, slot, millions, steps, step_s, overlap)))
        return 0
    given = pages.options(__doc__, RESULTS).parse_args()
    rows, met = [], True
    for millions, steps, step_s, overlap in SETTINGS:
        still, cpu = measure(millions, steps, step_s, overlap)
        share = still / (steps * step_s + still)
        met &= not overlap or share <= BAR
        rows.append(
            f"| {millions} million | {steps} × {step_s:g} s | {overlap or 'waits'} | {still:.2f} |"
            f" {share:.1%} | {f'≤ {BAR:.0%}' if overlap else ''} | {cpu:.2f} |"
        )
        print(rows[-1], flush=True)
    head = [
        "# Rounds of DiLoCo that go on training", "",
        *(__doc__ or "").split("\n\n", 2)[2].strip().splitlines(), "",
        "| parameters | a round's steps | overlap, steps | still, s a round | of the round | bar |"
        " CPU s a round |", "|---|---|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    pages.show("\n".join([*head, *rows, ""]), RESULTS, given)
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
