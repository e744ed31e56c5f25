"""A recipe as one: the model, its rows, its length, and the checks across its parts.

Belongs here: ``TrainingRecipe`` and how it is read. Does not belong here: which trainer can carry
it (``training.trainer``) and how it runs.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from composer_pipeline.config_file import read_model
from composer_pipeline.training.recipe.channels import Channels
from composer_pipeline.training.recipe.part import Part
from composer_pipeline.training.recipe.replicas import DiLoCo, Ranks

#: Rounds of a recipe that does not say how long it is.
DEFAULT_ROUNDS = 4


def _is_head(target: str) -> bool:
    return target.rpartition(".")[2] in ("lm_head", "embed_out", "output")


class Lora(Part):
    """A LoRA adapter. ``r: 0`` trains every parameter."""

    r: int = Field(8, ge=0)
    """Rank of the adapter; 0 trains every parameter of the model."""
    alpha: int = Field(16, ge=1)
    """The adapter's product is scaled by alpha / r."""
    targets: tuple[str, ...] | Literal["all-linear"] = ("q_proj", "v_proj")
    """Linear maps with an adapter, by the end of their names; `all-linear`: all but the head."""

    @model_validator(mode="after")
    def _no_head(self) -> "Lora":
        heads = [] if isinstance(self.targets, str) else list(filter(_is_head, self.targets))
        if heads:
            raise ValueError(
                f"targets has {heads[0]}: an adapter on the head would never be trained, since"
                " the losses read its weight"
            )
        return self


class Data(Part):
    """How rows become token windows.

    Where a model's chat template takes one call a message, parallel calls of the prompt become
    calls one after another, and of an action with several calls the first is kept.

    ``max_tools_tokens`` bounds the tool schemas inside the prompt (never more than an eighth
    of it): beyond it they are shortened, then limited to their names; 0 offers none.
    ``drop_lost_files`` leaves out rows whose action names a file that the prompt showed and the
    window does not: nobody could know that name.
    """

    max_prompt_tokens: int = Field(1024, ge=64)
    """Tokens of a prompt; a longer one is cut as docs/architecture.md says."""
    max_completion_tokens: int = Field(256, ge=8)
    """Tokens of an action; a row with a longer one is dropped."""
    max_tools_tokens: int = Field(512, ge=0)
    """Tokens of the tool schemas inside the prompt; 0 offers no tools."""
    max_dropped_share: float = Field(0.5, ge=0, le=1)
    """Share of a channel's rows whose loss is still accepted; more ends the run."""
    drop_lost_files: bool = True
    """Leave out rows whose action names a file that only the whole prompt showed."""


