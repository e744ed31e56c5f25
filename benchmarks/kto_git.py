"""Does what git says of an agent's edits teach more than what its trace says? On the small world.

    python -m benchmarks.kto_git --record

Sessions of the proof's small world in which nobody sees a wrong edit, so that the trace takes it
for a success, and a git history in which a person corrects most of them before the commit. The
product's stage finds out which; TRL's KTO trainer learns from its rows, without any teacher, beside
SFT on the trace's successes. Every arm starts from one base and takes the same steps of eight rows.
"""

import argparse
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from composer_pipeline.evaluation.results import BASE
from composer_pipeline.evaluation.states import EvaluationState
from composer_pipeline.exporting.columns import export
from composer_pipeline.lake.store import Lake
from composer_pipeline.markdown import table
from examples.proof.toolworld.git_history import Label, labels, look, make_dataset, plant
from examples.proof.toolworld.pipeline import Plan, evaluation_states
from examples.proof.toolworld.world import held_out_sessions

RECORD = Path(__file__).parent / "results" / "kto_git.md"
TABLES = "<!-- figures -->\n"
ROWS, STEPS = 8, 60
#: Chosen on seeds that the results do not have; see the results.
RATES = {"sft": 5e-4, "kept": 2e-4, "kto": 1e-4}
BETA = 0.5
#: A model, and the mean tokens of a step's rows.
Made = tuple[Any, float]


@dataclass(frozen=True)
class Data:
    """A seed's data: the lake before git was asked and after, and the rows of the export."""

    trace: Lake
    git: Lake
    rows: Any
    seed: int
    scratch: Path
    labels: list[Label]


def prepare(seed: int, folder: Path, sessions: int, unseen: float) -> Data:
    """Plant, run the stages with and without git, and export."""
    from datasets import load_dataset

    planted = plant(Plan(seed, sessions), folder, unseen=unseen)
    make_dataset(planted.lake)
    shutil.copytree(folder / "lake", folder / "trace")
    look(planted)
    make_dataset(planted.lake)
    export(planted.lake, "kto_git", folder / "kto_git")
    file, cache = str(folder / "kto_git/train.parquet"), str(folder / "cache")
    rows = load_dataset("parquet", data_files=file, split="train", cache_dir=cache)
    # The student is shown no schemas of tools, here as in the recipe's window.
    rows = rows.select_columns(["prompt", "completion", "label"]).shuffle(seed=seed)
    trace = Lake(str(folder / "trace"))
    return Data(trace, planted.lake, rows, seed, folder, labels(planted))


def product_sft(lake: Lake, data: Data, rate: float, steps: int = STEPS) -> Made:
    """Train the product's SFT channel on own successes."""
    from examples.proof.arms import recipe_of
    from examples.proof.train import train_arm

    recipe = recipe_of(
        {"sft": {"source": "successes", "rows_per_step": ROWS}}, name="sft", seed=data.seed,
        steps=steps, norms_every=steps, learning_rate=rate, schedule="constant", warmup_steps=0,
        diloco={"replicas": 1, "inner_steps": steps},
    )  # fmt: skip
    with TemporaryDirectory(dir=data.scratch) as run_dir:
        trained = train_arm(lake, recipe, Path(run_dir))
    return trained.model, trained.numbers["step_tokens"]


def base_model() -> Any:
    """Return the base that every arm starts from."""
    from examples.proof.arms import recipe_of
    from examples.proof.toolworld.student import base_dir
    from trainers.common.policy import load_base

    return load_base(str(base_dir()), recipe_of({"sft": {}}, name="base"))


#: Columns of token ids of TRL's datasets; a KTO row has a prompt and a completion.
_IDS = ("input_ids", "prompt_ids", "completion_ids")


