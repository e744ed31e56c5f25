"""Optimizer steps that reach a commit while replicas are killed again and again.

    python tests/chaos/diloco_goodput.py [--record benchmarks/results/diloco_goodput.md]

Belongs here: two runs of three replicas, and their goodput. Does not belong here: what must hold
after faults (``diloco_driver``).

Goodput is the steps that a commit merged over those that a run without faults merges in the same
wall time. A step sleeps, so that the time is the protocol's and not that of two cores; each replica
is a real process that goes through the callback of the Trainer, with its private state on disk
after each step. It is forked from a server that has loaded torch: a real one loads its model first.
"""

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parents[1])])
os.environ["OMP_NUM_THREADS"] = "1"
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import diloco_worker  # noqa: E402, F401

from composer_pipeline.diloco.callback import DiLoCoCallback  # noqa: E402
from composer_pipeline.diloco.inner.file import FILE  # noqa: E402
from composer_pipeline.diloco.inner.keeping import Keeping  # noqa: E402
from composer_pipeline.diloco.log import OuterLog  # noqa: E402
from composer_pipeline.diloco.slots import claim  # noqa: E402
from composer_pipeline.diloco.spec import DiLoCoSpec  # noqa: E402
from tests.diloco.toy_replica import Inner  # noqa: E402

REPLICAS, ROUNDS, STEPS, STEP_S = 3, 8, 100, 0.1
BAR_KILLED = 0.95


def spec(**changes: Any) -> DiLoCoSpec:
    """Return what the replicas agree on: the defaults, but for the sizes."""
    sizes = {"rounds": ROUNDS, "inner_steps": STEPS, "replicas": REPLICAS}
    return DiLoCoSpec.model_validate(sizes | changes)


def trainee(folder: str, agreed: str, slot: int) -> None:
    """Train one slot to the end of the run through the Trainer's callback."""
    log = OuterLog.open(folder, "run")
    inner, there = Inner(slot), DiLoCoSpec.from_json(agreed, "spec")
    callback = DiLoCoCallback(
        url=folder, run_id="run", slot=slot, spec=there, attempt=claim(log, slot)
    )
    callback.keep(Keeping(Path(folder, f"slot-{slot}", FILE), every=1))
    state: Any = SimpleNamespace(max_steps=0, num_input_tokens_seen=0)
    control: Any = SimpleNamespace(should_training_stop=False)
    given: dict[str, Any] = {"model": inner.net, "optimizer": inner.optimizer}
    nothing: Any = None
    callback.on_train_begin(nothing, state, control, **given)
    while not control.should_training_stop:
        callback.on_step_begin(nothing, state, control, **given)
        time.sleep(STEP_S)
        inner.steps(callback.position(), 1)
        state.num_input_tokens_seen += 1
        callback.on_step_end(nothing, state, control, **given)
    callback.on_train_end(nothing, state, control, **given)


def run(agreed: DiLoCoSpec, *, kills: bool = False) -> tuple[int, float]:
    """Return the steps that commits merged and the seconds from the first round to the last.

    Args:
        agreed: spec of the run.
        kills: whether one replica is killed at a random moment of every second round.
    """
    context = multiprocessing.get_context("forkserver")
    rng = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:

        def start(slot: int) -> Any:
            process = context.Process(target=trainee, args=(folder, agreed.model_dump_json(), slot))
            process.start()
            return process

        running = [start(slot) for slot in range(agreed.replicas)]
        log = OuterLog.open(folder, "run")
        try:
            while len(log.members()) < agreed.replicas:
                time.sleep(0.05)
            begun = time.monotonic()
            for round_ in range(1, agreed.rounds + 1):
                strike = time.monotonic() + rng.uniform(0.05, 0.95) * STEPS * STEP_S
                victim = round_ // 2 % agreed.replicas if kills and round_ % 2 == 0 else None
                while log.commit(round_) is None:
                    if victim is not None and time.monotonic() > strike:
                        os.kill(running[victim].pid, signal.SIGKILL)
                        running[victim].join()
                        running[victim] = start(victim)
                        victim = None
                    time.sleep(0.05)
            took = time.monotonic() - begun
        finally:
            for process in running:
                process.kill()
                process.join()
        return sum(part.tokens for c in log.commits() for part in c.included), took


def main() -> int:
    """Play both runs, print a table and perhaps record it; 1 where the bar is not met."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--record", type=Path, help="write the table there")
    given = options.parse_args()
    multiprocessing.get_context("forkserver").set_forkserver_preload(["diloco_goodput"])
    steps, took = run(spec())
    killed_steps, killed_took = run(spec(), kills=True)
    killed = (killed_steps / killed_took) / (steps / took)
    text = page(steps, took, killed_steps, killed_took, killed)
    print(text)
    if given.record:
        given.record.write_text(text, encoding="utf-8")
    return int(killed < BAR_KILLED)


def page(steps: int, took: float, killed_steps: int, killed_took: float, killed: float) -> str:
    """Return the recorded page."""
    return "\n".join(
        [
            "# Goodput of DiLoCo under kills",
            "",
            f"`make bench-diloco-goodput`: {REPLICAS} replicas, {ROUNDS} rounds of {STEPS} steps.",
            f"A step sleeps {STEP_S:g} s, so that the time is the protocol's; replicas are real",
            "processes, forked from one that has loaded torch (loading a model is not in it),",
            "and keep their private state after each step. All time-outs are the defaults. Every",
            "second round one replica is killed at a random moment and started again at once. Not",
            "run: what a replica ten times slower costs; with the same steps for each the others",
            "wait `grace_s` for it in each round. Sleeping alone takes"
            f" {ROUNDS * STEPS * STEP_S:g} s:",
            "what a run took above that is also the load of the machine.",
            "",
            "| | merged steps | seconds | goodput | bar |",
            "|---|---:|---:|---:|---:|",
            f"| no fault | {steps} | {took:.1f} | 1 | |",
            f"| killed every second round | {killed_steps} | {killed_took:.1f} | {killed:.3f} |"
            f" ≥ {BAR_KILLED:g} |",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
