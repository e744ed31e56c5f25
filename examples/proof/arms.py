"""The arms of the proof: which terms of the loss each has, and which data.

All arms start from one base and take the same number of optimizer steps at the same rates. A term
has the same rows a step whatever the arm; the anchor is SFT with weight 1. Weights, rates, rows and
arms were chosen on the development world alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from composer_pipeline.training.recipe import TrainingRecipe
from examples.proof.toolworld.pipeline import Plan
from examples.proof.toolworld.student import WINDOW, base_dir

Terms = Mapping[str, Mapping[str, Any]]

#: Rows of one optimizer step.
_ROWS: dict[str, dict[str, Any]] = {
    "grpo": {"source": "recorded", "groups_per_step": 4},
    "sdpo": {"rows_per_step": 8},
    "dpo": {"pairs_per_step": 8},
    "sft": {"rows_per_step": 16},
}
#: The anchor of the shipped recipe: consensus and the agent's own successes; and without teachers.
_BOTH: dict[str, Any] = {"source": "both"}
_OWN: dict[str, Any] = {"source": "successes"}
#: With weight 1 pairs unlearn right actions beside them.
_LIGHT = {"weight": 0.2}
#: What an arm without teachers has in place of the grid's data.
_ALONE: Mapping[str, Any] = {"coverage": "none", "shared": 0}
#: As `recipes/train` have it: warm up, then fall to nothing.
SCHEDULE: Mapping[str, Any] = {
    "schedule": "cosine", "warmup_steps": 5, "learning_rate": 4e-4,
}  # fmt: skip
STEPS = 60
#: Steps of a replica between two exchanges.
INNER_STEPS = 10


@dataclass(frozen=True)
class Arm:
    """One combination of terms, on data that differ from the grid's in ``data``.

    ``rows`` changes what SFT repeats: what the agent did (``placebo``), or its own later fixes in
    place of its mistakes beside its successes (``fixes``).
    """

    terms: Terms
    what: str
    data: Mapping[str, Any] = field(default_factory=dict)
    rows: Literal["placebo", "fixes"] | None = None
    replicas: int = 0
    kill: bool = False

    def plan(self, plan: Plan) -> Plan:
        """Return a plan with this arm's data."""
        return replace(plan, **self.data)


#: What `make proof` runs unless --arms or --all say otherwise.
DEFAULT: dict[str, Arm] = {
    "sft-recorded": Arm({"sft": {}}, "SFT on what the agent did (placebo)", rows="placebo"),
    "sft": Arm({"sft": {}}, "SFT on the consensus"),
    "alpha-0": Arm({"sft": _BOTH}, "shipped, without SDPO (alpha = 0)"),
    "shipped": Arm({"sdpo": {}, "sft": _BOTH}, "shipped: SDPO + anchor"),
    "shipped-own": Arm(
        {"sdpo": {}, "sft": _BOTH, "dpo": _LIGHT},
        "shipped + DPO on fix-up and recovery pairs",
        {"pairs": "own"},
    ),
    "flagged": Arm(
        {"sdpo": {}, "sft": _OWN}, "no teacher: hints at the flagged turn",
        {**_ALONE, "hints": "flagged"},
    ),
    "culprit": Arm({"sdpo": {}, "sft": _OWN}, "no teacher: hints at the culprit", _ALONE),
    "own": Arm(
        {"sdpo": {}, "sft": _OWN}, "no teacher: hints at the culprit + SFT on own fixes", _ALONE,
        rows="fixes",
    ),
    "fixes": Arm({"sft": _OWN}, "no teacher: SFT on own fixes", _ALONE, rows="fixes"),
    "own-dpo": Arm(
        {"sdpo": {}, "sft": _OWN, "dpo": _LIGHT},
        "no teacher: hints at the culprit + DPO on own fixes", _ALONE,
    ),
}  # fmt: skip
_SHIPPED = DEFAULT["shipped"].terms
ARMS: dict[str, Arm] = {
    **DEFAULT,
    "sdpo": Arm({"sdpo": {}}, "SDPO alone", _ALONE),
    "dpo": Arm({"dpo": {}}, "DPO alone"),
    "dpo-anchor": Arm({"dpo": {}, "sft": _BOTH}, "DPO + anchor"),
    "grpo-recorded": Arm({"grpo": {}}, "GRPO on recorded groups"),
    "grpo": Arm({"grpo": {"source": "sampled", "group_size": 6}}, "GRPO, on policy"),
    "composer": Arm({"grpo": {}, "sdpo": {}, "dpo": {}, "sft": _BOTH}, "all four channels"),
    "composer-live": Arm(
        {"grpo": {}, "sdpo": {"teacher": "live"}, "dpo": {}, "sft": _BOTH},
        "all four channels, live teacher",
    ),
    "no-anchor": Arm({"grpo": {}, "sdpo": {}, "dpo": {}}, "all but the anchor"),
    **{
        f"diloco-{n}": Arm(_SHIPPED, f"DiLoCo, {n} replica{'s' * (n > 1)}", replicas=n)
        for n in (1, 2, 4)
    },
    "diloco-killed": Arm(_SHIPPED, "DiLoCo, 2 replicas, one killed", replicas=2, kill=True),
}


def recipe_of_arm(
    name: str, *, seed: int, steps: int, student: Mapping[str, Any] | None = None
) -> TrainingRecipe:
    """Return the recipe of an arm by name, its rows a step shared by its replicas."""
    arm = ARMS[name]
    diloco: dict[str, Any] = {"replicas": 1, "inner_steps": steps}
    terms = {channel: dict(options) for channel, options in arm.terms.items()}
    if arm.replicas:
        diloco = {"replicas": arm.replicas, "inner_steps": min(INNER_STEPS, steps)}
        diloco |= {"max_restarts": 0} if arm.kill else {}
        # The default has momentum from six rounds on.
        diloco |= {"outer": "fedavg"} if arm.replicas > 1 else {}
        for channel, options in terms.items():
            for field, rows in (_ROWS[channel] | options).items():
                if field.endswith("_per_step"):
                    options[field] = rows // arm.replicas
    return recipe_of(
        terms, name=name, seed=seed, steps=steps, diloco=diloco, norms_every=steps,
        **(student or {}),
    )  # fmt: skip


def recipe_of(terms: Terms, *, name: str, seed: int = 1, **changes: Any) -> TrainingRecipe:
    """Return the recipe of an arm; ``changes`` replace top-level fields."""
    channels = {channel: {"weight": 0} for channel in _ROWS} | {
        channel: {"weight": 1.0, **_ROWS[channel], **options} for channel, options in terms.items()
    }
    fields: dict[str, Any] = {
        "name": name, "model": str(base_dir()), "lora": {"r": 0}, "channels": channels,
        "data": WINDOW.model_dump(), **SCHEDULE, "steps": STEPS,
        "diloco": {"replicas": 1, "inner_steps": STEPS}, "norms_every": STEPS,
        "micro_batch_tokens": 8192, "seed": seed,
    }  # fmt: skip
    return TrainingRecipe.model_validate(fields | changes)
