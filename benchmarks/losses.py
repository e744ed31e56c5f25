"""The divergence kernel beside full logits and TRL's chunked divergence, on a CPU.

Prints CPU seconds and peak memory of one forward and backward, each in a process of its own, and
the ratios to ours; writes them to benchmarks/results/losses.md. One thread, float32, one run:
the ratios hold, the seconds are those of a machine that does other things too. Memory is the
process's high-water mark above what it held before (hidden states and heads).
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parent / "results" / "losses.md"
TOKENS = 512


@dataclass(frozen=True)
class Case:
    """A head, and how much of it and of the tokens count."""

    title: str
    vocabulary: int
    hidden: int
    active: int
    head_trained: bool
    #: (other, what, largest ratio of ours to it)
    bars: tuple[tuple[str, str, float], ...]


CASES = {
    "large": Case(
        "V = 151,936, H = 896, all tokens active, head frozen", 151936, 896, TOKENS, False,
        (("naive", "memory", 1 / 8), ("trl", "memory", 0.6), ("naive", "cpu", 0.65),
         ("trl", "cpu", 0.5)),
    ),
    "sparse": Case(
        "V = 49,152, H = 576, 25 % of the tokens active, head trained", 49152, 576, TOKENS // 4,
        True, (("naive", "memory", 0.25), ("naive", "cpu", 0.25)),
    ),
}  # fmt: skip
WAYS = {
    "naive": "full logits (TRL's SDPO, `full_logits`)",
    "trl": "TRL's chunked divergence",
    "jsd": "ours, JSD",
    "taid": "ours, TAID",
    "eopd": "ours, EOPD",
}


def main() -> int:
    """Measure everything, or with ``--one`` one way of one case in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("CASE", "WAY"), help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, default=RESULT)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(CASES[options.one[0]], options.one[1])))
        return 0
    text, worst = report({
        name: {way: in_a_process(name, way) for way in WAYS} for name in CASES
    })  # fmt: skip
    options.result.write_text(text, encoding="utf-8")
    print(text)
    return 0 if worst <= 1 else 1


def in_a_process(case: str, way: str) -> dict[str, float]:
    """Return what :func:`measure` prints in a process of its own."""
    command = [sys.executable, __file__, "--one", case, way]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    numbers: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"{case} {way}: {numbers}", file=sys.stderr, flush=True)
    return numbers


def measure(case: Case, way: str) -> dict[str, float]:
    """Return CPU seconds, MiB above the baseline, the loss, and the hidden gradient's norm."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, case.hidden)
    teacher = hidden + 0.3 * torch.randn(TOKENS, case.hidden)
    head = torch.randn(case.vocabulary, case.hidden) * 0.1
    mask = torch.zeros(TOKENS)
    mask[torch.randperm(TOKENS)[: case.active]] = 1.0
    run = _ways(way)
    small = (hidden[:8, :32].clone().requires_grad_(), head[:64, :32].clone().requires_grad_())
    run(*small, teacher[:8, :32].clone(), torch.ones(8))  # libraries load what they load late
    hidden.requires_grad_()
    head.requires_grad_(case.head_trained)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins here
    before, start = _mib("VmRSS"), time.process_time()
    loss = run(hidden, head, teacher, mask)
    seconds = time.process_time() - start
    assert hidden.grad is not None
    return {
        "cpu": seconds, "memory": _mib("VmHWM") - before, "loss": loss,
        "norm": float(hidden.grad.norm()),
    }  # fmt: skip


def _ways(way: str) -> Callable[..., float]:
    """Return a function of hidden states, head, teacher's states and mask, with a backward."""
    import torch
    from trl.experimental.sdpo.loss_utils import compute_full_logit_self_distillation_loss
    from trl.kernels.chunked_divergence import ChunkedDivergenceFunction

    from composer_pipeline.losses.divergence import fused_divergence

    def naive(hidden: Any, head: Any, teacher: Any, mask: Any) -> Any:
        with torch.no_grad():
            target = teacher @ head.T
        values = compute_full_logit_self_distillation_loss(
            hidden @ head.T, target, distillation_alpha=0.5
        )
        return (values * mask).sum() / mask.sum()

    def trl(hidden: Any, head: Any, teacher: Any, mask: Any) -> Any:
        values, _ = ChunkedDivergenceFunction.apply(
            hidden, head, None, teacher, head.detach(), None, 0.5
        )
        return (values * mask).sum() / mask.sum()

    def ours(hidden: Any, head: Any, teacher: Any, mask: Any) -> Any:
        active = mask.nonzero().squeeze(-1)
        weights = torch.full((len(active),), 1.0 / len(active))
        kind: Any = way
        return fused_divergence(hidden[active], head, teacher[active], head, weights, kind=kind)[0]

    loss_of = {"naive": naive, "trl": trl}.get(way, ours)

    def run(*given: Any) -> float:
        loss: Any = loss_of(*given)
        loss.backward()
        return float(loss.detach())

    return run


def _mib(field: str) -> float:
    """Return a size of this process in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def report(numbers: dict[str, dict[str, dict[str, float]]]) -> tuple[str, float]:
    """Return the page, and the largest share of a bar that is used: above 1 it is missed."""
    import torch
    import trl

    lines = [
        "# The divergence kernel beside full logits and TRL's", "",
        f"`make bench-losses`: {TOKENS} tokens, float32, one thread, forward and backward, each way"
        " in a process of its own; CPU seconds and the high-water mark above inputs. torch"
        f" {torch.__version__}, trl {trl.__version__}, {platform.machine()}.",
    ]  # fmt: skip
    bars: list[tuple[float, str]] = []
    for name, case in CASES.items():
        lines += ["", f"## {case.title}", "", "| | CPU s | peak MiB | loss |", "|---|--:|--:|--:|"]
        found = numbers[name]
        lines += [
            f"| {WAYS[way]} | {n['cpu']:.2f} | {n['memory']:.0f} | {n['loss']:.5f} |"
            for way, n in found.items()
        ]
        for other, what, bar in case.bars:
            ratio = found["jsd"][what] / found[other][what]
            row = f"| {case.title} | {what} | {WAYS[other]} | {ratio:.2f} | {bar:.3g} |"
            bars.append((ratio / bar, row))
    lines += ["", "## Ours in relation, worst last", ""]
    lines += ["| case | of | to | ratio | bar |", "|---|---|---|--:|--:|"]
    lines += [row for _, row in sorted(bars)]
    worst = max(share for share, _ in bars)
    lines += ["", f"Worst: {worst:.2f} of its bar."]
    return "\n".join(lines) + "\n", worst


if __name__ == "__main__":
    sys.exit(main())