def with_trl(kind: str, rows: Any, data: Data, *, model: Any = None, **settings: Any) -> Made:
    """Train with TRL's trainer of a kind, with the optimizer of the proof's arms."""
    import trl

    from composer_pipeline.training.models import load_tokenizer
    from examples.proof.toolworld.student import base_dir

    config = getattr(trl, f"{kind}Config")(
        output_dir=str(data.scratch / "trl"), seed=data.seed, per_device_train_batch_size=ROWS,
        lr_scheduler_type="constant", bf16=False, use_cpu=True, gradient_checkpointing=False,
        report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True,
        **{"max_steps": STEPS, **settings},
    )  # fmt: skip
    # KTO's other model is the one that it starts from.
    reference = {"ref_model": deepcopy(model)} if model is not None else {}
    trainer = getattr(trl, f"{kind}Trainer")(
        model=model or base_model(), args=config, train_dataset=rows,
        processing_class=load_tokenizer(str(base_dir())), **reference,
    )  # fmt: skip
    trainer.train()
    names = [name for name in trainer.train_dataset.column_names if name in _IDS]
    tokens = fmean(sum(len(row[name]) for name in names) for row in trainer.train_dataset)
    return trainer.model.eval(), ROWS * tokens


def kto(
    data: Data, *, beta: float = BETA, shuffled: bool = False, model: Any = None, steps: int = STEPS
) -> Made:
    """Train KTO on the export; the weights balance the two labels, as TRL recommends."""
    rows = data.rows
    if shuffled:
        mixed = list(rows["label"])
        Random(data.seed).shuffle(mixed)
        rows = rows.remove_columns("label").add_column("label", mixed)
    good = sum(rows["label"])
    return with_trl(
        "KTO", rows, data, model=model, learning_rate=RATES["kto"], beta=beta, max_steps=steps,
        undesirable_weight=good / (len(rows) - good),
    )  # fmt: skip


def sft_on_kept(data: Data) -> Made:
    """Train SFT on the desirable rows of the export alone."""
    rows = data.rows.filter(lambda row: row["label"]).remove_columns("label")
    return with_trl("SFT", rows, data, learning_rate=RATES["kept"])


