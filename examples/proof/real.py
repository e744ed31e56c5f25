"""``make proof-real``: does a model take from real error turns what the agent learnt from them?

    python -m examples.proof.real --sessions ~/.claude/projects

A case is a state at which the trace shows the right action: of a mistake the agent's own later
call that worked in its place, of an edit that caused a failure the edit with its later fix folded
in. So the right action is known without a teacher and without money.
Sessions are dealt into folds, whole groups of sessions at a time; each fold is held out once and
the arms are trained on the others, so that every case is measured by a model that never saw its
session. All arms take the same optimizer steps with as many rows of each of their channels.

Below ``--out``: ``lake``, ``states.parquet`` (the frozen evaluation set), ``runs/<k>/<arm>`` (rows,
adapter, and ``numbers.json``, which makes it complete), ``runs/<k>/results.parquet`` and
``report.md``. A run that was killed goes on with what is missing. Nothing leaves the machine.
"""

import argparse
import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from composer_pipeline import build_dataset, build_hints, build_pairs, ingest, normalize
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.evaluation.measure import Arm, measure
from composer_pipeline.evaluation.results import BASE, read_results, write_results
from composer_pipeline.evaluation.select_states import select_states
from composer_pipeline.evaluation.states import EvaluationState
from composer_pipeline.files import replace
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.rules import GATES, PreferenceRules
from composer_pipeline.settings import recipes_dir
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import write_recipe
from composer_pipeline.training.windows import Windows
from examples.proof.real_report import DROPPED, PLACEBO, write_report
from examples.proof.report import NUMBERS, RESULTS
from examples.proof.run import apart, frozen_states, is_done
from examples.proof.train import rows_trained, train_arm

STATES, RUNS, MODEL, SESSIONS = "states.parquet", "runs", "model", "sessions.json"
#: Arm to its channels with their options.
ARMS: dict[str, Mapping[str, Mapping[str, Any]]] = {
    PLACEBO: {"sft": {}},
    "sft": {"sft": {}},
    "dpo": {"dpo": {}},
    "sdpo": {"sdpo": {}},
    "all": {"sft": {}, "dpo": {"weight": 0.2}, "sdpo": {}},
}
#: Columns of a hint that a pair has too.
_SHARED = ("task", "prompt", "tools", "day", "repository", "state_id", "session_id", "group_id")


