"""What a training run is: one YAML file, validated before anything starts.

Belongs here: the recipe's fields, defaults and their checks. Does not belong here: which
trainer can carry it (``training.trainer``) and how it runs.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from composer_pipeline.config_file import read_model


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Lora(_Model):
    """A LoRA adapter. ``r: 0`` trains every parameter."""

    r: int = Field(8, ge=0)
    alpha: int = Field(16, ge=1)
    targets: tuple[str, ...] | Literal["all-linear"] = ("q_proj", "v_proj")

    @model_validator(mode="after")
    def _no_head(self) -> "Lora":
        if isinstance(self.targets, tuple) and "lm_head" in self.targets:
            raise ValueError(
                "an adapter on lm_head would never be trained: the losses read its weight"
            )
        return self


class Grpo(_Model):
    """GRPO over recorded groups: the agent's action and the teachers' actions to one state."""

    weight: float = Field(1.0, ge=0)
    group_size: int = Field(4, ge=2)
    groups_per_step: int = Field(1, ge=1)


class Sdpo(_Model):
    """Self-distillation at error turns; the teacher also sees the hint.

    ``weight`` is α of the composer loss, ``jsd_beta`` mixes teacher and student in the
    divergence. ``teacher: frozen`` is the model before training, ``live`` the student
    itself without gradient (which is known to be unstable).
    """

    weight: float = Field(1.0, ge=0)
    jsd_beta: float = Field(0.5, ge=0, le=1)
    temperature: float = Field(1.0, gt=0)
    teacher: Literal["frozen", "live"] = "frozen"
    rows_per_step: int = Field(1, ge=1)


class Dpo(_Model):
    """Trace-replay DPO: the teachers' action against the agent's.

    ``weight`` is the composer loss's β; ``beta`` is DPO's own. ``anchor`` adds the
    chosen action's mean negative log-likelihood, which keeps DPO from unlearning it.
    """

    weight: float = Field(1.0, ge=0)
    beta: float = Field(0.1, gt=0)
    anchor: float = Field(0.2, ge=0)
    pairs_per_step: int = Field(2, ge=1)


class Channels(_Model):
    """The three terms of the composer loss. A weight of 0 turns a term off."""

    grpo: Grpo = Grpo()
    sdpo: Sdpo = Sdpo()
    dpo: Dpo = Dpo()

    @model_validator(mode="after")
    def _something_is_on(self) -> "Channels":
        if not self.weights():
            raise ValueError("every channel has weight 0: nothing would be trained")
        return self

    def weights(self) -> dict[str, float]:
        """Return the weights of the channels that are on."""
        every = {"grpo": self.grpo.weight, "sdpo": self.sdpo.weight, "dpo": self.dpo.weight}
        return {name: weight for name, weight in every.items() if weight > 0}


class Data(_Model):
    """How rows become token windows.

    ``max_tools_tokens`` bounds the tool schemas inside the prompt (never more than a third
    of it): beyond it they are shortened, then limited to their names; 0 offers none.
    ``drop_lost_files`` leaves out rows whose action names a file that the prompt showed and the
    window does not: nobody could know that name.
    """

    max_prompt_tokens: int = Field(1024, ge=64)
    max_completion_tokens: int = Field(256, ge=8)
    max_tools_tokens: int = Field(512, ge=0)
    max_dropped_share: float = Field(0.5, ge=0, le=1)
    drop_lost_files: bool = True


class DiLoCo(_Model):
    """Replicas that train alone for ``inner_steps`` and then agree on an outer step."""

    replicas: int = Field(2, ge=1)
    rounds: int = Field(4, ge=1)
    inner_steps: int = Field(10, ge=1)
    outer_lr: float | None = Field(None, gt=0)
    outer_momentum: float | None = Field(None, ge=0, lt=1)
    min_quorum: int = Field(1, ge=1)
    join_timeout_s: float = Field(300.0, gt=0)
    grace_s: float = Field(300.0, gt=0)
    max_restarts: int = Field(2, ge=0)

    @model_validator(mode="after")
    def _quorum_is_reachable(self) -> "DiLoCo":
        if self.min_quorum > self.replicas:
            raise ValueError(f"min_quorum {self.min_quorum} exceeds replicas {self.replicas}")
        return self


class TrainingRecipe(_Model):
    """One training run. Times are seconds, lengths tokens."""

    name: str = Field(min_length=1)
    trainer: str = "trl"
    model: str = "smollm2-135m"
    lora: Lora = Lora()
    channels: Channels = Channels()
    data: Data = Data()
    diloco: DiLoCo = DiLoCo()
    learning_rate: float = Field(1e-4, gt=0)
    gradient_accumulation_steps: int = Field(1, ge=1)
    max_grad_norm: float = Field(1.0, gt=0)
    seed: int = Field(0, ge=0)
    bf16: bool = False
    threads: int = Field(1, ge=0, description="CPU threads of a replica; 0 leaves it to torch")
    fail_after_empty_steps: int | None = Field(
        None, ge=1, description="steps without an active token of a channel; default: one round"
    )

    @model_validator(mode="after")
    def _teacher_exists(self) -> "TrainingRecipe":
        sdpo = self.channels.sdpo
        if sdpo.weight > 0 and sdpo.teacher == "frozen" and self.lora.r == 0:
            raise ValueError(
                "channels.sdpo.teacher 'frozen' needs a LoRA adapter to switch off (lora.r > 0);"
                " full fine-tuning has only 'live'"
            )
        return self

    @model_validator(mode="after")
    def _batches_split(self) -> "TrainingRecipe":
        rows = self.channels.grpo.group_size * self.channels.grpo.groups_per_step
        if rows % self.gradient_accumulation_steps:
            raise ValueError(
                f"gradient_accumulation_steps {self.gradient_accumulation_steps} does not divide"
                f" channels.grpo.group_size x groups_per_step = {rows}"
            )
        return self

    @property
    def steps(self) -> int:
        """Optimizer steps of one replica."""
        return self.diloco.rounds * self.diloco.inner_steps

    @property
    def empty_limit(self) -> int:
        """Steps after which a channel that saw nothing fails the run."""
        return self.fail_after_empty_steps or self.diloco.inner_steps

    @staticmethod
    def load(path: str | Path) -> "TrainingRecipe":
        """Read a recipe from a YAML file.

        Raises:
            InputError: the file is missing, not YAML, or a field is wrong; names both.
        """
        return read_model(path, "training recipe", TrainingRecipe)
