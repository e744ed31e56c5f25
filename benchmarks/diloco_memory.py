"""Host memory and bytes of one sync of DiLoCo, in two real processes.

Run: ``python -m benchmarks.diloco_memory > benchmarks/results/diloco_memory.md``; a few minutes.
Two replicas of 25 million synthetic parameters share a folder. Memory is the peak resident set of
a process (``VmHWM``, reset before) from taking the delta to the end of the sync, above what was
resident before: the parameters, what the round began from, the state and its momentum, all fp32
here. It is of the replica and the round that took most; each round writes the whole state
(`kept_rounds: 2`). Bytes are of a delta, as its commit records them, over all parameters. A run in
fragments has one more round, which is whole and not in the row. GPU, bf16 model: not run.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SHAPES = [(1024, 1024)] * 20 + [(4000, 1000), (1024,)]
ROUNDS, REPLICAS = 2, 2
#: codec, error feedback, fragments.
SETTINGS = [
    ("fp32", False, 1), ("int8", False, 1), ("int4", False, 1), ("int2", True, 1),
    ("fp32", False, 4), ("int8", False, 4),
]  # fmt: skip


def memory(key: str) -> int:
    """Return a line of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {key}")


def replica(url: str, slot: int, codec: str, feedback: bool, fragments: int) -> None:
    """Run one slot; print the bytes above what was resident, for each round of a part or whole."""
    import torch

    from composer_pipeline.diloco.log import OuterLog
    from composer_pipeline.diloco.outer_optimizer import master, pseudo_gradient
    from composer_pipeline.diloco.replica import Replica
    from composer_pipeline.diloco.spec import DiLoCoSpec

    spec = DiLoCoSpec.model_validate(
        {"rounds": ROUNDS + (fragments > 1), "fragments": fragments, "inner_steps": 1,
         "replicas": REPLICAS, "min_quorum": REPLICAS,
         "outer_lr": 0.7, "outer_momentum": 0.9, "codec": codec, "error_feedback": feedback,
         "kept_rounds": 2}
    )  # fmt: skip
    generator = torch.Generator().manual_seed(slot)
    model = {f"p{n}": torch.zeros(shape) for n, shape in enumerate(SHAPES)}
    one = Replica(OuterLog.open(url, "run"), spec, slot)
    one.join(model)
    above = []
    while not one.finished:
        start = {name: master(tensor) for name, tensor in one.state.theta.items()}
        for name, tensor in model.items():
            tensor.copy_(start[name])
            tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=1e-3)
        Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmRSS")
        delta = pseudo_gradient(start, model)
        one.sync(delta, tokens=1)
        above.append(memory("VmHWM") - before)
        del delta
    one.close()
    print(json.dumps(above[:ROUNDS]))


def measure(codec: str, feedback: bool, fragments: int) -> dict[str, Any]:
    """Return the peak of each process over the fp32 size, and a delta's bytes a parameter."""
    from composer_pipeline.diloco.log import OuterLog

    count = sum(int(shape[0] * (shape[1] if len(shape) > 1 else 1)) for shape in SHAPES)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        arguments = [sys.executable, "-m", "benchmarks.diloco_memory", folder]
        running = [
            subprocess.Popen(
                [*arguments, str(slot), codec, str(int(feedback)), str(fragments)],
                stdout=subprocess.PIPE,
            )
            for slot in range(REPLICAS)
        ]
        peaks = [json.loads(process.communicate()[0]) for process in running]
        commits = OuterLog.open(folder, "run").commits()[1 : ROUNDS + 1]
    assert all(len(commit.included) == REPLICAS for commit in commits)
    return {
        "memory": max(max(each) for each in peaks) / (4 * count),
        "bytes": max(part.size for commit in commits for part in commit.included) / count,
    }


def main() -> None:
    """Print the table."""
    count = sum(int(shape[0] * (shape[1] if len(shape) > 1 else 1)) for shape in SHAPES)
    print("# What a sync of DiLoCo takes\n")
    print("`python -m benchmarks.diloco_memory`: two processes, "
          f"{count / 1e6:.1f} million parameters, {ROUNDS} rounds.\n")  # fmt: skip
    print(
        "| codec | error feedback | fragments | peak above resident, fp32 sizes |"
        " bytes a parameter and round |"
    )
    print("|---|---|---:|---:|---:|")
    for codec, feedback, fragments in SETTINGS:
        found = measure(codec, feedback, fragments)
        told = "yes" if feedback else "no"
        print(
            f"| {codec} | {told} | {fragments} | {found['memory']:.2f} | {found['bytes']:.4f} |",
            flush=True,
        )
    print(
        "\nBars: memory ≤ 3; bytes ≤ 1.1 (int8), 0.6 (int4), 0.30 (int2). A row above 3 misses it."
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        replica(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "1", int(sys.argv[5]))
    else:
        main()
