"""The training recipe: model, channels, rows, length and optimizer of a run, and their checks."""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from composer_pipeline.config_file import read_model
from composer_pipeline.diloco.spec import RUN_ID, DiLoCoRules, DiLoCoSpec
from composer_pipeline.settings import recipe_file


class Part(BaseModel):
    """A part of the recipe; unknown keys and non-finite numbers are rejected."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


#: Parts of the reward; see ``training.rewards``.
RewardPart = Literal["validity", "match", "votes", "edit", "outcome", "survival", "repeat"]


class Grpo(Part):
    """Policy gradient on answers to one state, rewarded by similarity to the consensus.

    ``source: recorded`` takes the agent's and the teachers' answers: an offline surrogate, since
    they were not sampled from the model. An answer worse than its group's mean is ignored once the
    model's log-probability of it, per token, has fallen by more than ``off_policy_threshold`` nats
    below the base model's. ``sampled`` samples ``group_size`` answers from the model, one action
    each. ``mixed`` puts both in one group.

    ``rewards`` are the weights of the parts that are summed. ``match`` with the consensus and
    ``votes`` (the best match with a teacher's action, times its share of the votes) are in [0, 1],
    ``edit`` (diffs of a file that the prompt shows) in [-1, 1]. ``validity`` is -1, and nothing
    else counts, for a call that the offered tools do not accept. ``outcome`` is 0.2 for the agent's
    own action if it worked and -0.5 if it failed; ``repeat`` is -0.5 for a call that failed before.
    """

    weight: float = Field(1.0, ge=0)
    """Factor of this term in the loss; 0 turns it off."""
    source: Literal["recorded", "sampled", "mixed"] = "recorded"
    """Answers: `recorded`, `sampled` from the model, or `mixed`: both in one group."""
    group_size: int = Field(4, ge=2)
    """Answers sampled for a state; unused with `recorded`."""
    groups_per_step: int = Field(1, ge=1)
    """States in one optimizer step of one replica."""
    off_policy_threshold: float | None = Field(0.5, gt=0)
    """Nats per token below the base model at which a bad answer is ignored; null: never."""
    rewards: dict[RewardPart, Annotated[float, Field(gt=0)]] = Field({"match": 1.0}, min_length=1)
    """Weight of each part: `validity`, `match`, `votes`, `edit`, `outcome`, `survival`,
    `repeat`."""

    @property
    def recorded(self) -> bool:
        """True if recorded answers are trained on."""
        return self.source != "sampled"

    @property
    def sampled(self) -> bool:
        """True if answers are sampled from the model."""
        return self.source != "recorded"


class Sdpo(Part):
    """Self-distillation at error turns; the teacher also sees the hint.

    ``hint_gain`` keeps a row only if the hint helps: under the base model it must raise
    log p(consensus or recovery) − log p(failed action). ``teacher: frozen`` is the model before
    training, ``ema`` follows the student by ``ema_rate`` per step, ``live`` is the student itself
    (known to be unstable). ``divergence: jsd`` mixes by ``jsd_beta`` at ``temperature``; ``taid``
    (arXiv 2501.16937) and ``eopd`` (arXiv 2603.07079) have the settings of their papers.
    ``importance_clip`` weights each token by min(p/p_base, clip), because the recorded action was
    not sampled from the model.
    """

    weight: float = Field(1.0, ge=0)
    """α of the composer loss; 0 turns the term off."""
    rows_per_step: int = Field(1, ge=1)
    """Error turns in one optimizer step of one replica."""
    hint_gain: bool = True
    """Keep only rows whose hint helps the base model; false keeps all."""
    teacher: Literal["frozen", "ema", "live"] = "frozen"
    """The model that reads the hint: `frozen`, `ema` or `live`."""
    ema_rate: float = Field(0.02, gt=0, le=1)
    """How far `ema` moves towards the student in a step: 1 is the student itself."""
    divergence: Literal["jsd", "taid", "eopd"] = "jsd"
    """From student to teacher: `jsd`, `taid` or `eopd`."""
    jsd_beta: float = Field(0.5, ge=0, le=1)
    """0: KL(teacher, student); 1: KL(student, teacher); between: of both to their mixture."""
    temperature: float = Field(1.0, gt=0)
    """Divides the logits of both sides; used only by `jsd`."""
    importance_clip: float | None = Field(None, gt=0)
    """Upper limit of the factor p / p_base of a token's term; null: no factor."""


class Dpo(Part):
    """Trace-replay DPO: the teachers' action preferred to the agent's.

    ``weight`` is the composer loss's β; ``beta`` is DPO's own. ``loss`` has TRL's names; all
    compare with the base model except ``simpo``, which compares mean log-probabilities per token
    and needs no base pass over the pairs (upstream: ``beta: 2.0, simpo_gamma: 0.5``).
    """

    weight: float = Field(1.0, ge=0)
    """β of the composer loss; 0 turns the term off."""
    loss: Literal[
        "sigmoid", "hinge", "ipo", "sigmoid_norm", "robust", "exo_pair", "nca_pair", "bco_pair",
        "sppo_hard", "apo_zero", "apo_down", "discopop", "simpo",
    ] = "sigmoid"  # fmt: skip
    """TRL's loss type of DPO, or `simpo`."""
    beta: float = Field(0.1, gt=0)
    """DPO's own β, the weight of a nat of margin; higher stays closer to the base model."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Assumed share of pairs in the wrong order; used by `robust`, `exo_pair` and `simpo`."""
    simpo_gamma: float = Field(0.5, ge=0)
    """Margin of `simpo`, in units of beta times nats per token."""
    pairs_per_step: int = Field(2, ge=1)
    """Pairs in one optimizer step of one replica."""

    @model_validator(mode="after")
    def _smoothing_is_read(self) -> "Dpo":
        if self.loss == "exo_pair" and not self.label_smoothing:
            raise ValueError("loss exo_pair needs a label_smoothing above 0, for example 0.001")
        if self.label_smoothing and self.loss not in ("robust", "exo_pair", "simpo"):
            raise ValueError(
                f"label_smoothing is not used by loss {self.loss}, only by robust, exo_pair and"
                " simpo"
            )
        return self

    @property
    def needs_reference(self) -> bool:
        """True if the base model has to score the pairs."""
        return self.loss != "simpo"


class Sft(Part):
    """Likelihood of actions to imitate: keeps the other terms from unlearning right actions.

    ``source: consensus`` is the consensus of each group's teachers. ``successes`` are the agent's
    own actions without any sign of failure in the trace, at states without a teachers' decision:
    they cost no teacher. ``both`` draws evenly from all rows of both.
    """

    weight: float = Field(0.2, ge=0)
    """Factor of this term in the loss; 0 turns it off."""
    source: Literal["consensus", "successes", "both"] = "consensus"
    """Actions: `consensus` of the teachers, the agent's own `successes`, or `both`."""
    rows_per_step: int = Field(2, ge=1)
    """Demonstrations in one optimizer step of one replica."""


class Channels(Part):
    """The terms of the composer loss. A weight of 0 turns a term off."""

    grpo: Grpo = Grpo()
    sdpo: Sdpo = Sdpo()
    dpo: Dpo = Dpo()
    sft: Sft = Sft()

    @model_validator(mode="after")
    def _something_is_on(self) -> "Channels":
        if not self.weights():
            raise ValueError("every channel has weight 0: nothing would be trained")
        return self

    def weights(self) -> dict[str, float]:
        """Return the weights of the channels that are on, in the order in which they run."""
        every = {
            "grpo": self.grpo.weight, "sdpo": self.sdpo.weight, "dpo": self.dpo.weight,
            "sft": self.sft.weight,
        }  # fmt: skip
        return {name: weight for name, weight in every.items() if weight > 0}

    def rows_per_step(self) -> dict[str, int]:
        """Return the rows of each channel in one optimizer step of one replica."""
        every = {
            "grpo": self.grpo.groups_per_step, "sdpo": self.sdpo.rows_per_step,
            "dpo": self.dpo.pairs_per_step, "sft": self.sft.rows_per_step,
        }  # fmt: skip
        return {name: every[name] for name in self.weights()}


#: A bucket and a path in it; what else a URL can hold may be a secret.
_BUCKET = re.compile(r"(s3|gs|az)://[^/@?#:]+(/[^@?#]*)?")


class Ranks(Part):
    """One replica as several processes on one machine, each with a device of its own.

    They run parts of the same steps and sum their gradients: what is trained is what one process
    trains. Where ``channels.grpo`` samples answers, which ones depends on how many there are.
    """

    processes: int = Field(1, ge=1)
    """Processes of each replica."""
    sharding: Literal["ddp", "fsdp2"] = "ddp"
    """`ddp`: each holds the whole model; `fsdp2`: its part of the layers, and of what trains
    them."""


class HfJobsPlace(Part):
    """Jobs of Hugging Face for the replicas that this machine does not start itself.

    Each joins through `diloco.log`. Contract-tested against huggingface_hub 2.4 on loopback; not
    run against the paid service.
    """

    kind: Literal["hf-jobs"]
    """The service."""
    namespace: str = Field(min_length=1)
    """User or organisation that pays."""
    image: str = Field(min_length=1)
    """Image in which a checkout of this project is installed."""
    flavor: str = "a10g-small"
    """Hardware, by the service's name."""
    timeout: str = "6h"
    """Of a job."""
    model: str = ""
    """Folder of the base model in the image, where the recipe's is a folder."""
    secrets: tuple[str, ...] = ()
    """Variables of this environment that a job needs, such as the keys of the log's bucket."""


class KubernetesPlace(Part):
    """Jobs of a Kubernetes cluster for the replicas that this machine does not start itself.

    Each joins through `diloco.log`. The cluster is that of the kubeconfig, or the one around this
    process. Contract-tested against kubernetes 36 on loopback; not run on a cluster.
    """

    kind: Literal["kubernetes"]
    """The service."""
    namespace: str = Field(min_length=1)
    """Of the Jobs."""
    image: str = Field(min_length=1)
    """Image in which a checkout of this project is installed."""
    limits: dict[str, str] = Field({"nvidia.com/gpu": "1"})
    """Resources of a replica, by the cluster's names."""
    secret: str = ""
    """Secret of the namespace whose entries become variables, such as the keys of the log's
    bucket."""
    context: str = ""
    """Of the kubeconfig; empty: its current one."""
    timeout_s: int | None = Field(None, ge=1)
    """Seconds after which the cluster ends a Job; null: never."""
    model: str = ""
    """Folder of the base model in the image, where the recipe's is a folder."""


class ModalPlace(Part):
    """Sandboxes of Modal for the replicas that this machine does not start itself.

    Each joins through `diloco.log`. The token is Modal's own (`modal token new`, or variables).
    Contract-tested against modal 1.6 on loopback; not run against the paid service.
    """

    kind: Literal["modal"]
    """The service."""
    image: str = Field(min_length=1)
    """Image of a registry in which a checkout of this project is installed."""
    gpu: str = Field("A100", min_length=1)
    """Hardware, by the service's name."""
    timeout_s: int = Field(86_400, ge=1, le=86_400)
    """Seconds after which the service ends a sandbox; a day at most."""
    secret: str = ""
    """Secret of the workspace whose entries become variables, such as the keys of the log's
    bucket."""
    model: str = ""
    """Folder of the base model in the image, where the recipe's is a folder."""


class MonarchPlace(Part):
    """Actor processes of Monarch on this machine.

    All replicas run here, those beyond `local_replicas` (null: all) in actors; the tensors go
    through the outer log. Needs `pip install torchmonarch==0.7.0`. Several hosts were not run.
    """

    kind: Literal["monarch"]
    """The library."""


#: Where replicas are started, told apart by its ``kind``.
AnyPlace = Annotated[
    HfJobsPlace | KubernetesPlace | ModalPlace | MonarchPlace, Field(discriminator="kind")
]


class DiLoCo(DiLoCoRules):
    """Replicas that train alone for ``inner_steps`` and then agree on an outer step."""

    max_restarts: int = Field(2, ge=0)
    """How often each replica is started again after a crash."""
    log: str = ""
    """Folder, `s3://`, `gs://` or `az://` of the outer log; empty: the run folder. With one,
    replicas on other machines can join."""
    run_id: str = ""
    """The run's name in the log; empty: that of the run folder."""
    local_replicas: int | None = Field(None, ge=0)
    """Replicas that `train` starts itself; null: all, or none where `place` is `monarch`. Others
    join from elsewhere, through `log`."""
    place: AnyPlace | None = None
    """Where `train` starts the replicas beyond `local_replicas`; null: they join by themselves."""

    @property
    def here(self) -> int:
        """How many replicas ``train`` starts on this machine."""
        if self.local_replicas is None or isinstance(self.place, MonarchPlace):
            return self.replicas
        return self.local_replicas

    @property
    def children(self) -> int:
        """How many of those are child processes; Monarch's actors are the others."""
        return (self.local_replicas or 0) if isinstance(self.place, MonarchPlace) else self.here

    def agreement(self, rounds: int, **changes: Any) -> DiLoCoSpec:
        """Return what the replicas of so many rounds agree on; ``changes`` are fields of it."""
        shared = self.model_dump(include=set(DiLoCoRules.model_fields))
        return DiLoCoSpec.model_validate({**shared, "rounds": rounds, **changes})

    @model_validator(mode="after")
    def _log_is_a_place(self) -> "DiLoCo":
        if "://" in self.log and not _BUCKET.fullmatch(self.log):
            raise ValueError("log must be a folder or s3://, gs://, az:// bucket/path, no secrets")
        if self.run_id and not RUN_ID.fullmatch(self.run_id):
            raise ValueError("run_id must be letters, digits, '.', '_', '-' (at most 128)")
        if self.children > self.replicas:
            raise ValueError(f"local_replicas {self.children} exceeds replicas {self.replicas}")
        if self.here < self.replicas and not self.log:
            raise ValueError(f"local_replicas {self.here} of {self.replicas} needs log")
        if self.place is not None and self.children == self.replicas:
            raise ValueError("place needs local_replicas below replicas")
        if self.place is not None and self.here < self.replicas and "://" not in self.log:
            raise ValueError("place needs log in a bucket, which other machines can reach")
        if self.outer == "nesterov" and self.replicas == 1:
            raise ValueError("outer nesterov needs replicas of 2: one has nothing to merge with")
        return self


class Backend(Part):
    """Where a trainer other than TRL runs, and its own settings."""

    python: str = ""
    """Interpreter of the trainer's own environment; empty: this one."""
    options: dict[str, bool | int | float | str] = {}
    """Settings of the trainer alone; see docs/trainers.md."""


#: Rounds of a recipe without rounds, steps or epochs.
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
                " the losses use the head's weight directly"
            )
        return self


