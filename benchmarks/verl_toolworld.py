"""Does a model trained by VeRL learn what one trained by TRL learns? On the proof's small world.

    python benchmarks/verl_toolworld.py --verl-python .venv-verl/bin/python --record

The arm with all four channels, and two with one (half coverage, honest
teachers), 60 steps of one replica, for each seed once with each trainer, through ``python -m
trainers``; measured on held-out sessions. Exits 1 if a share of right actions differs by more than
a point in the mean over seeds.
"""

import argparse
import datetime as dt
import shutil
import sys
from collections import defaultdict
from itertools import product
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from composer_pipeline.evaluation.measure import Arm, measure  # noqa: E402
from composer_pipeline.markdown import table  # noqa: E402
from composer_pipeline.training.registry import installed  # noqa: E402
from examples.proof.arms import ARMS, recipe_of_arm  # noqa: E402
from examples.proof.replicas import train_replicas  # noqa: E402
from examples.proof.run import dataset, windows_of  # noqa: E402
from examples.proof.toolworld.pipeline import Plan, evaluation_states  # noqa: E402
from examples.proof.toolworld.world import held_out_sessions  # noqa: E402

ARM_NAMES, STEPS, BAR = ("composer", "grpo-recorded", "dpo"), 60, 0.01
RECORD = ROOT / "benchmarks" / "results" / "verl_toolworld.md"


def main() -> int:
    """Train, measure and compare; return 1 if the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verl-python", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name}")
    options = parser.parse_args()
    python = str(Path(options.verl_python).absolute())
    states = evaluation_states(held_out_sessions())
    shares: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    with TemporaryDirectory(prefix="verl-world-") as folder:
        for seed in options.seeds:
            lake = dataset(Path(folder, f"data-{seed}"), Plan(seed))
            for arm, (trainer, of) in product(ARM_NAMES, (("trl", ""), ("verl", python))):
                recipe = recipe_of_arm(arm, seed=seed, steps=STEPS).model_copy(
                    update={"trainer": trainer, "norms_every": 10}
                )
                backend = recipe.backend.model_copy(update={"python": of})
                recipe = recipe.model_copy(update={"backend": backend})
                run_dir = Path(folder, f"{trainer}-{arm}-{seed}")
                trained = train_replicas(lake, recipe, run_dir, kill=False)
                results = measure(states, [Arm(trainer, trained.model)], windows_of(recipe)).results
                found: dict[str, list[bool]] = defaultdict(list)
                for result in results[trainer]:
                    found[result.kind].append(result.judgement.exact)
                for kind, right in sorted(found.items()):
                    shares[arm, kind, trainer].append(mean(right))
                    print(f"seed {seed} {arm} {trainer} {kind}: {mean(right):.4f}", flush=True)
                shutil.rmtree(run_dir)
    rows, most = [], 0.0
    for arm, kind in sorted({(arm, kind) for arm, kind, _ in shares}):
        trl, verl = shares[arm, kind, "trl"], shares[arm, kind, "verl"]
        most = max(most, abs(mean(verl) - mean(trl)))
        each = ", ".join(f"{b - a:+.4f}" for a, b in zip(trl, verl, strict=True))
        rows.append([ARMS[arm].what, kind, f"{mean(trl):.4f}", f"{mean(verl):.4f}", each])
    versions = installed(python, ["verl", "torch"]) | installed("", ["trl"])
    text = (
        "# VeRL beside TRL on the proof's small world\n\n"
        f"`benchmarks/verl_toolworld.py`, {dt.datetime.now(dt.UTC):%Y-%m-%d}: "
        + ", ".join(f"{name} {number}" for name, number in versions.items())
        + f"; on CPUs. Arms of [the proof](proof.md), half coverage, honest teachers, {STEPS}"
        f" steps, seeds {', '.join(map(str, options.seeds))}; share of right actions, argument for"
        " argument, on 240 sessions of the development world.\n\n"
        + table(["arm", "states", "TRL", "VeRL", "VeRL − TRL, by seed"], rows)
        + f"\n\nLargest difference of the means: {100 * most:.2f} points (bar {100 * BAR:.0f}).\n"
    )
    print(text)
    if options.record:
        RECORD.write_text(text, encoding="utf-8")
    return int(most > BAR)


if __name__ == "__main__":
    sys.exit(main())
