"""verl beside ComposerTrainer: gradients of the same steps, and replicas of one run, on a CPU.

    python benchmarks/proof_verl.py [--verl-python .venv-verl/bin/python] [--record]

The reference runs in this interpreter: ComposerTrainer, three steps of a tiny random model, for
each recipe. verl runs the same rows in its own interpreter. Exit code 1 where a gradient differs by
more than the bar, where a broken copy does not, or where replicas differ.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", OMP_NUM_THREADS="1")
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "verl.md"
#: Largest |g - g'| / |g'| of a step, and what a broken copy must exceed in some step; largest
#: difference of the parameters after the last step, as a part of the way that they moved.
BAR, BROKEN, MOVED_BAR = 1e-5, 1e-3, 1e-3
STEPS = 3

#: A random model hardly reads the hint: the weights give each channel a part of the gradient.
_SDPO = {"weight": 20.0, "rows_per_step": 2, "hint_gain": False}
_OFF = {"weight": 0.0}
FULL: dict[str, Any] = {
    "grpo": {"groups_per_step": 2}, "sdpo": _SDPO, "dpo": {"weight": 0.3},
    "sft": {"weight": 0.2, "rows_per_step": 2},
}  # fmt: skip


def _two(sdpo: dict[str, Any], dpo: dict[str, Any]) -> dict[str, Any]:
    """Return channels of one hint and one pair a step."""
    sdpo = {**_SDPO, "rows_per_step": 1, **sdpo}
    return {
        "grpo": _OFF,
        "sft": _OFF,
        "sdpo": sdpo,
        "dpo": {"pairs_per_step": 1, "weight": 0.05, **dpo},
    }


_ALONE = {**dict.fromkeys(("sdpo", "dpo", "sft"), _OFF), "grpo": {"off_policy_threshold": 0.001}}
_LIGHT = _two({}, {})
#: Recipes of the reference: fields that differ from :func:`recipe_of`.
RECIPES: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"lora": {"r": 8}, "learning_rate": 20.0},
    "live": {"channels": _two({"teacher": "live"}, {"loss": "simpo", "beta": 2.0})},
    "ema": {"channels": _two({"teacher": "ema", "ema_rate": 0.5}, {"loss": "ipo"})},
    "taid": {
        "channels": _two({"divergence": "taid"}, {"loss": "robust", "label_smoothing": 0.1})
    },
    "eopd": {
        "channels": _two(
            {"divergence": "eopd", "importance_clip": 1.5, "weight": 0.5},
            {"loss": "nca_pair", "weight": 1.0},
        )
    },
    "mask": {"channels": _ALONE, "learning_rate": 2.0},
    "schedule": {
        "channels": _LIGHT, "schedule": "cosine", "warmup_steps": 1, "weight_decay": 0.1,
        "max_grad_norm": 0.05,
    },
    "adamw": {"channels": _LIGHT, "optimizer": "adamw_torch", "learning_rate": 2e-4,
              "weight_decay": 0.1, "schedule": "linear"},
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One run of verl beside a recipe's reference."""

    name: str
    recipe: str
    packed: bool = False
    changes: dict[str, Any] = field(default_factory=dict)
    shift: int = 0

    @property
    def broken(self) -> bool:
        """Whether the reference must not be met."""
        return self.name.startswith("broken")


ONE_RANK = (
    Case("four channels, padded", "full"),
    Case("four channels, packed", "full", packed=True),
    Case("micro-batches of two rows", "full", changes={"micro_batch_tokens": 64}),
    Case("LoRA, padded", "lora"),
    Case("LoRA, packed", "lora", packed=True),
    Case("live teacher, simpo", "live"),
    Case("EMA teacher, ipo", "ema"),
    Case("TAID, robust", "taid"),
    Case("EOPD, importance_clip, nca_pair, packed", "eopd", packed=True),
    Case("off-policy mask fires", "mask"),
    Case("cosine, warm-up, weight decay, clipping", "schedule"),
    Case("AdamW, linear, weight decay", "adamw"),
    Case("broken: positions off by one", "full", shift=-1),
    Case(
        "broken: live teacher for EMA", "ema", changes={"channels": {"sdpo": {"teacher": "live"}}}
    ),
    Case("broken: JSD for TAID", "taid", changes={"channels": {"sdpo": {"divergence": "jsd"}}}),
    Case("broken: no mask", "mask", changes={"channels": {"grpo": {"off_policy_threshold": None}}}),
)
TWO_RANKS = (
    Case("four channels, padded", "full"),
    Case("LoRA, packed", "lora", packed=True),
    Case("EMA teacher, ipo", "ema"),
)