def sft_then_kto(data: Data) -> Made:
    """Train half of the steps with each, KTO from what SFT has made."""
    model, first = product_sft(data.git, data, RATES["sft"], STEPS // 2)
    made, second = kto(data, model=model, steps=STEPS // 2)
    return made, (first + second) / 2


SFT, KTO, SHUFFLED = "SFT on the trace's successes", "KTO on git", "KTO on git, labels shuffled"
GIT_SFT, BOTH = "SFT on successes, git asked too", "half SFT so, then half KTO on git"
ARMS: dict[str, Callable[[Data], Made]] = {
    SFT: lambda data: product_sft(data.trace, data, RATES["sft"]),
    GIT_SFT: lambda data: product_sft(data.git, data, RATES["sft"]),
    "SFT on what git says was kept": sft_on_kept,
    KTO: kto,
    SHUFFLED: lambda data: kto(data, shuffled=True),
    "KTO on git, TRL's default beta 0.1": lambda data: kto(data, beta=0.1),
    BOTH: sft_then_kto,
}


# -- measuring ---------------------------------------------------------------------

KINDS = ("hard, edits", "hard, others", "hard, all", "easy", "recovery")
#: What is compared, and at which states.
COMPARED = (
    (KTO, SFT, KINDS),
    (KTO, SHUFFLED, KINDS),
    (SHUFFLED, BASE, KINDS),
    (KTO, GIT_SFT, KINDS[:3]),
    (BOTH, SFT, KINDS[:3]),
    (BOTH, KTO, KINDS[:3]),
)
#: Kind of states to arm to seed to session to its share of right actions.
Shares = dict[str, dict[str, dict[int, dict[str, float]]]]


def kinds_of(state: EvaluationState) -> list[str]:
    """Return the rows of the table that a state counts in."""
    if not state.kind.startswith("hard"):
        return [state.kind]
    edits = state.right.tool_calls[0].name == "Edit"
    return ["hard, edits" if edits else "hard, others", "hard, all"]


def measured(states: Sequence[EvaluationState], model: Any) -> dict[str, dict[str, float]]:
    """Return kind to session to its share of right actions."""
    from composer_pipeline.evaluation.measure import Arm, measure
    from examples.proof.arms import recipe_of
    from examples.proof.run import windows_of

    windows = windows_of(recipe_of({"sft": {}}, name="measure"))
    known = {state.state_id: state for state in states}
    found: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for result in measure(states, [Arm("arm", model.eval())], windows).results["arm"]:
        for kind in kinds_of(known[result.state_id]):
            found[kind][result.session_id].append(result.judgement.exact)
    return {kind: {s: fmean(v) for s, v in by.items()} for kind, by in found.items()}


def share(by_session: Mapping[str, float]) -> float:
    """Return the mean over sessions, which all have as many states of a kind."""
    return fmean(by_session.values())


def run(unseen: float, options: argparse.Namespace, states: Sequence[EvaluationState]) -> str:
    """Train and measure every arm on every seed; return the section of the results."""
    shares: Shares = {kind: defaultdict(dict) for kind in KINDS}
    tokens: dict[str, list[float]] = defaultdict(list)
    planted: list[Label] = []
    base = measured(states, base_model())
    for seed in options.seeds:
        for kind in KINDS:
            shares[kind][BASE][seed] = base[kind]
        with TemporaryDirectory(prefix="kto-git-") as folder:
            data = prepare(seed, Path(folder), options.sessions, unseen)
            planted += data.labels
            for arm, train in ARMS.items():
                model, of_step = train(data)
                tokens[arm].append(of_step)
                for kind, by_session in measured(states, model).items():
                    shares[kind][arm][seed] = by_session
                said = ", ".join(f"{k} {share(shares[k][arm][seed]):.3f}" for k in KINDS)
                print(f"unseen {unseen}, seed {seed}, {arm}: {said}", flush=True)
    return section(unseen, shares, tokens, planted)


def section(
    unseen: float, shares: Shares, tokens: Mapping[str, Sequence[float]], planted: Sequence[Label]
) -> str:
    """Return the tables of one setting."""
    same = sum(row.label == row.planted for row in planted)
    wrong = [row for row in planted if not row.right]
    rows = [
        [arm, *(_seeds(shares[kind][arm]) for kind in KINDS), _tokens(tokens.get(arm))]
        for arm in (BASE, *ARMS)
    ]
    against = [
        [f"{one} − {other}", kind, *_difference(shares[kind][one], shares[kind][other])]
        for one, other, kinds in COMPARED
        for kind in kinds
    ]
    return (
        f"## {unseen:.0%} of the mistaken edits seen by nobody in the session\n\n"
        f"{len(planted)} edits have a label, {same} the planted one ({same / len(planted):.1%}); of"
        f" {len(wrong)} mistaken ones {sum(not row.label for row in wrong)} are undesirable, of"
        f" {len(planted) - len(wrong)} right ones"
        f" {sum(not row.label for row in planted if row.right)}.\n\n"
        + table(["arm", *KINDS, "tokens a step"], rows)
        + "\n\n"
        + table(["difference", "states", "by seed", "mean (95 %)"], against)
        + "\n"
    )


def _seeds(by_seed: Mapping[int, Mapping[str, float]]) -> str:
    """Return a mean with the shares of the seeds, which for the base are one."""
    each = [share(by_session) for _, by_session in sorted(by_seed.items())]
    said = ", ".join(f"{value:.3f}" for value in each)
    return f"{fmean(each):.3f}" + (f" ({said})" if len(set(each)) > 1 else "")


def _tokens(each: Sequence[float] | None) -> str:
    return f"{fmean(each):.0f}" if each else ""


def _difference(
    one: Mapping[int, Mapping[str, float]], other: Mapping[int, Mapping[str, float]]
) -> tuple[str, str]:
    import numpy as np

    from examples.proof.statistics import estimate

    by_seed = ", ".join(f"{share(one[n]) - share(other[n]):+.3f}" for n in sorted(one))
    sums = np.array([[one[n][s] - other[n][s] for s in sorted(one[n])] for n in sorted(one)])
    e = estimate(sums, np.ones(sums.shape[1]), share=True)
    return by_seed, f"{e.mean:+.3f} ({e.low:+.3f} to {e.high:+.3f})"


def main() -> int:
    """Run the settings and print the results, or write them."""
    import datasets
    import torch
    import transformers

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--sessions", type=int, default=80)
    parser.add_argument("--unseen", type=float, nargs="+", default=[1.0, 0.5])
    parser.add_argument("--record", action="store_true", help="write the tables of the results")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the same sums everywhere
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    states = evaluation_states(held_out_sessions())
    text = "\n".join(run(unseen, options, states) for unseen in options.unseen)
    print(text)
    if options.record:
        words = RECORD.read_text(encoding="utf-8").partition(TABLES)[0]
        RECORD.write_text(f"{words}{TABLES}\n{text}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
