"""``make proof``: arms x seeds x coverage x wrong teachers on the small world, and a report.

Belongs here: the grid, its folders and what is kept of a killed run. Does not belong here: the
arms (``proof.arms``), training one (``proof.train``) and the tables (``proof.report``).

    python -m examples.proof.run --arms sft,composer --seeds 1,2 --coverage half --wrong 0

Below ``--out``: ``states.parquet`` (the frozen evaluation set), ``data/<plan>`` (session files
and lake, made once and shared by the arms), ``runs/<plan>/<arm>`` (recipe, rows, weights and
``results.parquet``, which makes it complete), ``results.parquet`` and ``report.md``. A run that
was killed goes on with the arms that are missing.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from composer_pipeline.chat import prompt_hash
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.evaluation import (
    BASE,
    Arm,
    EvaluationState,
    check_disjoint,
    content_hash,
    measure,
    read_states,
    write_results,
    write_states,
)
from composer_pipeline.files import replace
from composer_pipeline.lake import DATASETS, Lake
from composer_pipeline.testing.toolworld.pipeline import Plan, make_dataset
from composer_pipeline.testing.toolworld.states import evaluation_states
from composer_pipeline.testing.toolworld.student import WINDOW, base_dir
from composer_pipeline.testing.toolworld.world import held_out_sessions
from composer_pipeline.training.models import load_tokenizer
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import RECIPE, write_recipe
from composer_pipeline.training.windows import Windows
from examples.proof.arms import ARMS, STEPS, recipe_of_arm
from examples.proof.replicas import train_replicas
from examples.proof.report import NUMBERS, RESULTS, collect, write_report
from examples.proof.train import train_arm

STATES, DATA, RUNS = "states.parquet", "data", "runs"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the grid and write the report; exit 2 for bad input, 1 when an arm fails."""
    options = _options(argv)
    try:
        arms = _chosen(options.arms)
        plans = [
            Plan(seed, options.sessions, coverage, wrong)
            for seed, coverage, wrong in product(options.seeds, options.coverage, options.wrong)
        ]
        prove(options.out, arms, plans, steps=options.steps)
    except ComposerError as error:
        sys.stderr.write(f"proof: {error}\n")
        return 2 if isinstance(error, InputError) else 1
    return 0


def prove(out: Path, arms: Sequence[str], plans: Sequence[Plan], *, steps: int = STEPS) -> None:
    """Train and measure every arm on every plan that has no result yet, and report all.

    Raises:
        InputError: the folder is one of another evaluation set or recipe; an arm has no rows.
        ComposerError: an arm failed.
    """
    import torch

    torch.set_num_threads(1)  # the same sums everywhere
    states = frozen_states(out / STATES, evaluation_states(held_out_sessions()), "version")
    todo = [(plan, arm) for plan in plans for arm in arms]
    for number, (plan, arm) in enumerate(todo, start=1):
        began = time.monotonic()
        fresh = run_arm(out, plan, arm, states, steps=steps)
        what = f"{time.monotonic() - began:.0f} s" if fresh else "kept"
        print(f"[{number}/{len(todo)}] {name_of(plan)} {arm}: {what}", flush=True)
        if fresh:
            write_report(out, collect(out / RUNS))
    write_report(out, collect(out / RUNS))


def frozen_states(path: Path, made: list[EvaluationState], of: str) -> list[EvaluationState]:
    """Return the evaluation set, written once.

    Args:
        path: of its file.
        made: what it would be now.
        of: what has made another one, for the sentence.

    Raises:
        InputError: the file holds another set.
    """
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_states(path, made)
    states = read_states(path)
    if content_hash(states) != content_hash(made):
        raise InputError(f"{path} is the evaluation set of another {of}; take another --out")
    return states


