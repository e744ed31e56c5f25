"""``make proof``: arms x seeds on the small world, and a report.

    python -m examples.proof.run                # the arms that matter, eight seeds
    python -m examples.proof.run --all          # every arm, and other teachers
    python -m examples.proof.run --development  # for choosing: known sessions, kept apart
    python -m examples.proof.run --model Qwen/Qwen2.5-0.5B-Instruct --lora 16 --dtype bf16

The sessions that are measured on, and the seeds of training data and models, follow from a number
that is drawn when a run starts: no choice can have been made on them. Below ``--out``:
``test.json`` (that number and what it gives), ``states.parquet`` (the frozen evaluation set),
``data/<plan>`` (session files and lake, made once and shared by the arms), ``runs/<plan>/<arm>``
(recipe, rows, weights and ``results.parquet``, which makes it complete), ``results.parquet``,
``summary.json`` and ``report.md``. A run that was killed goes on with the arms that are missing.
"""

import argparse
import gc
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace as changed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

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
from composer_pipeline.training.rows import Demonstration, Prompt, TrainingData
from composer_pipeline.training.run import RECIPE, write_recipe
from composer_pipeline.training.window_text import Dropped
from composer_pipeline.training.windows import Windows
from examples.proof.arms import ARMS, DEFAULT, STEPS, recipe_of_arm
from examples.proof.replicas import train_replicas
from examples.proof.report import NUMBERS, RESULTS, TEST, collect, write_report
from examples.proof.students import TOOLS, described, student_of
from examples.proof.toolworld.pipeline import (
    Plan,
    evaluation_states,
    families,
    make_dataset,
    teach,
)
from examples.proof.toolworld.world import (
    KEPT,
    Recorded,
    for_development,
    for_test,
    held_out_sessions,
)
from examples.proof.train import Change, rows_said, rows_trained, train_arm

STATES, DATA, RUNS = "states.parquet", "data", "runs"
#: Coverage and shared misconceptions in percent of the default, and of --all too.
MAIN = ("half", 25)
OTHERS = (("half", 0), ("half", 60), ("full", 25))
SEEDS, HELD_OUT, SESSIONS = 8, 480, 80
#: What is drawn of a run is below this.
_DRAWN = 10**6


def main(argv: Sequence[str] | None = None) -> int:
    """Run the grid and write the report; exit 2 for bad input, 1 when an arm fails."""
    options = _options(argv)
    try:
        arms = _chosen(options)
        test, states = drawn(options.out / TEST, options.held_out, development=options.development)
        student = None
        if options.model:
            student = student_of(
                options.model, states, lora=options.lora, dtype=options.dtype, tools=options.tools
            )
        seeds = [test.seed + k for k in range(1, options.seeds + 1)]
        todo = [(Plan(k, options.sessions, *MAIN), arm) for k in seeds for arm in arms]
        if options.all:
            # What has no teacher is the same whatever teachers do.
            own = [arm for arm in arms if "coverage" in ARMS[arm].data or ARMS[arm].replicas]
            asked = [arm for arm in arms if arm not in own]
            todo += [
                (Plan(k, options.sessions, *cell), arm)
                for cell in OTHERS for k in seeds for arm in asked
            ]  # fmt: skip
        prove(options.out, todo, states, steps=options.steps, student=student, jobs=options.jobs)
    except ComposerError as error:
        sys.stderr.write(f"proof: {error}\n")
        return 2 if isinstance(error, InputError) else 1
    return 0


class Test(msgspec.Struct, frozen=True):
    """What was drawn for a run: all of its sessions, data and models follow from ``seed``."""

    seed: int
    development: bool
    held_out: int
    #: State id to the kind of its session's mistake.
    families: dict[str, str] = {}

    def sessions(self) -> list[Recorded]:
        """Return the sessions that are measured on."""
        accept = for_development if self.development else for_test
        return held_out_sessions(self.held_out, seed=self.seed, accept=accept)


def drawn(path: Path, held_out: int, *, development: bool) -> tuple[Test, list[EvaluationState]]:
    """Return what a run has drawn, the first time by drawing it, and the states of its sessions."""
    if held_out > KEPT:
        raise InputError(f"--held-out {held_out}: the world has {KEPT} sessions to measure on")
    if path.is_file():
        try:
            test = msgspec.json.decode(path.read_bytes(), type=Test)
        except msgspec.DecodeError as error:
            raise InputError(f"{path} cannot be read: {error}") from error
        if (test.held_out, test.development) != (held_out, development):
            raise InputError(f"{path} is of other --held-out or --development; take another --out")
        return test, evaluation_states(test.sessions())
    test = Test(0 if development else secrets.randbelow(_DRAWN), development, held_out)
    by_session = families(test.sessions())
    states = evaluation_states(test.sessions())
    test = msgspec.structs.replace(
        test, families={state.state_id: by_session[state.session_id] for state in states}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, msgspec.json.encode(test).decode())
    return test, states


def prove(
    out: Path,
    todo: Sequence[tuple[Plan, str]],
    states: list[EvaluationState],
    *,
    steps: int = STEPS,
    student: dict[str, Any] | None = None,
    jobs: int = 1,
) -> None:
    """Train and measure each arm on its plan unless its result is there, and report all."""
    states = frozen_states(out / STATES, states, "version")
    about = described(student) if student else ""
    run = partial(_run, out, states, steps, student)
    found = _in_processes(out, todo, run, jobs) if jobs > 1 else map(run, todo)
    for number, said in enumerate(found, start=1):
        print(f"[{number}/{len(todo)}] {said}", flush=True)
    write_report(out, collect(out / RUNS), about)


