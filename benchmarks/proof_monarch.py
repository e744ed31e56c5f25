"""Replicas of TRL in actors of Monarch beside child processes, bit for bit: ``make proof-monarch``.

Four runs of one recipe through ``python -m trainers``: as processes and in actors, each undisturbed
and with a SIGKILL of replica 1's process in round 2. Prints a table, writes it to
benchmarks/results/monarch.md, and returns 1 where the outer parameters differ after any round, a
round lacks a replica, or a killed one was not started again exactly once.
"""

import datetime as dt
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from composer_pipeline.lake.store import Lake
from composer_pipeline.testing.training import tiny_recipe, write_dataset, write_tiny_model
from composer_pipeline.training.run import METRICS, RESULT, prepare

RESULTS = Path(__file__).parent / "results" / "monarch.md"
REPLICAS, ROUNDS, STEPS = 2, 3, 4
#: The replica that is killed, and after which of its steps: in the middle of round 2.
VICTIM, KILLED_AT = 1, STEPS + 2
PACKAGES = ("torchmonarch", "torch", "trl", "transformers")
#: In the command of a replica as a process, and in an actor.
REPLICA = (b"trainers.replica", b"monarch._src.actor.bootstrap_main")
#: No run takes as long.
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Ran:
    """A finished run, and the seconds from a kill to its event and to the replica's next step."""

    seconds: float
    result: dict[str, Any]
    told_s: float = 0.0
    again_s: float = 0.0

    @property
    def states(self) -> list[str]:
        """SHA of the outer parameters after each round."""
        return [commit["state_sha"] for commit in self.result["commits"]]

    @property
    def whole(self) -> int:
        """Rounds that merged every replica."""
        return sum(len(commit["included"]) == REPLICAS for commit in self.result["commits"])


def main() -> int:
    """Run all, print and record the table; 1 where a run is not as it should be."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lake, model = Lake(folder / "lake"), str(write_tiny_model(folder / "model"))
        write_dataset(lake)
        runs = {
            (kind, kill): train(lake, model, folder, kind, kill)
            for kill in (False, True)
            for kind in ("processes", "actors")
        }
    first = runs["processes", False].states
    good = {key: judge(ran, first, kill=key[1]) for key, ran in runs.items()}
    text = page(runs, good)
    print(text)
    RESULTS.write_text(text, encoding="utf-8")
    return int(not all(good.values()))


def judge(ran: Ran, states: list[str], *, kill: bool) -> bool:
    """Return whether a run ended with these states, whole rounds and the restarts of its kills."""
    restarts = {"0": 0, "1": int(kill)}
    return (ran.states, ran.whole, ran.result["restarts"]) == (states, ROUNDS, restarts)


def train(lake: Lake, model: str, folder: Path, kind: str, kill: bool) -> Ran:
    """Train the recipe, perhaps with a kill."""
    diloco: dict[str, Any] = {
        "replicas": REPLICAS, "rounds": ROUNDS, "inner_steps": STEPS, "outer": "nesterov",
        "min_quorum": REPLICAS,
    }  # fmt: skip
    if kind == "actors":
        diloco["place"] = {"kind": "monarch"}
    recipe = tiny_recipe(model, name="monarch", diloco=diloco, learning_rate=1e-2)
    run = prepare(lake, recipe, folder / f"{kind}-{kill}")
    begun = time.monotonic()
    output = (folder / f"{kind}-{kill}.txt").open("wb")
    process = subprocess.Popen(
        run.command, cwd=run.cwd, env={**os.environ, **run.env}, stdout=output, stderr=output
    )
    try:
        at = strike(run.run_dir / "replicas" / f"slot-{VICTIM}.log", process) if kill else 0.0
        process.wait(TIMEOUT_S)
    finally:
        process.kill()
    if process.wait():
        sys.exit((folder / f"{kind}-{kill}.txt").read_text(errors="replace"))
    seconds = time.monotonic() - begun
    ran = Ran(seconds, json.loads((run.run_dir / RESULT).read_text(encoding="utf-8")))
    if not at:
        return ran
    lines = (run.run_dir / METRICS).read_text(encoding="utf-8").splitlines()
    seen = [json.loads(line) for line in lines]
    told = next(e["time"] for e in seen if e["event"] == "replica_ended")
    steps = [e["time"] for e in seen if e["event"] == "step" and e["slot"] == VICTIM]
    return Ran(seconds, ran.result, told - at, min(s for s in steps if s > told) - at)


def strike(log: Path, process: subprocess.Popen[bytes]) -> float:
    """Kill the replica that writes the log, after a step of it; return when."""
    step = f'"step":{KILLED_AT},'
    await_(process, lambda: step in log.read_text().replace(" ", "") if log.is_file() else False)
    killed = time.time()
    os.kill(replica_of(log), signal.SIGKILL)
    return killed


def await_(process: subprocess.Popen[bytes], condition: Any) -> None:
    """Wait until the condition holds, while the run lasts."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the run ended, or hung, before replica {VICTIM} could be killed")
        time.sleep(0.02)


def replica_of(log: Path) -> int:
    """Return the process whose standard output is the log: a replica, not a helper of its own."""
    for link in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            command = (link.parents[1] / "cmdline").read_bytes()
            if link.readlink() == log.resolve() and any(name in command for name in REPLICA):
                return int(link.parts[2])
        except OSError:  # it has ended, or is another user's
            continue
    sys.exit(f"no process writes {log}")


def page(runs: dict[tuple[str, bool], Ran], good: dict[tuple[str, bool], bool]) -> str:
    """Return the recorded page."""
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    text = (
        "# Replicas in actors of Monarch\n\n"
        f"`make proof-monarch`, {dt.datetime.now(dt.UTC):%Y-%m-%d}: {versions},"
        f" Python {platform.python_version()}; one machine of {os.cpu_count()} cores, no GPU.\n\n"
        f"A random model of two layers with LoRA on TRL, {REPLICAS} replicas, {ROUNDS} rounds of"
        f" {STEPS} steps, outer Nesterov momentum, through `python -m trainers`. Killed: replica"
        f" {VICTIM}'s process gets SIGKILL after its step {KILLED_AT}, in round 2.\n\n"
        "| replicas | killed | whole rounds | restarts | state after the last round | equal to"
        " processes in every round | kill to event, s | kill to next step, s | run, s |\n"
        "|---|---|--:|--:|---|---|--:|--:|--:|\n"
    )
    for (kind, kill), ran in runs.items():
        after = f"{ran.told_s:.1f} | {ran.again_s:.1f}" if kill else " | "
        text += (
            f"| {kind} | {'yes' if kill else 'no'} | {ran.whole} of {ROUNDS} |"
            f" {sum(ran.result['restarts'].values())} | `{ran.states[-1][:16]}` |"
            f" {'yes' if good[kind, kill] else '**no**'} | {after} | {ran.seconds:.1f} |\n"
        )
    return text + (
        "\nA restarted replica makes its steps of the round again, so a kill changes nothing."
        " Seconds are those of a machine that does other things too. Actors host the replicas of"
        " one machine, and the tensors go through the outer log; several hosts were not run.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