#: Runs of two replicas.
WAYS = {
    "plain": "both live",
    "kill": "replica 1 killed (SIGKILL) inside round 2",
    "ranks": "replica 0 of two ranks",
}


def recipe_of(model: str, **changes: Any) -> Any:
    """Return a recipe with plain gradients: SGD without clipping."""
    from composer_pipeline.testing.training import tiny_recipe

    fields: dict[str, Any] = {
        "channels": FULL, "lora": {"r": 0}, "optimizer": "sgd", "learning_rate": 0.5,
        "max_grad_norm": 1e9, "norms_every": 1,
        "diloco": {"replicas": 1, "rounds": 1, "inner_steps": STEPS},
    }  # fmt: skip
    return tiny_recipe(model, **fields | changes)


# -- in the project's interpreter ------------------------------------------------------------


def prepared(folder: Path, recipe: Any) -> Path:
    """Return a run folder with rows and base scores."""
    from composer_pipeline.lake.store import Lake
    from composer_pipeline.training.models import load_tokenizer
    from composer_pipeline.training.recipe import TrainingRecipe
    from composer_pipeline.training.rows import build
    from composer_pipeline.training.run import DATA, prepare, write_recipe
    from trainers.common.base_pass import base_policy, score

    lake = Lake(folder / "lake")
    run = prepare(lake, recipe, folder / "runs").run_dir
    recipe, tokenizer = TrainingRecipe.load(run / "recipe.yaml"), load_tokenizer(recipe.model)
    data = build(lake, tokenizer, recipe, run / DATA)
    recipe = recipe.resolved(data.counts())
    write_recipe(recipe, run)
    score(base_policy(recipe.model, recipe, tokenizer), recipe, data, run)
    return run


