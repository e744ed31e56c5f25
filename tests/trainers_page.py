"""Writes docs/trainers.md from the trainers: ``python -m tests.trainers_page > docs/trainers.md``."""

import re
import sys
from typing import Any

from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import TRAINERS, Carried
from tests.places import ROOT

OFF: dict[str, Any] = {name: {"weight": 0} for name in ("grpo", "sdpo", "dpo", "sft")}
#: What a recipe may ask of a channel.
VARIANTS: dict[str, dict[str, Any]] = {
    "GRPO, recorded answers": {"grpo": {"weight": 1.0}},
    "GRPO, sampled answers": {"grpo": {"weight": 1.0, "source": "sampled"}},
    "GRPO, both": {"grpo": {"weight": 1.0, "source": "mixed"}},
    "SDPO, JSD, frozen teacher": {"sdpo": {"weight": 1.0}},
    "SDPO, live or EMA teacher": {"sdpo": {"weight": 1.0, "teacher": "ema"}},
    "SDPO, TAID": {"sdpo": {"weight": 1.0, "divergence": "taid"}},
    "SDPO, entropy-aware": {"sdpo": {"weight": 1.0, "divergence": "eopd"}},
    "DPO, every kind, and SimPO": {"dpo": {"weight": 1.0}},
    "SFT": {"sft": {"weight": 1.0}},
}

HEAD = """# Trainers

`trainer` in a [recipe](recipes.md) names what trains: `trl` (the default), `verl` or `prime-rl`. A trainer says how it computes each
channel of the composer loss under a recipe, and `composer-pipeline train --plan` prints it, as do the run's `composer.json` and the
model card. A channel that it cannot compute is refused before anything starts, and so is a recipe field that it does not read, unless
the field has its default. A channel that is not *exact* must be named in the recipe: `accept: {grpo: surrogate}` is the default.

* *exact*: the channel's own gradient;
* *surrogate*: another loss in its place, and the table says which.

The memory that `--plan` predicts is that of `trl`.

This page is generated from the code: `python -m tests.trainers_page > docs/trainers.md`.

"""

TAIL = """
## Where it was run

| backend | proven by | result |
|---|---|---|
| `trl` | CI, on CPUs; on one GPU: `make gpu-day` | `benchmarks/results/gpu.md`: {gpu} |
| `verl` | `make proof-verl`: its own environment, on CPUs | `benchmarks/results/verl.md`: {verl} |
| Monarch, a place of replicas | `make proof-monarch`: its own environment, on CPUs | `benchmarks/results/monarch.md`: {monarch} |
| `prime-rl` | its files' fields were compared with its configuration (commit 559b447) by reading; not run, nor checked by its own package here | |

## VeRL

`make .venv-verl` makes its environment from `requirements/verl.txt`. In a recipe:

```yaml
trainer: verl
backend:
  python: .venv-verl/bin/python   # the interpreter that has verl
  options: {{use_remove_padding: true}} # sequences of a micro-batch packed into one row
```

Rows, base pass, outer log and checkpoint are the pipeline's, in its own interpreter; each replica is a process of verl's: a
`TrainingWorker` on FSDP2, without Ray, on one or several ranks (`ranks.processes`). Upstream supports no CPU: there our registration
of its engine is used, and that is what was proven. On the proof's former, smaller world it learned what TRL's trainer learned
(`benchmarks/results/verl_toolworld.md`). On GPUs, with Ray and with rollouts of vLLM it was not run.

## Monarch

`diloco.place: {{kind: monarch}}` hosts the replicas of this machine in actor processes: control goes by messages, tensors through the
outer log. Several hosts were not run.

## PRIME-RL

`train` writes `sft.toml` and its data, or `rl.toml` for sampled GRPO in [the environment server](usage.md), into the run folder, says
that PRIME-RL was not started, and ends with exit code 1. Its trainer takes rollouts of its own orchestrator only, so recorded answers,
pairs and error turns have no way in. Its own self-distillation (`opsd`) needs the hint in the task, which the environment does not
give: it is not offered.

## Others

* torchft: no trainer or backend of its own; [decisions.md](decisions.md) says why, `make bench-diloco-peer` runs it beside the outer log.
* TorchForge: not supported; upstream noted a pause of its development on 2026-04-23.
* TorchTitan: not supported; it gets a row when it has a test that needs no GPU.
* Your own: implement `Trainer` (`composer_pipeline.training.registry`), name it as an entry point of the group
  `composer_pipeline.trainers`, and write `composer.json` with `result_of`; `examples/own_trainer.py` does.
"""


def page() -> str:
    """Return the page."""
    names, notes = TRAINERS.builtin, list[str]()
    text = HEAD + f"| channel | {' | '.join(f'`{name}`' for name in names)} |\n"
    text += "|---|" + "---|" * len(names) + "\n"
    for label, channels in VARIANTS.items():
        cells = [_cell(name, channels, notes) for name in names]
        text += f"| {label} | {' | '.join(cells)} |\n"
    replicas = [
        ("yes" if TRAINERS.get(name).needs(TrainingRecipe(name="x")).diloco else "no")
        for name in names
    ]
    text += f"| DiLoCo replicas | {' | '.join(replicas)} |\n\n"
    text += "".join(f"{number}. {note}\n" for number, note in enumerate(notes, start=1))
    return text + TAIL.format(gpu=_run("gpu"), verl=_run("verl"), monarch=_run("monarch"))


def _cell(name: str, channels: dict[str, Any], notes: list[str]) -> str:
    recipe = TrainingRecipe(name="x", trainer=name, channels=OFF | channels)
    ((_, how),) = TRAINERS.get(name).carries(recipe).items()
    said = how.fidelity.replace("_", " ") if isinstance(how, Carried) else "refused"
    if not how.why:
        return said
    note = how.why[0].upper() + how.why[1:] + "."
    if note not in notes:
        notes.append(note)
    return f"{said} ({notes.index(note) + 1})"


def _run(name: str) -> str:
    """Return what a recorded result says of when and on what it ran."""
    text = (ROOT / "benchmarks" / "results" / f"{name}.md").read_text(encoding="utf-8")
    found = re.search(
        r"^`[^`]+`,? ?(?:from the folder that `make gpu-day` prepares: )?(.*)$", text, re.M
    )
    assert found, name
    return found[1].rstrip(".")


if __name__ == "__main__":
    sys.stdout.write(page())