@dataclass(frozen=True)
class Plan:
    """What is compared: lengths in tokens, ``rows`` of each channel a step."""

    folds: int = 2
    steps: int = 8
    rows: int = 3
    prompt: int = 512
    answer: int = 256
    recoveries: int = 12
    seed: int = 0
    model: str = "smollm2-135m"

    def recipe(self, arm: str) -> TrainingRecipe:
        """Return the recipe of an arm."""
        count = {"sft": "rows_per_step", "dpo": "pairs_per_step", "sdpo": "rows_per_step"}
        channels: dict[str, dict[str, Any]] = {"grpo": {"weight": 0}}
        for channel, field in count.items():
            options = ARMS[arm].get(channel)
            channels[channel] = {"weight": 0} if options is None else {
                "weight": 1.0, field: self.rows, **options
            }  # fmt: skip
        channels["sft"]["source"] = "successes"
        fields: dict[str, Any] = {
            "name": arm, "model": self.model, "channels": channels, "seed": self.seed,
            "lora": {"r": 8, "alpha": 16, "targets": "all-linear"}, "learning_rate": 2e-4,
            "data": {"max_prompt_tokens": self.prompt, "max_completion_tokens": self.answer,
                     "max_tools_tokens": self.prompt // 8, "max_dropped_share": 1.0},
            "steps": self.steps, "diloco": {"replicas": 1, "inner_steps": self.steps},
            "norms_every": self.steps,
        }  # fmt: skip
        return TrainingRecipe.model_validate(fields)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing and write the report; exit 2 for bad input, 1 when an arm fails."""
    options = _options(argv)
    plan = Plan(
        options.folds, options.steps, options.rows, options.prompt, options.answer,
        options.recoveries, options.seed, options.model,
    )  # fmt: skip
    try:
        prove(options.out, options.sessions, options.arms, plan)
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
    lake = lake_of(out / "lake", sessions)
    rows = cases(lake)
    fold_of = deal(rows, plan.folds)
    states = frozen_states(
        out / STATES, evaluation_set(lake, {row["state_id"] for row in rows}, plan), "plan"
    )
    groups = {row["session_id"]: row["group_id"] for row in rows}
    for fold in range(plan.folds):
        held_out = {session for session, group in groups.items() if fold_of[group] == fold}
        train = [row for row in rows if fold_of[row["group_id"]] != fold]
        mine = [state for state in states if state.session_id in held_out]
        for arm in arms:
            began = time.monotonic()
            fresh = train_on(out, fold, arm, train, mine, plan)
            said = f"{time.monotonic() - began:.0f} s" if fresh else "kept"
            print(f"fold {fold + 1} of {plan.folds}, {arm}: {said}", flush=True)
        measure_fold(out / RUNS / str(fold), arms, mine, plan)
        write_report(out, [out / RUNS / str(k) for k in range(fold + 1)])


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
    """Return the rows of ``dataset_hints`` that have a recovery other than the failed action."""
    found = [
        row
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
            f"--folds {folds}: error turns with a recovery are in {len(sizes)} groups of sessions,"
            " and each fold needs one; at least 2 folds"
        )
    order = sorted(sizes, key=lambda g: (-sizes[g], blake2b(g.encode()).hexdigest()))
    filled, found = [0] * folds, {}
    for group in order:
        fold = filled.index(min(filled))
        found[group] = fold
        filled[fold] += sizes[group]
    return found


def evaluation_set(lake: Lake, known: set[str], plan: Plan) -> list[EvaluationState]:
    """Return the cases, and some turns right behind errors of their sessions."""
    every = select_states(lake, "train")
    sessions = {state.session_id for state in every if state.state_id in known}
    chosen = [state for state in every if state.state_id in known]
    after = [s for s in every if s.kind == "recovery" and s.session_id in sessions]
    after.sort(key=lambda state: blake2b(state.state_id.encode()).hexdigest())
    return chosen + after[: plan.recoveries]


def train_on(
    out: Path,
    fold: int,
    arm: str,
    train: Sequence[Mapping[str, Any]],
    states: Sequence[EvaluationState],
    plan: Plan,
) -> bool:
    """Train an arm on a fold's rows, unless it is there; return whether it was not."""
    recipe, run_dir = plan.recipe(arm), out / RUNS / str(fold) / arm
    if is_done(run_dir, recipe, NUMBERS):
        return False
    shutil.rmtree(run_dir, ignore_errors=True)  # of a run that was killed
    run_dir.mkdir(parents=True)
    write_recipe(recipe, run_dir)
    lake = rows_of_fold(run_dir / "lake", train, failed=arm == PLACEBO)
    apart(lake, states)
    began = time.process_time()
    trained = train_arm(lake, recipe, run_dir)
    trained.model.save_pretrained(str(run_dir / MODEL))
    numbers = {
        "cpu_seconds": time.process_time() - began, **rows_trained(run_dir), **trained.gate,
        **trained.numbers,
    }  # fmt: skip
    replace(run_dir / NUMBERS, msgspec.json.encode(numbers).decode())
    return True


def measure_fold(
    folder: Path, arms: Sequence[str], states: Sequence[EvaluationState], plan: Plan
) -> None:
    """Measure base and arms at the states of the fold that was held out, unless that is done."""
    from peft import PeftModel

    from trainers.common.policy import load_base

    wanted = [BASE, *arms]
    if (folder / RESULTS).is_file() and list(read_results(folder / RESULTS)) == wanted:
        return
    recipe, at = plan.recipe(arms[0]), resolve_model(plan.model)
    models = [Arm(BASE, load_base(at, recipe).eval())]
    for arm in arms:
        adapted = PeftModel.from_pretrained(load_base(at, recipe), str(folder / arm / MODEL))
        models.append(Arm(arm, adapted.eval()))
    measured = measure(states, models, Windows(load_tokenizer(at), recipe.data))
    replace(folder / DROPPED, msgspec.json.encode(Counter(measured.dropped.values())).decode())
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
        ("prompt", "tokens of a prompt"),
        ("answer", "tokens of an action"),
        ("recoveries", "turns behind errors that are measured too, at most"),
        ("seed", "of the order of rows and the adapter"),
    ):
        default = getattr(plan, name)
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{about} ({default})")
    parser.add_argument("--model", default=plan.model)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