class Data(Part):
    """How rows become token windows.

    If a model's chat template takes one call per message, parallel calls of the prompt become
    consecutive calls, and of an action with several calls the first is kept.

    ``max_tools_tokens`` bounds the tool schemas inside the prompt (at most an eighth of it): beyond
    it they are shortened, then reduced to their names; 0 offers none. ``drop_lost_files`` drops
    rows whose action names a file that the prompt showed but the window does not: the model could
    not know that name.
    """

    max_prompt_tokens: int = Field(1024, ge=64)
    """Tokens of a prompt; a longer one is cut as described in docs/architecture.md."""
    max_completion_tokens: int = Field(256, ge=8)
    """Tokens of an action; a row with a longer one is dropped."""
    max_tools_tokens: int = Field(512, ge=0)
    """Tokens of the tool schemas inside the prompt; 0 offers no tools."""
    max_dropped_share: float = Field(0.5, ge=0, le=1)
    """Share of a channel's rows that may be dropped; more ends the run."""
    drop_lost_files: bool = True
    """Drop rows whose action names a file that only the full prompt showed."""


class TrainingRecipe(Part):
    """One training run. Times are in seconds, lengths in tokens.

    Its length is given once: by ``diloco.rounds`` of ``diloco.inner_steps`` optimizer steps, by
    ``steps`` or by ``epochs``. The last two are rounded up to whole rounds. In an epoch the
    replicas together take every row of every channel at least once.
    """

    name: str = Field(min_length=1)
    """Prefix of the run folder's name."""
    trainer: str = "trl"
    """The training backend: an entry point in `composer_pipeline.trainers`."""
    backend: Backend = Backend()
    accept: dict[
        Literal["grpo", "sdpo", "dpo", "sft"], Literal["sampled", "surrogate", "first_order"]
    ] = {"grpo": "surrogate"}
    """How a channel may be computed where the trainer cannot do so exactly; see
    docs/trainers.md."""
    model: str = "smollm2-135m"
    """`smollm2-135m` (from a package, without a network), a model's folder, or a Hub id."""
    start_from: str = ""
    """An earlier adapter to continue from: run folder, adapter folder or Hub id."""
    extends: str = ""
    """Folder of a finished run to continue, including optimizer moments: `diloco.rounds` counts
    its rounds too, and nothing else may change. `train --extend` sets it."""
    report_to: tuple[Literal["tensorboard", "wandb", "trackio", "mlflow"], ...] = ()
    """Where transformers reports each step, in addition to metrics.jsonl."""
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
    """Learning rate after the warm-up."""
    optimizer: Literal["adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "muon"] = (
        "adamw_torch"
    )
    """The name in transformers; `muon`: PyTorch's, for the matrices of layers, with AdamW for the
    rest, at AdamW's learning rates."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning-rate schedule over all steps of the run."""
    warmup_steps: int = Field(0, ge=0)
    """Optimizer steps in which the learning rate rises from 0."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay of the trained parameters (decoupled in AdamW)."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this norm."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """`bf16`: weights in bf16 with adapters in fp32; autocast without LoRA."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Implementation in transformers; `flash_attention_2` needs its package and a GPU."""
    micro_batch_tokens: int = Field(4096, ge=64)
    """Tokens, padding included, of one forward of any channel; affects memory, not the result."""
    shared_prefix: Literal["auto", "on", "off"] = "auto"
    """Rows with a common prefix share one forward: `auto` where the model supports it, `on`
    (an error where it does not), or `off`."""
    draw: Literal["independent", "by-state"] = "independent"
    """Order of rows: independent for each channel, or rows of one state in one step where channels
    share states, so that `shared_prefix` saves more. Each row comes once per epoch either way."""
    seed: int = Field(0, ge=0)
    """Of the order of rows, the adapter's initialisation and sampled answers."""
    threads: int = Field(1, ge=0)
    """CPU threads of a replica; 0: torch's default."""
    norms_every: int = Field(10, ge=1)
    """Steps between measurements of each channel's own gradient norm."""
    checkpoint_every: int | None = Field(10, ge=1)
    """Optimizer steps between a replica's checkpoints for restarts (trained parameters and
    optimizer state, on its own disk); null: only at the end of a round."""
    eval_every: int | None = Field(None, ge=1)
    """Rounds between evaluations on held-out rows (and after the last); null: none."""
    eval_rows: int = Field(64, ge=1)
    """Held-out rows of each channel, at most."""
    keep_best: bool = False
    """Keep the checkpoint of the round with the lowest held-out loss."""

    @model_validator(mode="after")
    def _consistent(self) -> "TrainingRecipe":
        lengths = {"steps": self.steps, "epochs": self.epochs, "diloco.rounds": self.diloco.rounds}
        given = [name for name, value in lengths.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} both set the length of the run; keep one")
        if self.keep_best and self.eval_every is None:
            raise ValueError("keep_best needs eval_every to know which round was best")
        if self.eval_every is not None and self.diloco.here == 0:
            raise ValueError(
                "eval_every needs diloco.local_replicas of at least 1: replica 0 evaluates"
            )
        if self.eval_every is not None and (self.diloco.fragments > 1 or self.diloco.overlap_steps):
            raise ValueError(
                "eval_every evaluates the committed state, which no replica holds completely with"
                " diloco.fragments above 1 or diloco.overlap_steps: leave one of them out"
            )
        apart = self.ranks.processes > 1 or self.backend.python
        if apart and isinstance(self.diloco.place, MonarchPlace):
            raise ValueError(
                "diloco.place monarch needs ranks.processes of 1 and no backend.python: an actor"
                " is one process, of this interpreter"
            )
        if self.start_from and self.lora.r == 0:
            raise ValueError("start_from is an adapter, but lora.r 0 trains none")
        if self.ranks.sharding == "fsdp2" and self.ranks.processes > 1 and self.lora.r == 0:
            self._check_whole_model_shards()
        return self

    def _check_whole_model_shards(self) -> None:
        if self.channels.sdpo.weight and self.channels.sdpo.teacher != "live":
            raise ValueError(
                "ranks.sharding fsdp2 with lora.r 0 cannot hold a second model: set lora.r"
                " above 0, channels.sdpo.weight 0, or ranks.sharding ddp"
            )
        if self.optimizer in ("adafactor", "muon"):  # both need whole matrices
            raise ValueError(
                f"ranks.sharding fsdp2 with lora.r 0 cannot use optimizer {self.optimizer}"
            )

    @property
    def threads_alone(self) -> int:
        """CPU threads of a process that runs while no replica does: those of all local replicas."""
        cores = os.cpu_count() or 1
        if hasattr(os, "sched_getaffinity"):  # not on macOS
            cores = len(os.sched_getaffinity(0))
        return max(self.threads, min(self.threads * self.diloco.here, cores))

    @property
    def rounds(self) -> int:
        """Rounds of the run; ValueError where ``epochs`` was not :meth:`resolved`."""
        if self.epochs is not None:
            raise ValueError("epochs cannot be converted to rounds before the rows are counted")
        if self.steps is not None:
            return math.ceil(self.steps / self.diloco.inner_steps)
        return self.diloco.rounds or DEFAULT_ROUNDS

    @property
    def total_steps(self) -> int:
        """Optimizer steps of one replica in the whole run."""
        return self.rounds * self.diloco.inner_steps

    def steps_per_epoch(self, rows: Mapping[str, int]) -> int:
        """Return the steps of an epoch, given the usable rows by channel."""
        together = {
            channel: per_step * self.diloco.replicas
            for channel, per_step in self.channels.rows_per_step().items()
        }
        return max(math.ceil(rows[channel] / taken) for channel, taken in together.items())

    def resolved(self, rows: Mapping[str, int]) -> "TrainingRecipe":
        """Return the recipe with its length as ``diloco.rounds``, given the rows by channel."""
        recipe = self
        if self.epochs is not None:
            steps = math.ceil(self.epochs * self.steps_per_epoch(rows))
            recipe = self.model_copy(update={"epochs": None, "steps": steps})
        diloco = self.diloco.model_copy(update={"rounds": recipe.rounds})
        return recipe.model_copy(update={"steps": None, "diloco": diloco})

    def agreed(self) -> str:
        """Return as JSON the fields that all machines of a run must agree on.

        Name, paths, the log's location and how a machine computes may differ; length and outer
        step are agreed on in ``diloco.spec``.
        """
        paths = ("name", "model", "start_from", "extends")
        own: dict[str, Any] = dict.fromkeys((*paths, "threads", "checkpoint_every", "ranks"), True)
        own["backend"] = {"python"}
        here = {"log", "run_id", "local_replicas", "max_restarts", "place"}
        here |= {"rounds", "outer", "outer_lr", "outer_momentum"}  # the spec has them
        return self.model_dump_json(exclude={**own, "diloco": here})

    @staticmethod
    def load(path: str | Path) -> "TrainingRecipe":
        """Read a recipe from a YAML file; InputError names the file and the field."""
        return read_model(recipe_file(path, "train"), "training recipe", TrainingRecipe)
