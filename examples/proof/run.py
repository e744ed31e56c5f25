"""``make proof``: arms x seeds x coverage x wrong teachers on the small world, and a report.

    python -m examples.proof.run --arms sft,composer --seeds 1,2 --coverage half --wrong 0
    python -m examples.proof.run --model Qwen/Qwen2.5-0.5B-Instruct --lora 16 --dtype bf16

Below ``--out``: ``states.parquet`` (the frozen evaluation set), ``data/<plan>`` (session files
and lake, made once and shared by the arms), ``runs/<plan>/<arm>`` (recipe, rows, weights and
``results.parquet``, which makes it complete), ``results.parquet`` and ``report.md``. A run that
was killed goes on with the arms that are missing.
"""

import argparse
import gc
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from composer_pipeline.chat.convert import prompt_hash
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.evaluation.measure import Arm, measure
from composer_pipeline.evaluation.results import BASE, StateResult, read_results, write_results
from composer_pipeline.evaluation.states import (
    EvaluationState,
    check_disjoint,
    content_hash,
    read_states,
    write_states,
)
from composer_pipeline.files import replace
from composer_pipeline.lake.schema import DATASETS
from composer_pipeline.lake.store import Lake
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import RECIPE, write_recipe
from composer_pipeline.training.window_text import Dropped
from composer_pipeline.training.windows import Windows
from examples.proof.arms import ARMS, STEPS, recipe_of_arm
from examples.proof.replicas import train_replicas
from examples.proof.report import NUMBERS, RESULTS, collect, rows_said, write_report
from examples.proof.students import TOOLS, described, student_of
from examples.proof.toolworld.pipeline import Plan, evaluation_states, make_dataset
from examples.proof.toolworld.world import held_out_sessions
from examples.proof.train import rows_trained, train_arm

STATES, DATA, RUNS = "states.parquet", "data", "runs"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the grid and write the report; exit 2 for bad input, 1 when an arm fails."""
    options = _options(argv)
    try:
        arms = _chosen(options.arms, options.lora)
        plans = [
            Plan(seed, options.sessions, coverage, wrong)
            for seed, coverage, wrong in product(options.seeds, options.coverage, options.wrong)
        ]
        states, student = evaluation_states(held_out_sessions(options.held_out)), None
        if options.model:
            student = student_of(
                options.model, states, lora=options.lora, dtype=options.dtype, tools=options.tools
            )
        prove(options.out, arms, plans, steps=options.steps, states=states, student=student)
    except ComposerError as error:
        sys.stderr.write(f"proof: {error}\n")
        return 2 if isinstance(error, InputError) else 1
    return 0


def prove(
    out: Path,
    arms: Sequence[str],
    plans: Sequence[Plan],
    *,
    steps: int = STEPS,
    states: list[EvaluationState] | None = None,
    student: dict[str, Any] | None = None,
) -> None:
    """Train and measure every arm on every plan that has no result yet, and report all."""
    import torch

    torch.set_num_threads(1)  # the same sums everywhere
    made = evaluation_states(held_out_sessions()) if states is None else states
    states = frozen_states(out / STATES, made, "version")
    about = described(student) if student else ""
    todo = [(plan, arm) for plan in plans for arm in arms]
    for number, (plan, arm) in enumerate(todo, start=1):
        began = time.monotonic()
        fresh = run_arm(out, plan, arm, states, steps=steps, student=student)
        what = f"{time.monotonic() - began:.0f} s" if fresh else "kept"
        print(f"[{number}/{len(todo)}] {name_of(plan)} {arm}: {what}", flush=True)
        if fresh:
            gc.collect()  # a trainer is a circle; a device may have no room for two
            write_report(out, collect(out / RUNS), about)
    write_report(out, collect(out / RUNS), about)


def frozen_states(path: Path, made: list[EvaluationState], of: str) -> list[EvaluationState]:
    """Return the evaluation set, written once."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_states(path, made)
    states = read_states(path)
    if content_hash(states) != content_hash(made):
        raise InputError(f"{path} is the evaluation set of another {of}; take another --out")
    return states


def run_arm(
    out: Path,
    plan: Plan,
    arm: str,
    states: Sequence[EvaluationState],
    *,
    steps: int,
    student: Mapping[str, Any] | None = None,
) -> bool:
    """Train and measure an arm, unless its result is there; say whether it was not."""
    recipe = recipe_of_arm(arm, seed=plan.seed, steps=steps, student=student)
    run_dir = out / RUNS / name_of(plan) / arm
    known = base_of(out / RUNS, recipe)
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
        trained, rows = train_replicas(lake, recipe, run_dir, kill=ARMS[arm].kill), {}
    else:
        change = placebo(lake, windows_of(recipe)) if ARMS[arm].placebo else None
        trained, rows = train_arm(lake, recipe, run_dir, change), rows_trained(run_dir)
        if left := rows_said(rows)[1]:
            print(f"{name_of(plan)} {arm}: {left}", flush=True)
    seconds = {"cpu_seconds": time.process_time() - began}
    numbers = {**seconds, **rows, **trained.gate, **trained.numbers}
    trained.model.save_pretrained(str(run_dir / "model"))
    replace(run_dir / NUMBERS, msgspec.json.encode(numbers).decode())
    measured = measure(
        states, [base_arm(recipe, trained.model), Arm(arm, trained.model)], windows_of(recipe),
        known=known,
    )  # fmt: skip
    if measured.dropped:
        raise ComposerError(f"{len(measured.dropped)} evaluation states do not fit the windows")
    write_results(run_dir / RESULTS, measured.results)
    return True