class TrainingRecipe(Part):
    """One training run. Times are seconds, lengths tokens.

    How long it is, is said once: by ``diloco.rounds`` of ``diloco.inner_steps`` optimizer steps,
    by ``steps``, or by ``epochs``. The last two are rounded up to whole rounds. An epoch takes
    every row of every channel at least once, all replicas together.
    """

    name: str = Field(min_length=1)
    """Begins the run folder's name."""
    trainer: str = "trl"
    """Which back end trains: an entry point in `composer_pipeline.trainers`."""
    model: str = "smollm2-135m"
    """`smollm2-135m` (comes with a package, no network), a model's folder, or a Hub id."""
    start_from: str = ""
    """An earlier adapter to go on from: run folder, adapter folder or Hub id."""
    extends: str = ""
    """Folder of a finished run to go on from, moments and all: `diloco.rounds` counts its rounds
    too, and nothing else may change. `train --extend` writes it."""
    report_to: tuple[Literal["tensorboard", "wandb", "trackio", "mlflow"], ...] = ()
    """Where transformers reports each step besides metrics.jsonl."""
    lora: Lora = Lora()
    channels: Channels = Channels()
    data: Data = Data()
    diloco: DiLoCo = DiLoCo()
    ranks: Ranks = Ranks()
    steps: int | None = Field(None, ge=1)
    """Optimizer steps of each replica, rounded up to whole rounds."""
    epochs: float | None = Field(None, gt=0)
    """Passes over the largest channel, rounded up to whole rounds."""
    learning_rate: float = Field(1e-4, gt=0)
    """Of the optimizer, after the warm-up."""
    optimizer: Literal["adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "muon"] = (
        "adamw_torch"
    )
    """By its name in transformers; `muon`: PyTorch's, for the layers' matrices, with AdamW for the
    rest, at AdamW's learning rates."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Of the learning rate, over all steps of the run."""
    warmup_steps: int = Field(0, ge=0)
    """Optimizer steps in which the learning rate rises from 0."""
    weight_decay: float = Field(0.0, ge=0)
    """Pull of the trained parameters to 0 (decoupled in AdamW)."""
    max_grad_norm: float = Field(1.0, gt=0)
    """A longer gradient is scaled down to this norm."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """`bf16`: weights in bf16 with adapters in fp32; autocast without LoRA."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward: less memory, more time."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Implementation in transformers; `flash_attention_2` needs its package and a GPU."""
    micro_batch_tokens: int = Field(4096, ge=64)
    """Tokens, padding included, of one forward of any channel: memory, not mathematics."""
    shared_prefix: Literal["auto", "on", "off"] = "auto"
    """Rows with equal beginnings share one forward: `auto` where the model can, `on` or not at
    all, `off`: each row by itself."""
    draw: Literal["independent", "by-state"] = "independent"
    """Order of rows: each channel's own, or rows of one state in one step where channels share
    states, so that `shared_prefix` saves more. Each row comes once an epoch either way."""
    seed: int = Field(0, ge=0)
    """Of the order of rows, the adapter's beginning and sampled answers."""
    threads: int = Field(1, ge=0)
    """CPU threads of a replica; 0 leaves it to torch."""
    norms_every: int = Field(10, ge=1)
    """Steps between measurements of each channel's own gradient."""
    checkpoint_every: int | None = Field(10, ge=1)
    """Optimizer steps of a round after which a replica keeps what a restart goes on from: the
    trained parameters and the optimizer's state, on its own disk; null: only after the last."""
    max_bad_steps: int = Field(3, ge=1)
    """Consecutive steps with a non-finite loss or gradient that end the run."""
    eval_every: int | None = Field(None, ge=1)
    """Rounds between looks at held-out rows (and after the last); null: none."""
    eval_rows: int = Field(64, ge=1)
    """Held-out rows of each channel, at most."""
    keep_best: bool = False
    """The checkpoint is that of the round with the lowest held-out loss."""

    @model_validator(mode="after")
    def _one_length(self) -> "TrainingRecipe":
        said = {"steps": self.steps, "epochs": self.epochs, "diloco.rounds": self.diloco.rounds}
        given = [name for name, value in said.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} both say how long the run is; keep one")
        return self

    @model_validator(mode="after")
    def _best_is_known(self) -> "TrainingRecipe":
        if self.keep_best and self.eval_every is None:
            raise ValueError("keep_best needs eval_every: nothing says which round was best")
        return self

    @model_validator(mode="after")
    def _somebody_looks(self) -> "TrainingRecipe":
        if self.eval_every is not None and self.diloco.here == 0:
            raise ValueError("eval_every needs diloco.local_replicas of 1: replica 0 looks")
        if self.eval_every is not None and self.diloco.fragments > 1:
            raise ValueError(
                "eval_every looks at what a round has committed, which no replica holds whole with"
                " diloco.fragments above 1: leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _adapter_continues(self) -> "TrainingRecipe":
        if self.start_from and self.lora.r == 0:
            raise ValueError("start_from is an adapter, and lora.r 0 trains none")
        return self

    @model_validator(mode="after")
    def _parts_can_be_trained(self) -> "TrainingRecipe":
        if self.ranks.sharding == "ddp" or self.ranks.processes == 1 or self.lora.r:
            return self
        if self.channels.sdpo.weight and self.channels.sdpo.teacher != "live":
            raise ValueError(
                "ranks.sharding fsdp2 with lora.r 0 has no room for a second model: set lora.r"
                " above 0, channels.sdpo.weight 0, or ranks.sharding ddp"
            )
        if self.optimizer in ("adafactor", "muon"):  # they look at whole matrices
            raise ValueError(
                f"ranks.sharding fsdp2 with lora.r 0 cannot use optimizer {self.optimizer}"
            )
        return self

    @property
    def rounds(self) -> int:
        """Rounds of the run.

        Raises:
            ValueError: the recipe says ``epochs`` and was not :meth:`resolved`.
        """
        if self.epochs is not None:
            raise ValueError("epochs are not known as rounds before the rows are counted")
        if self.steps is not None:
            return math.ceil(self.steps / self.diloco.inner_steps)
        return self.diloco.rounds or DEFAULT_ROUNDS

    @property
    def total_steps(self) -> int:
        """Optimizer steps of one replica in the whole run; raises as :attr:`rounds`."""
        return self.rounds * self.diloco.inner_steps

    def steps_per_epoch(self, rows: Mapping[str, int]) -> int:
        """Return the steps in which the replicas together take every row of every channel.

        Args:
            rows: usable rows by channel.
        """
        together = {
            channel: per_step * self.diloco.replicas
            for channel, per_step in self.channels.rows_per_step().items()
        }
        return max(math.ceil(rows[channel] / taken) for channel, taken in together.items())

    def resolved(self, rows: Mapping[str, int]) -> "TrainingRecipe":
        """Return the recipe with its length as ``diloco.rounds``.

        Args:
            rows: usable rows by channel, which decide what an epoch is.
        """
        recipe = self
        if self.epochs is not None:
            steps = math.ceil(self.epochs * self.steps_per_epoch(rows))
            recipe = self.model_copy(update={"epochs": None, "steps": steps})
        diloco = self.diloco.model_copy(update={"rounds": recipe.rounds})
        return recipe.model_copy(update={"steps": None, "diloco": diloco})

    def agreed(self) -> str:
        """Return as JSON what all machines of a run must have in common.

        Its name, its paths, where its log is and how a machine computes may differ. How long it
        is and its outer step are for the replicas' own agreement (``diloco.spec``).
        """
        paths = ("name", "model", "start_from", "extends")
        own = dict.fromkeys((*paths, "threads", "checkpoint_every", "ranks"), True)
        here = {"log", "run_id", "local_replicas", "max_restarts", "place"}
        here |= {"rounds", "outer", "outer_lr", "outer_momentum"}  # the spec has them
        return self.model_dump_json(exclude={**own, "diloco": here})

    @staticmethod
    def load(path: str | Path) -> "TrainingRecipe":
        """Read a recipe from a YAML file.

        Raises:
            InputError: the file is missing, not YAML, or a field is wrong; names both.
        """
        return read_model(path, "training recipe", TrainingRecipe)
