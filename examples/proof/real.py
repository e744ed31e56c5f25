"""``make proof-real``: does a model take from real error turns what the agent learnt from them?

    python -m examples.proof.real --sessions ~/.claude/projects

A case is a state at which the trace shows the right action: of an edit that caused a failure the
edit with its later fix folded in, of another mistake the agent's own later call that worked in its
place. So the right action is known without a teacher and without money.
Cases that fit the window are dealt into folds, whole groups of sessions at a time; each fold is
held out once and the arms are trained on the others, so that every case is measured by a model that
never saw its session. All arms take the same optimizer steps with as many rows of each of their
channels. Questions of reasoning-gym tell what else was unlearnt.

Below ``--out``: ``lake``, ``states.parquet`` (the frozen evaluation set), ``runs/<k>/<arm>-<seed>``
(rows, adapter, and ``numbers.json``, which makes it complete), ``runs/<k>/results.parquet``,
``summary.json`` and ``report.md``. A run that was killed goes on with what is missing. Nothing
leaves the machine.
"""

import argparse
import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import replace as replaced
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from composer_pipeline import build_dataset, build_hints, build_pairs, ingest, normalize
from composer_pipeline.actions import Action
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.evaluation.measure import Arm, measure
from composer_pipeline.evaluation.results import BASE, StateResult, read_results, write_results
from composer_pipeline.evaluation.select_states import select_states
from composer_pipeline.evaluation.states import EvaluationState, rows_of
from composer_pipeline.files import replace
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.rules import GATES, PreferenceRules
from composer_pipeline.settings import recipes_dir
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import write_recipe
from composer_pipeline.training.windows import Windows
from examples.proof.real_report import (
    CASE,
    PLACEBO,
    PRIMARY,
    QUESTION,
    SHIPPED,
    page,
    power,
    power_said,
    summarise,
)  # fmt: skip
from examples.proof.report import NUMBERS, REPORT, RESULTS, SUMMARY
from examples.proof.run import apart, frozen_states, is_done
from examples.proof.train import rows_trained, train_arm
from trainers.common.base_scores import FOLDER

