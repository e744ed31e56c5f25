"""Rounds of DiLoCo of up to 64 replicas and 7 billion parameters, simulated by measured rates.

    python benchmarks/diloco_simulation.py [--record]

Measured here, in real processes of one thread that share a folder: CPU seconds of a sync with two
and four replicas, whole and in fragments, from which follow seconds a parameter for one's own
change, for each change that is merged, and for the state's hash; and seconds a parameter for
copying what is sent and taking what was merged, during which training stands still. A check sets
the simulation beside rounds of real processes.

Assumed, not measured: a step's seconds with 10 % noise, and a link of each replica to a store that
serves all of them at once. The CPU is free while a GPU computes; one core of it works at a sync.
Nothing fails. The copies between GPU and host are not in it: no GPU was at hand.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import diloco_overlap
import pages

RESULTS = Path(__file__).parent / "results" / "diloco_simulation.md"
MILLIONS, ROUNDS = 20, 4
CODECS = ("fp32", "int4")
#: Of a round of seven billion parameters in fragments.
BAR = 0.10
GBIT = 1e9 / 8
#: The check: million parameters, steps of a round, seconds of a step; steps that overlap.
CHECK, CHECKED = (25, 30, 0.2), (0, 10)
#: Rounds from one whole state to the next, by default; noise of a step.
SNAPSHOT, NOISE = 5, 0.1


class Rates(NamedTuple):
    """CPU seconds a parameter: own change, each merged one, state; copying, and taking."""

    own: float
    merge: float
    state: float
    copy: float
    take: float


class Setting(NamedTuple):
    """A run: parameters, replicas, steps and seconds of a step, overlap, fragments, codec, link."""

    parameters: float
    replicas: int
    steps: int
    step_s: float
    overlap: int = 0
    fragments: int = 1
    codec: str = "fp32"
    gbits: float = 10.0


# -- what is measured ----------------------------------------------------------------------


def replica(folder: str, slot: int, replicas: int, codec: str, fragments: int) -> float:
    """Run one slot; return the CPU seconds of a sync, without the first round and whole states."""
    import torch

    from composer_pipeline.diloco.log import OuterLog
    from composer_pipeline.diloco.outer_optimizer import master, pseudo_gradient
    from composer_pipeline.diloco.replica import Replica
    from composer_pipeline.diloco.spec import DiLoCoSpec

    torch.set_num_threads(1)
    spec = DiLoCoSpec.model_validate(
        {"rounds": ROUNDS + 1, "fragments": fragments, "inner_steps": 1, "replicas": replicas,
         "min_quorum": replicas, "outer": "nesterov", "codec": codec}
    )  # fmt: skip
    model = {f"p{n}": torch.zeros(1000, 1000) for n in range(MILLIONS)}
    one = Replica(OuterLog.open(folder, "run"), spec, slot)
    one.join(model)
    took = []
    while not one.finished:
        start = {name: master(tensor) for name, tensor in one.state.theta.items()}
        for name, tensor in model.items():
            tensor.copy_(start[name]).add_(torch.randn(tensor.shape), alpha=1e-3)
        began = time.process_time()
        one.sync(pseudo_gradient(start, model), tokens=1)
        took.append(time.process_time() - began)
    one.close()
    return median(took[1:-1])


def standing() -> tuple[float, float]:
    """Return seconds a parameter of copying what is sent, and of taking what was merged."""
    import torch

    from composer_pipeline.diloco.callback import adopt, trainable
    from composer_pipeline.diloco.outer_optimizer import master

    torch.set_num_threads(1)
    model = torch.nn.ParameterList([torch.randn(1000, 1000) for _ in range(MILLIONS)])
    copies, takes = [], []
    for _ in range(5):
        began = time.process_time()
        sent = {n: p.detach().to("cpu", copy=True) for n, p in trainable(model).items()}
        copied = time.process_time()
        adopt(model, sent, None, sent)
        kept = {n: master(tensor.to(model[int(n)].dtype)) for n, tensor in sent.items()}
        takes.append(time.process_time() - copied)
        copies.append(copied - began)
        del sent, kept
    return median(copies) / MILLIONS / 1e6, median(takes) / MILLIONS / 1e6


def sync_s(replicas: int, codec: str, fragments: int) -> float:
    """Return the CPU seconds of a sync in real processes; the median of the replicas."""
    with tempfile.TemporaryDirectory() as folder:
        running = [
            subprocess.Popen(
                [sys.executable, __file__, "--replica",
                 json.dumps([folder, slot, replicas, codec, fragments])],
                stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for slot in range(replicas)
        ]  # fmt: skip
        return median(json.loads(process.communicate()[0]) for process in running)


def rates(codec: str, copy: float, take: float) -> Rates:
    """Return the rates of a codec: three runs, whose seconds are linear in what is merged."""
    two, four, parts = sync_s(2, codec, 1), sync_s(4, codec, 1), sync_s(2, codec, 4)
    merge = (four - two) / 2
    change = (two - parts) * 4 / 3  # own, and two merged
    own, merge, state = (
        s / MILLIONS / 1e6 for s in (change - 2 * merge, merge, two - change)
    )  # fmt: skip
    return Rates(own, merge, state, copy, take)


# -- the simulation ------------------------------------------------------------------------


def bytes_a_parameter(codec: str) -> float:
    """Return the bytes of a parameter's change."""
    from composer_pipeline.diloco.codecs import bytes_of

    return bytes_of(codec, 1 << 20) / (1 << 20)  # type: ignore[arg-type]