def reference(folder: Path, name: str, run: Path) -> None:
    """Save what ComposerTrainer computes in each step of a recipe."""
    import torch
    from transformers import TrainerCallback

    from composer_pipeline.training.recipe import TrainingRecipe
    from trainers.common.ranks import Ranks
    from trainers.trl.trainer import build

    firsts: list[dict[str, Any]] = []
    grads: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []

    class Keep(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            firsts.append(_copies(given["model"], lambda p: p))

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            grads.append(_copies(given["model"], lambda p: p.grad))

    trainer, _ = build(
        run, TrainingRecipe.load(run / "recipe.yaml"), Ranks(), folder / "out", slot=0,
        callbacks=[Keep()],
        on_event=lambda kind, step, n: events.append(n) if kind == "step" else None,
    )  # fmt: skip
    trainer.train()
    last = _copies(trainer.policy.model, lambda p: p)
    known = {"grads": grads, "first": firsts[0], "last": last, "events": events}
    torch.save(known | {"run": str(run)}, folder / f"{name}.pt")


def _copies(model: Any, of: Any) -> dict[str, Any]:
    named = ((n, of(p)) for n, p in model.named_parameters() if p.requires_grad)
    return {name: value.detach().clone() for name, value in named if value is not None}


def beside(folder: Path, python: str, ranks: int) -> list[dict[str, Any]]:
    """Run the cases of a number of ranks in verl's interpreter; return what each found."""
    from trainers.common import ranks as processes

    out = folder / f"found-{ranks}.jsonl"
    command = [python, str(Path(__file__)), "--side", str(folder), "--out", str(out)]
    log = folder / f"verl-{ranks}.log"
    with log.open("wb") as said:
        running = [
            subprocess.Popen(
                command, stdout=said, stderr=said,
                env={**os.environ, "PYTHONPATH": str(ROOT)} | ({} if ranks == 1 else
                    processes.environment(os.environ, rank, ranks, folder / "store")),
            )
            for rank in range(ranks)
        ]  # fmt: skip
        codes = [process.wait() for process in running]
        if any(codes):
            sys.exit(log.read_text(errors="replace")[-3000:] + f"\nverl failed: {log}")
    return [json.loads(line) for line in out.read_text().splitlines()]


def diloco(folder: Path, python: str, how: str) -> dict[str, Any]:
    """Train two verl replicas over two rounds through the outer log.

    ``how`` is ``plain``; ``kill``: replica 1 dies by SIGKILL; ``ranks``: replica 0 has two ranks.
    """
    from composer_pipeline.diloco.places.local import ReplicaCommand
    from composer_pipeline.diloco.supervisor import Supervisor
    from composer_pipeline.training.recipe import TrainingRecipe
    from trainers.common.outer_log import spec_of

    run = folder / f"diloco-{how}"
    shutil.copytree(folder / "diloco", run)
    recipe, events = TrainingRecipe.load(run / "recipe.yaml"), []

    def on_log(slot: int, line: str) -> None:
        if line.startswith('{"event"'):
            events.append(json.loads(line))

    where = ["--run-dir", str(run)]
    plain = [python, "-m", "trainers.replica", *where]
    two = [python, "-m", "trainers.common.ranks", "--processes", "2", "--", *where]
    dies = [python, str(Path(__file__)), "--dies", str(folder / "died"), *where]
    commands = [two if how == "ranks" else plain, dies if how == "kill" else plain]
    env = {"PYTHONPATH": str(ROOT)}
    report = Supervisor(
        url=str(run / "outer"), run_id="run", spec=spec_of(recipe, "proof"), timeout_s=400,
        commands=[ReplicaCommand(argv, env, ROOT) for argv in commands], on_log=on_log,
        run_dir=run / "replicas", max_restarts=1,
    ).run()  # fmt: skip
    losses = {e["step"]: e["dpo_loss"] for e in events if e["event"] == "step" and not e["slot"]}
    return {
        "sha": report.state_sha, "codes": report.exit_codes,
        "included": [list(r.slots) for r in report.rounds],
        "sent": [e["bytes_sent"] for e in events if e["event"] == "commit" and not e["slot"]],
        "resumed": [e["inner"] for e in events if e["event"] == "resumed"],
        "dpo_loss": [losses[step] for step in sorted(losses)],
    }  # fmt: skip


# -- in verl's interpreter ----------------------------------------------------------------------


def side(folder: Path, out: Path) -> None:
    """Run every case of this process's number of ranks."""
    import torch

    from trainers.common.ranks import Ranks

    torch.set_num_threads(1)
    ranks = Ranks.from_env()
    if not ranks.several:
        said = guarded(torch.load(folder / "live.pt"))
        (folder / "guards.json").write_text(json.dumps(said))
    for case in TWO_RANKS if ranks.several else ONE_RANK:
        found = compared(case, torch.load(folder / f"{case.recipe}.pt"), ranks)
        if ranks.lead:
            with out.open("a") as file:
                file.write(json.dumps({"name": case.name, "broken": case.broken, **found}) + "\n")
    ranks.leave()


def made(case: Case, known: dict[str, Any], ranks: Any) -> tuple[Any, list[Any]]:
    """Return a case's trainer, begun from the reference's parameters, and its coming events."""
    import torch
    from torch.distributed.tensor import distribute_tensor

    from composer_pipeline.training.recipe import TrainingRecipe
    from composer_pipeline.training.registry import VerlOptions
    from composer_pipeline.training.rows import TrainingData
    from trainers.common.base_scores import BaseScores
    from trainers.common.steps import Steps
    from trainers.verl.trainer import VerlTrainer, start_worker

    run = Path(known["run"])
    plain = TrainingRecipe.load(run / "recipe.yaml").model_dump()
    recipe = TrainingRecipe.model_validate(_changed(plain, case.changes))
    steps = Steps(recipe, TrainingData.load(run / "data"), BaseScores.load(run))
    options = VerlOptions(use_remove_padding=case.packed)
    worker = start_worker(recipe, ranks, options)
    with torch.no_grad():
        for name, parameter in _trained(worker).items():
            whole = known["first"][name]
            parameter.copy_(distribute_tensor(whole, parameter.device_mesh, parameter.placements))
    events: list[Any] = []
    trainer = VerlTrainer(
        worker, recipe, steps, options, ranks=ranks,
        on_event=lambda kind, step, numbers: events.append((kind, numbers)),
    )  # fmt: skip
    return trainer, events


def _trained(worker: Any) -> dict[str, Any]:
    return {n: p for n, p in worker.engine.module.named_parameters() if p.requires_grad}


def guarded(known: dict[str, Any]) -> dict[str, str]:
    """Return what is said of a loss that is not finite, and of a channel without a row."""
    import msgspec
    import torch

    from trainers.common.gradients import DeadChannel
    from trainers.common.ranks import Ranks, whole_copy

    trainer, events = made(Case("", "live"), known, Ranks())
    rows = trainer.steps.rows
    trainer.steps.rows = lambda step: [
        msgspec.structs.replace(row, coefficient=float("nan")) if row.role == "chosen" else row
        for row in rows(step)
    ]
    assert trainer._step() is None
    (dropped,) = events
    for name, parameter in _trained(trainer.worker).items():
        assert torch.equal(whole_copy(parameter), known["first"][name]), "a dropped step moved"
    trainer.steps.rows = lambda step: [row for row in rows(step) if row.channel != "dpo"]
    try:
        trainer.train()
    except DeadChannel as error:
        return {"dropped": dropped[1]["reason"], "dead": str(error)}
    raise AssertionError("a channel without a row was not found")


def compared(case: Case, known: dict[str, Any], ranks: Any) -> dict[str, Any]:
    """Train a case with verl, and return how it differs from the reference."""
    from trainers.common.ranks import whole_copy
    from trainers.verl import loss

    began, grads = time.monotonic(), []
    trainer, events = made(case, known, ranks)
    worker, trained = trainer.worker, _trained(trainer.worker)
    step = worker.engine.optimizer_step

    def keep() -> float:
        grads.append({n: whole_copy(p.grad) for n, p in trained.items() if p.grad is not None})
        norm: float = step()
        return norm

    worker.engine.optimizer_step = keep
    right = loss.predicting
    loss.predicting = lambda row: slice(right(row).start + case.shift, right(row).stop + case.shift)
    try:
        trainer.train()
    finally:
        loss.predicting = right
    last = {name: whole_copy(parameter) for name, parameter in trained.items()}
    moved = _norm(known["last"], known["first"])
    shares = [v for e in known["events"] for n, v in e.items() if n.endswith("_grad_share")]
    return {
        "gradients": [_norm(a, b) / _norm(b) for a, b in zip(grads, known["grads"], strict=True)],
        "final": _norm(last, known["last"]) / moved,
        "share": min(shares),
        "masked": [numbers.get("grpo_masked", 0.0) for _, numbers in events],
        "seconds": time.monotonic() - began,
    }  # fmt: skip


def _changed(fields: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return nested fields with some replaced."""
    deep = {n: _changed(fields[n], v) if isinstance(v, dict) else v for n, v in changes.items()}
    return {**fields, **deep}


def _norm(a: Any, b: Any = None) -> float:
    """Return |a - b| over all tensors of the same names."""
    assert b is None or a.keys() == b.keys()
    pieces = (float((a[n] - b[n] if b else a[n]).double().square().sum()) for n in a)
    return float(sum(pieces) ** 0.5)


def replica_that_dies(marker: Path, run: Path) -> None:
    """Be a replica that kills itself in the second round, the first time."""
    from trainers import replica
    from trainers.verl.trainer import VerlTrainer

    step = VerlTrainer._step

    def dies(self: Any) -> Any:
        if self._skip + self.state.global_step == 3 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self)

    VerlTrainer._step = dies  # type: ignore[method-assign]
    sys.argv = ["trainers.replica", "--run-dir", str(run)]
    sys.exit(replica.main())


# -- the table -----------------------------------------------------------------------------------


def table(found: dict[int, list[dict[str, Any]]]) -> tuple[list[str], list[str]]:
    """Return the lines of the comparison, and what misses its bar."""
    lines = [
        "| ranks | run | gradient: step 1 | step 2 | step 3 | parameters | least share |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    missed = []
    for ranks, cases in found.items():
        for case in cases:
            grads, where = case["gradients"], f"{case['name']}, {ranks} ranks"
            shown = " | ".join(f"{value:.1e}" for value in (*grads, case["final"]))
            share = f"{case['share']:.1%}"
            lines.append(f"| {ranks} | {case['name']} | {shown} | {share} |")
            if case["broken"]:
                if not max(grads) > BROKEN:
                    missed.append(f"{where}: a broken copy passes")
            elif not (max(grads) < BAR and case["final"] < MOVED_BAR):
                missed.append(f"{where}: {max(grads):.1e}, {case['final']:.1e}")
            if case["name"].startswith("off-policy") and not max(case["masked"]) > 0:
                missed.append(f"{where}: no answer was masked")
    return lines, missed


def main() -> None:
    """Compare, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verl-python", default=str(ROOT / ".venv-verl" / "bin" / "python"))
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name}")
    for name in ("--side", "--out", "--dies", "--run-dir"):
        parser.add_argument(name, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return side(options.side, options.out)
    if options.dies:
        return replica_that_dies(options.dies, options.run_dir)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="proof-verl-") as scratch:
        lines, missed = proof(Path(scratch), str(Path(options.verl_python).absolute()))
    lines.append(f"\nThe whole took {time.monotonic() - began:.0f} s on two shared cores.")
    print("\n".join(lines))
    if options.record and not missed:
        RESULTS.write_text("\n".join(lines) + "\n")
    if missed:
        sys.exit("missed: " + "; ".join(missed))


def proof(folder: Path, python: str) -> tuple[list[str], list[str]]:
    """Return the record, and what was missed."""
    import torch

    from composer_pipeline.lake.store import Lake
    from composer_pipeline.testing.training import write_dataset, write_tiny_model

    torch.set_num_threads(1)
    model = str(write_tiny_model(folder / "model"))
    write_dataset(Lake(folder / "lake"))
    for name, changes in RECIPES.items():
        reference(folder, name, prepared(folder, recipe_of(model, **changes)))
    pace = {"replicas": 2, "rounds": 2, "inner_steps": 2, "min_quorum": 2}
    recipe = recipe_of(
        model, lora={"r": 8}, channels=_two({"teacher": "ema"}, {}), diloco=pace,
        optimizer="adamw_torch", learning_rate=1e-2, checkpoint_every=1, name="diloco",
    )  # fmt: skip
    from composer_pipeline.training.run import write_recipe

    run = prepared(folder, recipe)
    write_recipe(recipe.model_copy(update={"trainer": "verl"}), run)
    shutil.copytree(run, folder / "diloco")
    found = {ranks: beside(folder, python, ranks) for ranks in (1, 2)}
    guards = json.loads((folder / "guards.json").read_text())
    runs = {how: diloco(folder, python, how) for how in ("plain", "kill", "ranks")}
    lines, missed = table(found)
    known = subprocess.run(
        [python, "-c", "import torch, transformers\nfrom importlib.metadata import version as v\n"
         "print(v('verl'), transformers.__version__, torch.__version__, v('peft'))"],
        check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    if runs["plain"]["sha"] != runs["kill"]["sha"] or runs["kill"]["codes"][1] != [-9, 0]:
        missed.append(f"a killed replica: {runs}")
    pairs = zip(runs["plain"]["dpo_loss"], runs["ranks"]["dpo_loss"], strict=True)
    apart = max(abs(a - b) for a, b in pairs)
    if not apart < BAR or any(r["included"] != [[0, 1], [0, 1]] for r in runs.values()):
        missed.append(f"replicas: {runs}")
    head = [
        "# verl beside ComposerTrainer",
        "",
        f"`make proof-verl`, {date.today().isoformat()}: {platform.machine()}, CPU, fp32. verl"
        f" {known[0]}, transformers {known[1]}, torch {known[2]}, peft {known[3]}, FSDP2 without"
        f" Ray, with our registration of its engine for a CPU. Reference: ComposerTrainer with TRL"
        f" {version('trl')}, transformers {version('transformers')}, torch {version('torch')}.",
        "",
        "A random Llama (1.6 million parameters, 49,152 tokens), made-up rows; *four channels* is",
        "a step of 16 sequences: two groups of three answers, two pairs, two hints with a frozen",
        "teacher, two demonstrations. SGD, except where named. Gradient: |g − g'| / |g'| over all",
        "trained parameters, g' the reference's; parameters: after the last step, as a part of the",
        "way that the reference moved; least share: of a channel in the norms of the reference's",
        f"gradients, in any step. Bars: {BAR:g} for every gradient, {MOVED_BAR:g} for parameters;",
        f"a broken copy must exceed {BROKEN:g} in some step.",
        "",
        *lines,
        "",
        "## Replicas",
        "",
        "Two replicas of verl in two processes, LoRA, EMA teacher, AdamW, two rounds of two steps",
        "through the outer log:",
        "",
        "| run | rounds merged | exit codes | final state | DPO loss of replica 0, by step |",
        "|---|---|---|---|---|",
        *(
            f"| {WAYS[how]} | {r['included']} | {r['codes']} | `{r['sha'][:16]}` |"
            f" {', '.join(f'{loss:.6f}' for loss in r['dpo_loss'])} |"
            for how, r in runs.items()
        ),
        "",
        f"The killed one was started again, resumed after {runs['kill']['resumed']} steps of its"
        f" round, and ended with the same bits. A round sends {runs['plain']['sent'][0]:,} bytes.",
        "",
        "## Steps and channels that must not pass",
        "",
        "- A pair with a coefficient of NaN: the step is dropped, every parameter keeps its bits,",
        f"  and the event says: {guards['dropped']}.",
        "- A step table without the rows of a channel that is on: the run ends, and says:",
        f"  {guards['dead']}.",
    ]
    return head, missed


if __name__ == "__main__":
    main()