STATES, RUNS, MODEL, SESSIONS = "states.parquet", "runs", "model", "sessions.json"
PLAN, HINTS = "plan.json", "sdpo.arrow"
#: Arm to its channels; ``None``: those of the recipe that ships, with their weights.
ARMS: dict[str, tuple[str, ...] | None] = {
    PLACEBO: ("sft",), "sft": ("sft",), "dpo": ("dpo",), "sdpo": ("sdpo",), SHIPPED: None,
}  # fmt: skip
#: Channel to the field that says how many of its rows a step takes.
_ROWS = {"sft": "rows_per_step", "dpo": "pairs_per_step", "sdpo": "rows_per_step"}
#: Beginnings of the numbers of a training that the report tells.
_TOLD = ("rows ", "left out, ", "hints_kept_share", "cpu_seconds")
#: Columns of a hint that a pair has too.
_SHARED = ("task", "prompt", "tools", "day", "repository", "state_id", "session_id", "group_id")
#: Short tasks of reasoning-gym, of arithmetic, letters, logic and dates.
_TASKS = (
    "basic_arithmetic", "simple_equations", "letter_counting", "spell_backward", "syllogism",
    "calendar_arithmetic",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What is compared: lengths in tokens, ``rows`` of each channel a step."""

    folds: int = 2
    steps: int = 8
    rows: int = 3
    rate: float = 2e-4
    #: Trainings of the arms of the primary contrast; the others have the first seed only.
    seeds: int = 3
    prompt: int = 2048
    answer: int = 512
    #: Of reasoning-gym, dealt to the folds.
    questions: int = 60
    model: str = "smollm2-135m"
    dtype: str = "fp32"
    #: Whether greedy answers are measured too; a small model has no right one.
    greedy: bool = False

    def recipe(self, arm: str, seed: int = 0) -> TrainingRecipe:
        """Return the recipe of an arm: losses, teacher and schedule are the shipped ones."""
        shipped = TrainingRecipe.load(recipes_dir() / "train" / "default.yaml")
        alone = ARMS[arm]
        weights = shipped.channels.weights() if alone is None else dict.fromkeys(alone, 1.0)
        channels = shipped.channels.model_dump()
        for channel, options in channels.items():
            options["weight"] = weights.get(channel, 0.0)
            if channel in _ROWS:
                options[_ROWS[channel]] = self.rows
        channels["sft"]["source"] = "successes"
        fields: dict[str, Any] = {
            "name": arm, "model": self.model, "dtype": self.dtype, "channels": channels,
            "lora": {"r": 8, "alpha": 16, "targets": "all-linear"}, "learning_rate": self.rate,
            "schedule": shipped.schedule, "seed": seed, "draw": "by-state",
            "data": {"max_prompt_tokens": self.prompt, "max_completion_tokens": self.answer,
                     "max_tools_tokens": self.prompt // 8, "max_dropped_share": 1.0},
            "micro_batch_tokens": max(4096, 2 * (self.prompt + self.answer)),
            "steps": self.steps, "diloco": {"replicas": 1, "inner_steps": self.steps},
            "norms_every": self.steps,
        }  # fmt: skip
        return TrainingRecipe.model_validate(fields)

    def windows(self) -> Windows:
        """Return the windows that every arm is trained and measured in."""
        return Windows(load_tokenizer(resolve_model(self.model)), self.recipe(SHIPPED).data)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing and write the report; exit 2 for bad input, 1 when an arm fails."""
    options = vars(_options(argv))
    out, sessions, arms = (options.pop(name) for name in ("out", "sessions", "arms"))
    try:
        prove(out, sessions, arms, Plan(**options))
    except ComposerError as error:
        sys.stderr.write(f"proof-real: {error}\n")
        return 2 if isinstance(error, InputError) else 1
    return 0


def prove(out: Path, sessions: Sequence[Path], arms: Sequence[str], plan: Plan) -> None:
    """Train and measure every arm with each fold held out, and report all."""
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)  # the same sums everywhere
    logging.disable_progress_bar()
    if unknown := [name for name in arms if name not in ARMS]:
        raise InputError(f"--arms: no arm {unknown[0]!r}; there are {', '.join(ARMS)}")
    made_by, mine = out / PLAN, json.dumps(asdict(plan))
    if made_by.is_file() and made_by.read_text() != mine:
        raise InputError(f"{out} is the run of another plan; take another --out")
    asked = questions(plan.questions)
    lake = lake_of(out / "lake", sessions)
    every = cases(lake)
    found = evaluation_set(lake, every)
    fitting, lost = rows_of(plan.windows(), found)
    states = [row.state for row in fitting]
    known = {state.state_id for state in states}
    rows = [row for row in every if row["state_id"] in known]
    fold_of = deal(rows, plan.folds)
    groups = {row["state_id"]: row["group_id"] for row in rows}
    frozen_states(out / STATES, states + asked, "plan")
    replace(made_by, mine)
    facts: dict[str, Any] = {
        "plan": asdict(plan), "found": len(found), "lost": Counter(lost.values()),
        "origins": Counter(row["origin"] for row in rows),
        "power": power([(row["session_id"], row["group_id"]) for row in rows]),
    }  # fmt: skip
    print(power_said(facts["power"]), flush=True)
    runs = [(arm, k) for arm in arms for k in range(plan.seeds if arm in PRIMARY[:2] else 1)]
    for fold in range(plan.folds):
        folder = out / RUNS / str(fold)
        train = [row for row in rows if fold_of[row["group_id"]] != fold]
        held_out = [state for state in states if fold_of[groups[state.state_id]] == fold]
        held_out += asked[fold :: plan.folds]
        for arm, seed in runs:
            began = time.monotonic()
            fresh = train_on(folder, arm, seed, train, held_out, plan)
            said = f"{time.monotonic() - began:.0f} s" if fresh else "kept"
            print(f"fold {fold + 1} of {plan.folds}, {arm}, seed {seed}: {said}", flush=True)
        measure_fold(folder, [_run(arm, seed) for arm, seed in runs], held_out, plan)
    report(out, [out / RUNS / str(fold) for fold in range(plan.folds)], groups, facts)