def _in_processes(
    out: Path, todo: Sequence[tuple[Plan, str]], run: Callable[[tuple[Plan, str]], str], jobs: int
) -> Iterator[str]:
    """Make the data that arms need, each once, then run them; yield what each says."""
    plans = dict.fromkeys(ARMS[arm].plan(plan) for plan, arm in todo)
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=20)
    try:
        list(pool.map(partial(_prepare, out), plans))
        for future in as_completed([pool.submit(run, each) for each in todo]):
            yield future.result()
    except BrokenProcessPool as error:
        raise ComposerError(f"a process was ended from outside; start it again: {error}") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare(out: Path, plan: Plan) -> None:
    dataset(out / DATA / name_of(plan), plan)


def _run(
    out: Path,
    states: Sequence[EvaluationState],
    steps: int,
    student: dict[str, Any] | None,
    what: tuple[Plan, str],
) -> str:
    import torch

    torch.set_num_threads(1)  # the same sums everywhere
    plan, arm = what
    began = time.monotonic()
    fresh = run_arm(out, plan, arm, states, steps=steps, student=student)
    gc.collect()  # a trainer is a circle; a device may have no room for two
    return f"{name_of(plan)} {arm}: {f'{time.monotonic() - began:.0f} s' if fresh else 'kept'}"


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
    plan = ARMS[arm].plan(plan)
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
        kind = ARMS[arm].rows
        change = demonstrations(lake, windows_of(recipe), kind) if kind else None
        trained, rows = train_arm(lake, recipe, run_dir, change), rows_trained(run_dir, change)
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
        recorded = folder.with_name(name_of(changed(plan, hints="culprit", pairs="all"))) / "lake"
        if recorded.is_dir():  # other hints and pairs of what was recorded and asked
            shutil.copytree(recorded, scratch / "lake")
            teach(Lake(str(scratch / "lake")), plan)
        else:
            make_dataset(plan, scratch)
        scratch.replace(folder)
    return Lake(str(folder / "lake"))


def demonstrations(lake: Lake, windows: Windows, kind: Literal["placebo", "fixes"]) -> Change:
    """Return the change of what SFT repeats, where that fits the window: see ``arms.Arm``."""
    found = []
    table = "dataset_groups" if kind == "placebo" else "dataset_pairs"
    for row in lake.iter_rows(table, split="train"):
        if kind == "placebo":
            action = [row["candidates"][row["sources"].index("agent")]]
        else:
            action = row["chosen"]
        prompt = Prompt(windows, row)
        try:
            found.append(
                Demonstration(row["state_id"], prompt.ids, prompt.response(prompt.action(action)))
            )
        except Dropped as reason:
            print(f"{kind}, state {row['state_id']} left out: {reason}", flush=True)

    def change(data: TrainingData) -> TrainingData:
        kept = data.demonstrations if kind == "fixes" else ()
        return msgspec.structs.replace(data, demonstrations=[*kept, *found])

    return change


def name_of(plan: Plan) -> str:
    """Return the folder name of a plan."""
    other = [word for word in (plan.hints, plan.pairs) if word not in ("culprit", "all")]
    words = [plan.coverage, f"{plan.shared}shared", str(plan.count), *other, f"seed{plan.seed}"]
    return "-".join(words)


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


def _chosen(options: argparse.Namespace) -> list[str]:
    """Return the arms that are named, or those of the default or of --all."""
    lora = options.lora
    if options.arms is None:
        names = ARMS if options.all else DEFAULT
        return [name for name in names if not (lora and ARMS[name].replicas)]
    unknown = [name for name in options.arms if name not in ARMS]
    if unknown:
        raise InputError(f"--arms: no arm {unknown[0]!r}; there are {', '.join(ARMS)}")
    whole = [name for name in options.arms if lora and ARMS[name].replicas]
    if whole:
        raise InputError(f"--arms: {whole[0]} merges whole models; leave it out, or --lora 0")
    return list(options.arms)


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make proof", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("proof"))
    parser.add_argument("--arms", type=lambda text: text.split(","))
    parser.add_argument("--all", action="store_true", help="every arm, and other teachers")
    parser.add_argument("--development", action="store_true", help="known sessions, for choosing")
    parser.add_argument("--seeds", type=_count, default=SEEDS, help=f"how many ({SEEDS})")
    parser.add_argument("--sessions", type=_count, default=SESSIONS)
    parser.add_argument("--steps", type=_count, default=STEPS)
    said = f"sessions measured on ({HELD_OUT})"
    parser.add_argument("--held-out", type=_count, default=HELD_OUT, help=said)
    parser.add_argument("--jobs", type=_count, default=2, help="processes (2)")
    parser.add_argument("--model", help="folder or Hub id of a student in place of the small one")
    parser.add_argument("--lora", type=int, default=0, help="rank; 0 (default): every parameter")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--tools", type=int, default=TOOLS, help=f"tokens of schemas ({TOOLS})")
    options = parser.parse_args(argv)
    given = (options.lora, options.dtype, options.tools) != (0, "fp32", TOOLS)
    if given and not options.model:
        parser.error("--lora, --dtype and --tools belong to --model")
    if options.model:
        options.jobs = 1  # of a device there is one
    return options


if __name__ == "__main__":
    sys.exit(main())
