"""Replicas and how they agree, and the processes of each, as fields of a recipe.

Belongs here: ``diloco`` and ``ranks`` of a recipe. Does not belong here: the protocol
(``composer_pipeline.diloco``) and what ranks do (``trainers.trl.ranks``).
"""

import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from composer_pipeline.diloco.spec import OUTER, RUN_ID, Codec
from composer_pipeline.training.recipe.part import Part

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


#: A place of other machines, told apart by its ``kind``.
AnyPlace = Annotated[HfJobsPlace | KubernetesPlace | ModalPlace, Field(discriminator="kind")]


class DiLoCo(Part):
    """Replicas that train alone for ``inner_steps`` and then agree on an outer step."""

    replicas: int = Field(2, ge=1)
    """Processes that train side by side, each on a device of its own where there are any."""
    rounds: int | None = Field(None, ge=1)
    """How often they agree; 4 where neither `steps` nor `epochs` of the recipe is given."""
    inner_steps: int = Field(10, ge=1)
    """Optimizer steps of a replica in a round."""
    pace: Literal["equal-steps", "equal-time"] = "equal-steps"
    """What replicas of different speed have in common in a round. `equal-time`: the fastest makes
    `inner_steps`, each other one as many as fit into the same time by its last rounds, and none
    waits for a slow one; rows of the steps that it leaves out are not seen, so that an epoch is
    not whole. Take `weights: tokens` with it: a change of few steps would count like one of many,
    and make the outer step short."""
    fragments: int = Field(1, ge=1)
    """Parts of the trained parameters, by layers and of about the same size, of which a round
    merges one, in turn: each is trained for `fragments` times `inner_steps` steps until its turn
    comes again, and a round's bytes are so many times fewer. The last round merges all."""
    outer: Literal["fedavg", "nesterov"] | None = None
    """How their changes are merged: `fedavg` takes the mean, `nesterov` with momentum (0.4, 0.8);
    null: `nesterov` from 6 rounds of each fragment on, and nothing but its own change for one
    replica."""
    outer_lr: float | None = Field(None, gt=0)
    """Step along the mean change of a round; null: that of `outer`."""
    outer_momentum: float | None = Field(None, ge=0, lt=1)
    """Nesterov momentum of that step; null: that of `outer`."""
    min_quorum: int = Field(1, ge=1)
    """Replicas without which a round is not committed."""
    join_timeout_s: float = Field(300.0, gt=0)
    """Seconds that replicas wait for each other when they join; then the present ones go on."""
    grace_s: float = Field(300.0, gt=0)
    """Seconds that a round waits for the others after its first contribution."""
    max_restarts: int = Field(2, ge=0)
    """How often each replica is started again after a crash."""
    codec: Codec = "fp32"
    """How a replica's change travels and is merged: whole, as bfloat16, or as integers of 8, 4 or 2
    bits with a scale for each block (1.01, 0.53 and 0.28 bytes a parameter)."""
    error_feedback: bool | None = None
    """Adds what the codec lost of a change to the replica's next one; null: with `int2` alone."""
    kept_rounds: int | None = Field(10, ge=2)
    """Rounds whose changes stay in the log at most; half as often the whole state is written, of
    which two stay. 2 writes it each round; null keeps every change, as `keep_best` does."""
    weights: Literal["equal", "tokens"] = "equal"
    """What a replica counts in a merge: as much as the others, or by the tokens it trained on, as
    `pace: equal-time` needs it."""
    max_empty_rounds: int = Field(1, ge=0)
    """Rounds that may merge nothing; one more, and the run fails."""
    norm_guard: float | None = Field(30.0, gt=1)
    """A replica's change above so many times the median of late ones is left out; null: none is."""
    late_decay: float = Field(0.0, ge=0, le=1)
    """Share of a change that came too late which its replica's next one carries; 0 drops it."""
    log: str = ""
    """Folder, `s3://`, `gs://` or `az://` of the outer log; empty: the run folder. With one,
    replicas on other machines can join."""
    run_id: str = ""
    """The run's name in the log; empty: that of the run folder."""
    local_replicas: int | None = Field(None, ge=0)
    """Replicas that `train` starts itself; null: all. Others join from elsewhere, through `log`."""
    place: AnyPlace | None = None
    """Where `train` starts the replicas beyond `local_replicas`; null: they join by themselves."""
    heartbeat_timeout_s: float = Field(30.0, gt=0)
    """Seconds without a sign of life after which a replica counts as dead."""
    takeover_s: float = Field(10.0, gt=0)
    """Seconds after which the next replica in line commits in place of one that does not."""
    round_timeout_s: float = Field(3600.0, gt=0)
    """Seconds that a round waits for its quorum before the replica fails."""
    store_patience_s: float = Field(300.0, gt=0)
    """Seconds for which a log that `log` names is tried again when it fails."""

    @property
    def feedback(self) -> bool:
        """Whether what the codec lost is added to the next change."""
        return self.codec == "int2" if self.error_feedback is None else self.error_feedback

    @property
    def outer_numbers(self) -> tuple[float | None, float | None]:
        """Outer learning rate and momentum as far as the recipe says them, by name or number."""
        lr, momentum = (None, None) if self.outer is None else OUTER[self.outer]
        return (
            lr if self.outer_lr is None else self.outer_lr,
            momentum if self.outer_momentum is None else self.outer_momentum,
        )

    @property
    def here(self) -> int:
        """How many replicas ``train`` starts itself."""
        return self.replicas if self.local_replicas is None else self.local_replicas

    @model_validator(mode="after")
    def _log_is_a_place(self) -> "DiLoCo":
        if "://" in self.log and not _BUCKET.fullmatch(self.log):
            raise ValueError("log must be a folder or s3://, gs://, az:// bucket/path, no secrets")
        if self.run_id and not RUN_ID.fullmatch(self.run_id):
            raise ValueError("run_id must be letters, digits, '.', '_', '-' (at most 128)")
        if self.here > self.replicas:
            raise ValueError(f"local_replicas {self.here} exceeds replicas {self.replicas}")
        if self.here < self.replicas and not self.log:
            raise ValueError(f"local_replicas {self.here} of {self.replicas} needs log")
        if self.place is not None and self.here == self.replicas:
            raise ValueError("place needs local_replicas below replicas")
        if self.place is not None and "://" not in self.log:
            raise ValueError("place needs log in a bucket, which other machines can reach")
        return self

    @model_validator(mode="after")
    def _momentum_is_of_several(self) -> "DiLoCo":
        if self.outer == "nesterov" and self.replicas == 1:
            raise ValueError("outer nesterov needs replicas of 2: one has nothing to merge with")
        return self

    @model_validator(mode="after")
    def _quorum_is_reachable(self) -> "DiLoCo":
        if self.min_quorum > self.replicas:
            raise ValueError(f"min_quorum {self.min_quorum} exceeds replicas {self.replicas}")
        return self