def base_of(runs: Path, recipe: TrainingRecipe) -> dict[str, list[StateResult]]:
    """Return what the first finished arm measured of the base; nothing before that."""
    for path in sorted(runs.glob(f"*/*/{RESULTS}")):
        other = TrainingRecipe.load(path.with_name(RECIPE))
        for field in ("model", "lora", "dtype", "data"):
            if getattr(other, field) != getattr(recipe, field):
                raise InputError(
                    f"{path.parent} is the run of another student ({field}); take another --out"
                )
        return {BASE: read_results(path)[BASE]}
    return {}


def base_arm(recipe: TrainingRecipe, trained: Any) -> Arm:
    """Return the base: the trained model without its adapter, or loaded beside it."""
    if recipe.lora.r:
        return Arm(BASE, trained, adapter=False)
    from trainers.common.policy import load_base

    return Arm(BASE, load_base(resolve_model(recipe.model), recipe).to(trained.device).eval())


def windows_of(recipe: TrainingRecipe) -> Windows:
    """Return the windows of a recipe's rows."""
    return Windows(load_tokenizer(resolve_model(recipe.model)), recipe.data)


def dataset(folder: Path, plan: Plan) -> Lake:
    """Return the lake of a plan, made on first use; a folder appears whole or not at all."""
    if not folder.is_dir():
        scratch = folder.with_name(f".{folder.name}.tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        make_dataset(plan, scratch)
        scratch.replace(folder)
    return Lake(str(folder / "lake"))


def placebo(lake: Lake, windows: Windows) -> Any:
    """Return the change that makes SFT repeat what the agent did, where that fits the window."""
    recorded = {}
    for row in lake.iter_rows("dataset_groups", split="train"):
        own = row["candidates"][row["sources"].index("agent")]
        try:
            window = windows.window(row["prompt"], row["tools"])
            recorded[row["state_id"]] = windows.response_ids(*window, own)
        except Dropped as reason:
            print(f"placebo, state {row['state_id']} left out: {reason}", flush=True)

    def change(data: Any) -> Any:
        rows = [
            msgspec.structs.replace(row, response_ids=recorded[row.id])
            for row in data.demonstrations
            if row.id in recorded
        ]
        return msgspec.structs.replace(data, demonstrations=rows)

    return change


def name_of(plan: Plan) -> str:
    """Return the folder name of a plan."""
    return f"{plan.coverage}-{plan.wrong}wrong-{plan.count}-seed{plan.seed}"


def is_done(run_dir: Path, recipe: TrainingRecipe, last: str) -> bool:
    """Say whether a run folder has the file that is written last."""
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


def _chosen(names: Sequence[str] | None, lora: int) -> list[str]:
    """Return the arms that are named, or all that the student can be."""
    if names is None:
        return [name for name, arm in ARMS.items() if not (lora and arm.replicas)]
    unknown = [name for name in names if name not in ARMS]
    if unknown:
        raise InputError(f"--arms: no arm {unknown[0]!r}; there are {', '.join(ARMS)}")
    whole = [name for name in names if lora and ARMS[name].replicas]
    if whole:
        raise InputError(f"--arms: {whole[0]} merges whole models; leave it out, or --lora 0")
    return list(names)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(prog="make proof", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("proof"))
    parser.add_argument("--arms", type=words)
    parser.add_argument("--seeds", type=numbers, default=[1, 2, 3, 4, 5])
    parser.add_argument("--coverage", type=words, default=["half", "full"])
    parser.add_argument("--wrong", type=numbers, default=[0, 1, 2], help="wrong teachers of three")
    parser.add_argument("--sessions", type=int, default=80)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--held-out", type=int, default=120, help="sessions measured on (120)")
    parser.add_argument("--model", help="folder or Hub id of a student in place of the small one")
    parser.add_argument("--lora", type=int, default=0, help="rank; 0 (default): every parameter")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--tools", type=int, default=TOOLS, help=f"tokens of schemas ({TOOLS})")
    options = parser.parse_args(argv)
    given = (options.lora, options.dtype, options.tools) != (0, "fp32", TOOLS)
    if given and not options.model:
        parser.error("--lora, --dtype and --tools belong to --model")
    return options


if __name__ == "__main__":
    sys.exit(main())