def run_arm(
    out: Path, plan: Plan, arm: str, states: Sequence[EvaluationState], *, steps: int
) -> bool:
    """Train and measure an arm, unless its result is there; say whether it was not.

    Raises:
        InputError: the run folder is one of another recipe.
    """
    recipe = recipe_of_arm(arm, seed=plan.seed, steps=steps)
    run_dir = out / RUNS / name_of(plan) / arm
    if is_done(run_dir, recipe, RESULTS):
        return False
    lake = dataset(out / DATA / name_of(plan), plan)
    apart(lake, states)
    if run_dir.exists():
        shutil.rmtree(run_dir)  # of a run that was killed
    run_dir.mkdir(parents=True)
    write_recipe(recipe, run_dir)
    began = time.process_time()
    if ARMS[arm].replicas:
        trained = train_replicas(lake, recipe, run_dir, kill=ARMS[arm].kill)
    else:
        trained = train_arm(lake, recipe, run_dir, placebo(lake) if ARMS[arm].placebo else None)
    numbers = {"cpu_seconds": time.process_time() - began, **trained.gate, **trained.numbers}
    trained.model.save_pretrained(str(run_dir / "model"))
    replace(run_dir / NUMBERS, msgspec.json.encode(numbers).decode())
    from trainers.trl.policy.loading import load_base

    windows = Windows(load_tokenizer(str(base_dir())), WINDOW)
    base = Arm(BASE, load_base(recipe.model, recipe).eval())
    measured = measure(states, [base, Arm(arm, trained.model)], windows)
    if measured.dropped:
        raise ComposerError(f"{len(measured.dropped)} evaluation states do not fit the windows")
    write_results(run_dir / RESULTS, measured.results)
    return True


def dataset(folder: Path, plan: Plan) -> Lake:
    """Return the lake of a plan, made on first use; a folder appears whole or not at all."""
    if not folder.is_dir():
        scratch = folder.with_name(f".{folder.name}.tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        make_dataset(plan, scratch)
        scratch.replace(folder)
    return Lake(str(folder / "lake"))


def placebo(lake: Lake) -> Any:
    """Return the change that makes SFT repeat what the agent did."""
    recorded = {
        row["state_id"]: row["candidates"][row["sources"].index("agent")]
        for row in lake.iter_rows("dataset_groups", split="train")
    }
    windows = Windows(load_tokenizer(str(base_dir())), WINDOW)
    prompts = {
        row["state_id"]: windows.window(row["prompt"], row["tools"])
        for row in lake.iter_rows("dataset_groups", split="train")
    }

    def change(data: Any) -> Any:
        rows = [
            msgspec.structs.replace(
                row, response_ids=windows.response_ids(*prompts[row.id], recorded[row.id])
            )
            for row in data.demonstrations
        ]
        return msgspec.structs.replace(data, demonstrations=rows)

    return change


def name_of(plan: Plan) -> str:
    """Return the folder name of a plan."""
    return f"{plan.coverage}-{plan.wrong}wrong-{plan.count}-seed{plan.seed}"


def is_done(run_dir: Path, recipe: TrainingRecipe, last: str) -> bool:
    """Say whether a run folder has the file that is written last.

    Raises:
        InputError: it has, and is the run of another recipe.
    """
    if not (run_dir / last).is_file():
        return False
    if TrainingRecipe.load(run_dir / RECIPE) != recipe:
        raise InputError(f"{run_dir} is the run of another recipe; take another --out")
    return True


def apart(lake: Lake, states: Sequence[EvaluationState]) -> None:
    """Refuse a dataset that shares a session or a prompt with the evaluation set."""
    trained = {prompt_hash(p) for table in DATASETS for p in _prompts(lake, table)}
    sessions = {row["session_id"] for row in lake.rows("sessions", columns=["session_id"])}
    check_disjoint(states, sessions, trained)


def _prompts(lake: Lake, table: str) -> Iterator[list[dict[str, Any]]]:
    for row in lake.iter_rows(table, columns=["prompt"], split="train"):
        yield row["prompt"]


def _chosen(names: Sequence[str]) -> list[str]:
    unknown = [name for name in names if name not in ARMS]
    if unknown:
        raise InputError(f"--arms: no arm {unknown[0]!r}; there are {', '.join(ARMS)}")
    return list(names)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(prog="make proof", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("proof"))
    parser.add_argument("--arms", type=words, default=list(ARMS))
    parser.add_argument("--seeds", type=numbers, default=[1, 2, 3, 4, 5])
    parser.add_argument("--coverage", type=words, default=["half", "full"])
    parser.add_argument("--wrong", type=numbers, default=[0, 1, 2], help="wrong teachers of three")
    parser.add_argument("--sessions", type=int, default=80)
    parser.add_argument("--steps", type=int, default=STEPS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