def report(
    out: Path, folds: Sequence[Path], groups: Mapping[str, str], facts: Mapping[str, Any]
) -> None:
    """Write ``summary.json`` and ``report.md`` from the folds that are measured."""
    results: dict[str, dict[int, list[StateResult]]] = {}
    trained: dict[str, list[dict[str, float]]] = {}
    for folder in folds:
        for name, some in read_results(folder / RESULTS).items():
            arm, _, seed = name.rpartition("-")
            results.setdefault(arm or name, {}).setdefault(int(seed) if arm else 0, []).extend(some)
            if arm:
                numbers = json.loads((folder / name / NUMBERS).read_bytes())
                told = {k: v for k, v in numbers.items() if k.startswith(_TOLD)}
                trained.setdefault(arm, []).append(told)
    found = summarise(results, groups, {**facts, "trained": trained})
    replace(out / SUMMARY, json.dumps(found, indent=1) + "\n")
    replace(out / REPORT, page(found))


def lake_of(folder: Path, sessions: Sequence[Path]) -> Lake:
    """Return the lake of these sessions with hints and dataset tables, made on first use."""
    named, made_of = sorted(str(path.resolve()) for path in sessions), folder / SESSIONS
    if folder.is_dir():
        if json.loads(made_of.read_bytes()) != named:
            raise InputError(f"{folder} is the lake of other --sessions; take another --out")
    else:
        scratch = folder.with_name(".lake.tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        lake = Lake(str(scratch))
        ingest(lake, sessions)
        build_hints(lake)
        build_pairs(lake)  # of the agent against itself: nobody was asked
        normalize(lake, recipes_dir() / "normalize" / "default.yaml")
        rules = PreferenceRules(accept=GATES)  # the placebo tells whether the pairs teach
        build_dataset(lake, validation_share=0.0, rules=rules)  # the folds are the split
        replace(scratch / SESSIONS, json.dumps(named))
        scratch.replace(folder)
    return Lake(str(folder))


def cases(lake: Lake) -> list[dict[str, Any]]:
    """Return the rows of ``dataset_hints`` whose session shows a better action, and its origin.

    Fix-ups and recoveries of the table ``pairs`` are among them; the others are mistakes of which
    no pair was made.
    """
    pairs = lake.rows("pairs", columns=["state_id", "source"])
    origins = {pair["state_id"]: pair["source"] for pair in pairs}
    found = [
        {**row, "origin": origins.get(row["state_id"], "mistake")}
        for row in lake.iter_rows("dataset_hints", split="train")
        if row["recovery"] and row["recovery"] != row["action"]
    ]
    if not found:
        raise InputError(f"lake {lake.url} has no error turn that the agent recovered from")
    return sorted(found, key=lambda row: row["state_id"])


def deal(rows: Sequence[Mapping[str, Any]], folds: int) -> dict[str, int]:
    """Return group of sessions to its fold: the largest first, each to the smallest fold."""
    sizes = Counter(row["group_id"] for row in rows)
    if not 2 <= folds <= len(sizes):
        raise InputError(
            f"--folds {folds}: error turns with a recovery that fits are in {len(sizes)} groups of"
            " sessions, and each fold needs one; at least 2 folds"
        )
    order = sorted(sizes, key=lambda g: (-sizes[g], blake2b(g.encode()).hexdigest()))
    filled, found = [0] * folds, {}
    for group in order:
        fold = filled.index(min(filled))
        found[group] = fold
        filled[fold] += sizes[group]
    return found


def evaluation_set(lake: Lake, rows: Sequence[Mapping[str, Any]]) -> list[EvaluationState]:
    """Return the states of the cases; their hints are not measured."""
    known = {row["state_id"] for row in rows}
    return [
        replaced(state, hint=None)
        for state in select_states(lake, "train")
        if state.state_id in known and state.kind == CASE
    ]


def questions(count: int) -> list[EvaluationState]:
    """Return questions of reasoning-gym with their answers, always the same, in turn by task."""
    if not count:
        return []
    try:
        import reasoning_gym  # type: ignore[import-not-found]
    except ImportError:
        raise InputError(
            "what is unlearnt is measured with: pip install reasoning-gym (or --questions 0)"
        ) from None
    tasks = {name: reasoning_gym.create_dataset(name, size=count, seed=0) for name in _TASKS}
    found = []
    for number in range(count):
        name = _TASKS[number % len(_TASKS)]
        asked = tasks[name][number]
        chat = [{"role": "user", "content": asked["question"]}]
        own = f"{name}-{number}"
        found.append(EvaluationState(own, own, QUESTION, chat, [], Action(str(asked["answer"]))))
    return found


def train_on(
    folder: Path,
    arm: str,
    seed: int,
    train: Sequence[Mapping[str, Any]],
    states: Sequence[EvaluationState],
    plan: Plan,
) -> bool:
    """Train an arm on a fold's rows, unless it is there; return whether it was not."""
    recipe, run_dir = plan.recipe(arm, seed), folder / _run(arm, seed)
    if is_done(run_dir, recipe, NUMBERS):
        return False
    shutil.rmtree(run_dir, ignore_errors=True)  # of a run that was killed
    run_dir.mkdir(parents=True)
    write_recipe(recipe, run_dir)
    lake = rows_of_fold(run_dir / "lake", train, failed=arm == PLACEBO)
    apart(lake, states)
    scored, mine = folder / HINTS, run_dir / FOLDER / HINTS  # the base says the same in each run
    if scored.is_file() and "sdpo" in recipe.channels.weights():
        mine.parent.mkdir()
        replace(mine, scored.read_bytes())
    began = time.process_time()
    trained = train_arm(lake, recipe, run_dir)
    if mine.is_file():
        replace(scored, mine.read_bytes())
    trained.model.save_pretrained(str(run_dir / MODEL))
    numbers = {
        "cpu_seconds": time.process_time() - began, **rows_trained(run_dir), **trained.gate,
        **trained.numbers,
    }  # fmt: skip
    replace(run_dir / NUMBERS, msgspec.json.encode(numbers).decode())
    return True


def measure_fold(
    folder: Path, names: Sequence[str], states: Sequence[EvaluationState], plan: Plan
) -> None:
    """Measure base and runs at the states of the fold that was held out, unless that is done."""
    from peft import PeftModel

    from trainers.common.policy import load_base

    wanted = [BASE, *names]
    if (folder / RESULTS).is_file() and list(read_results(folder / RESULTS)) == wanted:
        return
    recipe, at = plan.recipe(SHIPPED), resolve_model(plan.model)
    models = [Arm(BASE, load_base(at, recipe).eval())]
    for name in names:
        adapted = PeftModel.from_pretrained(load_base(at, recipe), str(folder / name / MODEL))
        models.append(Arm(name, adapted.eval()))
    limit = plan.answer if plan.greedy else 1  # greedy tokens are most of what measuring costs
    measured = measure(states, models, plan.windows(), max_new_tokens=limit)
    if measured.dropped:
        raise ComposerError(f"{len(measured.dropped)} questions do not fit the window")
    write_results(folder / RESULTS, measured.results)


def rows_of_fold(folder: Path, rows: Sequence[Mapping[str, Any]], *, failed: bool) -> Lake:
    """Write what is trained on: each case as hint, as pair, and as one action to repeat."""
    lake = Lake(str(folder))
    pairs = [
        {name: row[name] for name in _SHARED}
        | {"pair_id": row["state_id"], "chosen": row["recovery"], "rejected": row["action"]}
        for row in rows
    ]
    acts = [row if failed else {**row, "action": row["recovery"]} for row in rows]
    for table, made in (
        ("dataset_hints", rows), ("dataset_pairs", pairs), ("dataset_successes", acts)
    ):  # fmt: skip
        lake.write(table, [columns_of(table, row) for row in made], split="train")
    return lake


def columns_of(table: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a table that a row has."""
    return {name: row.get(name) for name in TABLES[table].schema.names}


def _run(arm: str, seed: int) -> str:
    return f"{arm}-{seed}"


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    plan = Plan()
    parser = argparse.ArgumentParser(prog="make proof-real", description=__doc__)
    parser.add_argument("--sessions", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, default=Path("proof-real"))
    parser.add_argument("--arms", type=lambda text: text.split(","), default=list(ARMS))
    for name, about in (
        ("folds", "of the sessions"),
        ("steps", "of the optimizer"),
        ("rows", "of each channel a step"),
        ("seeds", "of the two arms that are compared first; one seed of the others"),
        ("prompt", "tokens of a prompt"),
        ("answer", "tokens of an action"),
        ("questions", "of reasoning-gym, to see what is unlearnt; 0: none"),
    ):
        default = getattr(plan, name)
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{about} ({default})")
    parser.add_argument("--rate", type=float, default=plan.rate, help=f"of learning ({plan.rate})")
    parser.add_argument("--model", default=plan.model, help="folder or Hub id of a causal LM")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default=plan.dtype)
    parser.add_argument("--greedy", action="store_true", help="measure greedy answers too")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
