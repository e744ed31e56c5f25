"""What rounds of one fragment cost in quality, beside rounds of the whole model.

    python benchmarks/diloco_fragments.py [--record]

not
"""

import sys
import time
from pathlib import Path

import pages
import torch
from diloco import STEPS, Row, Text, World, table

RESULTS = Path(__file__).parent / "results" / "diloco_fragments.md"
#: Steps in which each parameter is merged once, and the inner learning rate, which won in
#: ``benchmarks.diloco``.
TURN, RATE = 24, 4e-3


def measure(seed: int) -> list[Row]:
    """Return what runs in fragments end with, beside the run that merges the whole model."""
    world = World(Text.load(), seed)
    runs: dict[tuple[int, int], tuple[float, int, int]] = {}
    for fragments, steps in ((1, TURN), (2, TURN // 2), (4, TURN // 4), (2, TURN), (4, TURN)):
        sent: list[int] = []
        model = world.diloco(
            RATE, fragments=fragments, steps_a_round=steps, rounds=STEPS // steps, sent=sent
        )
        runs[fragments, steps] = world.text.loss(model), max(sent[:-1]), sum(sent)
    whole, largest, total = runs.pop((1, TURN))
    rows = [Row(f"whole, H = {TURN}: loss", whole, "nats")]
    for (fragments, steps), (loss, peak, bytes_) in runs.items():
        name = f"{fragments} fragments, H = {steps}"
        # Merged as often as the whole model is, or so many times less often.
        bar = 1.0 if fragments * steps == TURN else None
        rows += [
            Row(f"{name}: loss above whole", 100 * (loss / whole - 1), "%", bar),
            Row(f"{name}: largest round but the last, of a whole one", 100 * peak / largest, "%"),
            Row(f"{name}: bytes of the run, of the whole one's", 100 * bytes_ / total, "%"),
        ]
    return rows


def page(rows: list[Row], cpu_s: float) -> str:
    """Return the recorded page."""
    return "\n".join(
        [
            "# DiLoCo in fragments",
            "",
            f"`python benchmarks/diloco_fragments.py`, seed 1, {cpu_s:.0f} CPU seconds.",
            f"The model, text and warm start of `diloco.md`; 2 replicas, {STEPS} steps of each, so",
            f"equal tokens, at the learning rate {RATE:g}; fp32. The model has five tensors, and",
            "its largest is 56 % of it: no round can have fewer bytes than that. The last round of",
            "each run merges everything.",
            "",
            *table(rows),
            "",
        ]
    )


def main() -> int:
    """Measure, print and perhaps record; 1 where a bar is not met."""
    parser = pages.options(__doc__, RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.process_time()
    rows = measure(1)
    text = page(rows, time.process_time() - begun)
    pages.show(text, RESULTS, given)
    return int(not all(row.met for row in rows))


if __name__ == "__main__":
    sys.exit(main())