def still(run: Setting, cost: Rates, rounds: int = 20) -> tuple[float, float]:
    """Return the seconds a round for which training stands still, and their share of the round."""
    rng = random.Random(1)
    part = run.parameters / run.fragments
    link = run.gbits * GBIT
    size = part * bytes_a_parameter(run.codec)
    merged = cost.merge * run.replicas * part + cost.state * run.parameters
    merged += size * (run.replicas - 1) / link
    begins, stood, ran = [0.0] * run.replicas, 0.0, 0.0
    for round_ in range(1, rounds + 1):

        def steps(count: int) -> float:
            return count * run.step_s * max(0.1, rng.gauss(1, NOISE / max(1, count) ** 0.5))

        ends = [begin + steps(run.steps - run.overlap) + cost.copy * part for begin in begins]
        stored = max(end + cost.own * part + size / link for end in ends)
        whole = 8 * run.parameters / link if round_ % SNAPSHOT == 0 else 0.0
        commit = stored + merged + whole  # all merge at the same time, and one commits
        for slot, end in enumerate(ends):
            wants = end + steps(run.overlap) if run.overlap else end
            takes = max(commit, wants) + cost.take * part
            stood += takes - wants + cost.copy * part
            ran += takes - begins[slot]
            begins[slot] = takes
    return stood / rounds / run.replicas, stood / ran


def settings() -> list[Setting]:
    """Return the simulated runs."""
    found = []
    for parameters, steps, step_s in ((135e6, 50, 1.0), (1.5e9, 50, 6.0), (7e9, 50, 6.0)):
        for replicas in (2, 8, 64):
            run = Setting(parameters, replicas, steps, step_s)
            found += [run, run._replace(overlap=10), run._replace(overlap=10, codec="int4")]
            if parameters > 1e9:
                found.append(run._replace(overlap=10, codec="int4", fragments=16))
    return found


def main() -> int:
    """Measure, simulate, print and perhaps record; 1 where 7 B in fragments is above the bar."""
    if sys.argv[1:2] == ["--replica"]:
        print(json.dumps(replica(*json.loads(sys.argv[2]))))
        return 0
    given = pages.options(__doc__, RESULTS).parse_args()
    copy, take = standing()
    by_codec = {codec: rates(codec, copy, take) for codec in CODECS}
    head, about = (__doc__ or "").split("\n\n", 2)[::2]
    page = f"""\
# {head.rstrip(".")}

{about.strip()}

Nanoseconds a parameter, of {MILLIONS} million:

| codec | own change | each merged change | state | copy | take |
|---|---:|---:|---:|---:|---:|
"""
    for codec, cost in by_codec.items():
        page += f"| {codec} | {' | '.join(f'{1e9 * each:.1f}' for each in cost)} |\n"
    page += f"""
The check: two processes, {CHECK[0]} million parameters, fp32, rounds of {CHECK[1]} steps of
{CHECK[2]:g} s, a folder in place of a link.

| overlap, steps | measured still, s a round | simulated |
|---:|---:|---:|
"""
    for overlap in CHECKED:
        real = diloco_overlap.measure(*CHECK, overlap)[0]
        run = Setting(CHECK[0] * 1e6, 2, *CHECK[1:], overlap, gbits=float("inf"))
        seconds, _ = still(run, by_codec["fp32"])
        page += f"| {overlap or 'waits'} | {real:.2f} | {seconds:.2f} |\n"
    page += """
Simulated, links of 10 Gbit/s, and what a round stands still:

| million parameters | replicas | a round's steps | overlap, steps | fragments | codec | s | share |
|---:|---:|---|---:|---:|---|---:|---:|
"""
    missed = False
    for run in settings():
        seconds, share = still(run, by_codec[run.codec])
        missed |= run.parameters == 7e9 and run.fragments > 1 and share > BAR
        page += (
            f"| {run.parameters / 1e6:,.0f} | {run.replicas} | {run.steps} × {run.step_s:g} s |"
            f" {run.overlap or 'waits'} | {run.fragments} | {run.codec} | {seconds:,.1f} |"
            f" {share:.1%} |\n"
        )
    pages.show(page, RESULTS, given)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
