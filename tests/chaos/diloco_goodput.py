"""Optimizer steps that reach a commit while replicas are killed again and again.

    python tests/chaos/diloco_goodput.py [--record benchmarks/results/diloco_goodput.md]

Goodput is the share of merged steps in those that the replicas could make in the run's wall time,
each at the speed of its own steps, over the same share of a run without faults. So the load of the
machine, which changes from run to run, is in neither. A step sleeps, so that the time is the
protocol's and not that of two cores; each replica is a real process that goes through the callback
of the Trainer, with its private state on disk after each step. It is forked from a server that has
loaded torch: a real one loads its model first.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parents[1])])
os.environ["OMP_NUM_THREADS"] = "1"
sys.path[:0] = [str(HERE), str(HERE.parents[1])]


import diloco_worker  # noqa: E402, F401

from composer_pipeline.diloco.log import OuterLog  # noqa: E402
from composer_pipeline.diloco.spec import DiLoCoSpec  # noqa: E402
from tests.diloco.trainee import Trainees  # noqa: E402

REPLICAS, ROUNDS, STEPS, STEP_S = 3, 8, 100, 0.1
BAR = 0.95
#: Steps of the next round that go on while changes travel, in the overlapped runs.
OVERLAP = 20
#: The straggler: how much slower, and the rounds of the run in which the others wait for it.
SLOWER, WAITING_ROUNDS = 10, 2


class Ran(NamedTuple):
    """A run: steps that commits merged, seconds, and the last replica's steps by round.

    ``able`` is how many steps the replicas make in that time if they do nothing else, at the speeds
    that commits have.
    """

    steps: int
    seconds: float
    last: list[int]
    able: float

    @property
    def share(self) -> float:
        """Merged steps in those that could be made."""
        return self.steps / self.able


def spec(**changes: Any) -> DiLoCoSpec:
    """Return what the replicas agree on: the defaults, but for the sizes."""
    sizes = {"rounds": ROUNDS, "inner_steps": STEPS, "replicas": REPLICAS}
    return DiLoCoSpec.model_validate(sizes | changes)


def run(agreed: DiLoCoSpec, *, kills: bool = False, slower: int = 1) -> Ran:
    """Return what came of a run, from the first round to the last.

    Args:
        agreed: spec of the run.
        kills: whether one replica is killed at a random moment of every second round.
        slower: how many times longer a step of the last replica takes.
    """
    rng = random.Random(7)
    step_s = [STEP_S] * (agreed.replicas - 1) + [STEP_S * slower]
    with tempfile.TemporaryDirectory() as folder:
        log = OuterLog.open(folder, "run")
        with Trainees(folder, agreed, step_s, preload="diloco_goodput") as replicas:
            while len(log.members()) < agreed.replicas:
                time.sleep(0.05)
            begun = time.monotonic()
            for round_ in range(1, agreed.rounds + 1):
                strike = time.monotonic() + rng.uniform(0.05, 0.95) * STEPS * STEP_S
                victim = round_ // 2 % agreed.replicas if kills and round_ % 2 == 0 else None
                while log.commit(round_) is None:
                    if victim is not None and time.monotonic() > strike:
                        replicas.restart(victim)
                        victim = None
                    time.sleep(0.05)
            took = time.monotonic() - begun
        parts = [part for commit in log.commits() for part in commit.included]
        of = [[p for p in parts if p.slot == slot] for slot in range(agreed.replicas)]
        speeds = [statistics.mean(1 / p.seconds for p in its if p.seconds) for its in of]
        steps, last = sum(part.tokens for part in parts), [part.tokens for part in of[-1]]
        return Ran(steps, took, last, took * sum(speeds))


def main() -> int:
    """Play the runs, print a table and perhaps record it; 1 where a bar is not met."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--record", type=Path, help="write the table there")
    given = options.parse_args()
    overlapped = spec(overlap_steps=OVERLAP)
    slow = spec(pace="equal-time", weights="tokens")
    whole = run(spec())
    runs = {
        "no fault": whole,
        "killed every second round": run(spec(), kills=True),
        "no fault, overlapped": run(overlapped),
        "killed every second round, overlapped": run(overlapped, kills=True),
        f"one {SLOWER} times slower, `equal-time`": run(slow, slower=SLOWER),
    }
    good = {name: ran.share / whole.share for name, ran in runs.items()}
    # What overlap wins must not hide what kills cost.
    good["killed every second round, overlapped"] /= max(1.0, good["no fault, overlapped"])
    waiting = run(spec(rounds=WAITING_ROUNDS), slower=SLOWER)
    text = page(runs, good, waiting)
    print(text)
    if given.record:
        given.record.write_text(text, encoding="utf-8")
    return int(min(good.values()) < BAR)


def page(runs: dict[str, Ran], goodput: dict[str, float], waiting: Ran) -> str:
    """Return the recorded page; ``waiting`` is the run with a slow replica that others wait for."""
    whole, *_, paced = runs.values()

    def row(what: str, ran: Ran, good: float, bar: str = "") -> str:
        return f"| {what} | {ran.steps} | {ran.able:.0f} | {ran.seconds:.1f} | {good:.3f} | {bar} |"

    setting = (
        f"`make bench-diloco-goodput`: {REPLICAS} replicas, {ROUNDS} rounds of {STEPS} steps. A"
        f" step sleeps {STEP_S:g} s, so that the time is the protocol's; replicas are real"
        " processes, forked from one that has loaded torch (loading a model is not in it), and keep"
        " their private state after each step. All time-outs are the defaults. Sleeping alone takes"
        f" {ROUNDS * STEPS * STEP_S:g} s: what a run took above that is also the load of the"
        " machine."
    )
    faults = (
        "Killed: every second round one replica, at a random moment, and started again at once."
        f" Slow: a step of one replica sleeps {SLOWER} times as long. Goodput is the share of"
        " merged steps in those that the replicas can make in the run's time, each at the speed of"
        " its own steps (sleep and load) as commits have it, over that share of the run without"
        " faults: of a slow replica only what it can do itself counts as lost. Overlapped: changes"
        f" travel during {OVERLAP} steps of the next round; killed, it is over the overlapped run"
        " without faults where that is the better. With `pace:"
        f" equal-time` it made {', '.join(map(str, paced.last))} steps in the rounds; in the first"
        " nobody knew its speed. With `pace: equal-steps` the others wait for it, up to `grace_s`;"
        f" {WAITING_ROUNDS} rounds were run."
    )
    return "\n".join(
        [
            "# Goodput of DiLoCo under kills and with a slow replica",
            "",
            textwrap.fill(setting, 100),
            "",
            textwrap.fill(faults, 100),
            "",
            "| | merged steps | could be made | seconds | goodput | bar |",
            "|---|---:|---:|---:|---:|---:|",
            *(
                row(what, ran, goodput[what], "" if ran is whole else f"≥ {BAR:g}")
                for what, ran in runs.items()
            ),
            row(f"one {SLOWER} times slower, `equal-steps`", waiting, waiting.share / whole.share),
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
