"""Rounds of DiLoCo of up to 64 replicas and 7 billion parameters, simulated by measured rates.

    python benchmarks/diloco_simulation.py [--record]

Measured here, in one thread: CPU seconds a parameter for packing, hashing and storing one's own
change, for reading, checking and merging each change, for the outer step, and for the state's hash;
and for copying what is sent and taking what was merged, during which training stands still. A check
sets the simulation beside rounds of real processes.

Assumed, not measured: a step's seconds with 10 % noise, and a link of each replica to a store that
serves all of them at once. The CPU is free while a GPU computes; one core of it works at a sync.
Nothing fails. The pauses between two looks at the log, of up to two seconds, are not in it, nor are
copies between GPU and host: no GPU was at hand. What the codec and 16 fragments, each of which is
merged every sixteenth round, cost in loss was not measured at this size.
"""

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import diloco_overlap
import pages
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout

from composer_pipeline.diloco.callback import adopt, trainable
from composer_pipeline.diloco.codecs import (
    Delta,
    bytes_of,
    decode_delta,
    encode_delta,
    encode_state,
)
from composer_pipeline.diloco.fragments import merged_steps
from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.diloco.outer_optimizer import OuterState, master
from composer_pipeline.diloco.spec import Codec, DiLoCoSpec

RESULTS = Path(__file__).parent / "results" / "diloco_simulation.md"
MILLIONS, MERGED, ROUNDS = 20, 5, 20
CODECS: tuple[Codec, ...] = ("fp32", "int4")
#: Of a round of seven billion parameters in fragments.
BAR = 0.10
GBIT = 1e9 / 8
#: The check: million parameters, steps of a round, seconds of a step; steps that overlap.
CHECK, CHECKED = (25, 30, 0.2), (0, 10)
#: Of a step's seconds.
NOISE = 0.1
SPEC = DiLoCoSpec(rounds=ROUNDS, inner_steps=1, replicas=MERGED, outer="nesterov")


class Rates(NamedTuple):
    """CPU seconds a parameter: own change, each merged one, outer step, hash; copying, taking."""

    own: float
    merge: float
    step: float
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
    codec: Codec = "fp32"
    gbits: float = 10.0


# -- what is measured ----------------------------------------------------------------------


def took(what: Callable[[], Any]) -> float:
    """Return the CPU seconds a parameter of doing something, the median of five times."""
    seen = []
    for _ in range(5):
        began = time.process_time()
        what()
        seen.append(time.process_time() - began)
    return median(seen) / MILLIONS / 1e6


def standing() -> tuple[float, float]:
    """Return seconds a parameter of copying what is sent, and of taking what was merged."""
    model = torch.nn.ParameterList([torch.randn(1000, 1000) for _ in range(MILLIONS)])

    def copied() -> dict[str, torch.Tensor]:
        return {n: p.detach().to("cpu", copy=True) for n, p in trainable(model).items()}

    def taken() -> dict[str, torch.Tensor]:
        adopt(model, sent, None, sent)
        return {n: master(tensor.to(model[int(n)].dtype)) for n, tensor in sent.items()}

    sent = copied()
    return took(copied), took(taken)


def rates(codec: Codec, copy: float, take: float) -> Rates:
    """Return the rates of a codec."""
    shapes = {f"p{n}": (1000, 1000) for n in range(MILLIONS)}
    change = {name: 1e-3 * torch.randn(shape) for name, shape in shapes.items()}
    state = OuterState.initial({name: torch.randn(shape) for name, shape in shapes.items()})
    with tempfile.TemporaryDirectory() as folder:
        log = OuterLog.open(folder, "run")

        def send() -> tuple[str, str, int]:
            data = encode_delta(Delta.pack(change, codec))
            return *log.put_delta(1, 0, data), len(data)

        def received() -> Delta:
            delta = decode_delta(log.read(*sent), state.theta, codec)
            for name in delta:  # for its norm
                delta.squares(name)
            return delta

        def merged(count: int) -> str:
            steps = merged_steps(state, [delta] * count, [1 / count] * count, SPEC)
            return encode_state(state, steps).sha256

        own, sent = took(send), send()
        read, delta = took(received), received()
        one, many = took(lambda: merged(1)), took(lambda: merged(MERGED))
        hashed = took(lambda: encode_state(state).sha256)
    add = (many - one) / (MERGED - 1)
    return Rates(own, read + add, one - add - hashed, hashed, copy, take)


# -- the simulation ------------------------------------------------------------------------


def still(run: Setting, cost: Rates) -> tuple[float, float]:
    """Return the seconds a round for which training stands still, and their share of the round."""
    rng = random.Random(1)
    part = run.parameters / run.fragments
    link = run.gbits * GBIT
    size = bytes_of(run.codec, round(part))
    merged = (cost.merge * run.replicas + cost.step) * part + cost.state * run.parameters
    merged += size * (run.replicas - 1) / link
    begins, stood, ran = [0.0] * run.replicas, 0.0, 0.0
    for round_ in range(1, ROUNDS + 1):

        def steps(count: int) -> float:
            return count * run.step_s * max(0.1, rng.gauss(1, NOISE / max(1, count) ** 0.5))

        ends = [begin + steps(run.steps - run.overlap) + cost.copy * part for begin in begins]
        stored = max(end + cost.own * part + size / link for end in ends)
        whole = 8 * run.parameters / link if SPEC.is_snapshot(round_) else 0.0
        commit = stored + merged + whole  # all merge at the same time, and one commits
        for slot, end in enumerate(ends):
            wants = end + steps(run.overlap) if run.overlap else end
            takes = max(commit, wants) + cost.take * part
            stood += takes - wants + cost.copy * part
            ran += takes - begins[slot]
            begins[slot] = takes
    return stood / ROUNDS / run.replicas, stood / ran


def settings() -> list[Setting]:
    """Return the simulated runs."""
    found = []
    for parameters, steps, step_s in ((135e6, 50, 1.0), (1.5e9, 50, 6.0), (7e9, 50, 6.0)):
        for replicas in (2, 8, 64):
            run = Setting(parameters, replicas, steps, step_s)
            found += [run, run._replace(overlap=10), run._replace(overlap=10, codec="int4")]
            if parameters > 1e9:
                part = run._replace(overlap=10, codec="int4", fragments=16)
                found += [part, part._replace(steps=100, overlap=20)]
    return found


def main() -> int:
    """Measure, simulate, print and perhaps record; 1 where 7 B in fragments misses the bar."""
    given = pages.options(__doc__, RESULTS).parse_args()
    torch.set_num_threads(1)
    copy, take = standing()
    by_codec = {codec: rates(codec, copy, take) for codec in CODECS}
    head, about = (__doc__ or "").split("\n\n", 2)[::2]
    page = f"""\
# {head.rstrip(".")}

{about.strip()}

Nanoseconds a parameter, of {MILLIONS} million:

| codec | own change | each merged change | outer step | hash | copy | take |
|---|---:|---:|---:|---:|---:|---:|
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
    page += f"""
Simulated, links of 10 Gbit/s: how long a round stands still. The bar is {BAR:.0%} with seven
billion parameters in fragments:

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
