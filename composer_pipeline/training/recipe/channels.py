"""The terms of the composer loss, as fields of a recipe.

Belongs here: weights and settings of each channel. Does not belong here: their formulas
(``composer_pipeline.losses``) and the rest of a recipe.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from composer_pipeline.training.recipe.part import Part

#: Parts of the reward; ``training.rewards.parts`` says what each is worth.
RewardPart = Literal["validity", "match", "votes", "edit", "outcome", "repeat"]


class Grpo(Part):
    """Policy gradient on answers to one state, rewarded by how close they are to the consensus.

    ``source: recorded`` takes the agent's and the teachers' answers: an offline surrogate, since
    nobody sampled them from the model. An answer that is worse than its group's mean is left
    alone once the model's log-probability of it has fallen, a token, by more than
    ``off_policy_threshold`` nats below the base model's. ``sampled`` lets the model answer
    ``group_size`` times: one action from one state. ``mixed`` joins both in one group.

    ``rewards`` weighs the parts that are added up. ``match`` with the consensus and ``votes``
    (the best match with a teacher's action, times its share of the votes) are in [0, 1], ``edit``
    (diffs of a file that the prompt shows) in [-1, 1]. ``validity`` is -1, and nothing else
    counts, for a call that the offered tools refuse. ``outcome`` is 0.2 or -0.5 for the agent's own
    action, as the trace shows no error of it or one; ``repeat`` -0.5 for a call that failed before.
    """

    weight: float = Field(1.0, ge=0)
    """Factor of this term in the loss; 0 turns it off."""
    source: Literal["recorded", "sampled", "mixed"] = "recorded"
    """Whose answers: `recorded`, `sampled` from the model, or `mixed`: both in one group."""
    group_size: int = Field(4, ge=2)
    """Answers that the model samples to a state; unused with `recorded`."""
    groups_per_step: int = Field(1, ge=1)
    """States that one optimizer step of one replica takes."""
    off_policy_threshold: float | None = Field(0.5, gt=0)
    """Nats a token below the base model at which a bad answer is left alone; null: never."""
    rewards: dict[RewardPart, Annotated[float, Field(gt=0)]] = Field({"match": 1.0}, min_length=1)
    """Weight of each part: `validity`, `match`, `votes`, `edit`, `outcome`, `repeat`."""

    @property
    def recorded(self) -> bool:
        """Whether recorded answers are trained on."""
        return self.source != "sampled"

    @property
    def sampled(self) -> bool:
        """Whether the model answers."""
        return self.source != "recorded"


class Taid(Part):
    """The schedule of TAID's target between student (0) and teacher (1); upstream's names."""

    t_start: float = Field(0.4, ge=0, le=1)
    """Share of the teacher in the target at the first step."""
    t_end: float = Field(1.0, ge=0, le=1)
    """Its share at the last step."""
    alpha: float = Field(5e-4, ge=0)
    """How fast the share grows beyond the straight line when the loss falls."""
    beta: float = Field(0.99, ge=0, lt=1)
    """Decay of the running mean of the loss's relative change, a step."""


class Eopd(Part):
    """Entropy-aware distillation: threshold in nats, weight and support of its forward term."""

    tau: float = Field(0.8, ge=0)
    """Nats of the teacher's entropy above which the forward term is added."""
    alpha: float = Field(1.0, ge=0)
    """Weight of the forward term."""
    top_k: int = Field(16, ge=1)
    """Entries of the teacher's vocabulary in the forward term."""


class Sdpo(Part):
    """Self-distillation at error turns; the teacher also sees the hint.

    ``hint_gain`` keeps a row only where the hint helps:
    under the base model it must raise log p(consensus or recovery) − log p(failed action).
    ``teacher: frozen`` is the model before training, ``ema`` follows the student by
    ``ema_rate`` a step, ``live`` is the student itself (known to be unstable).
    ``divergence: jsd`` mixes by ``jsd_beta`` at ``temperature``; ``taid`` and ``eopd`` have
    their own fields. ``importance_clip`` weights each token by min(p/p_base, clip), because
    the recorded action was not sampled from the model.
    """

    weight: float = Field(1.0, ge=0)
    """α of the composer loss; 0 turns the term off."""
    rows_per_step: int = Field(1, ge=1)
    """Error turns that one optimizer step of one replica takes."""
    hint_gain: bool = True
    """Keep only rows whose hint helps the base model; false keeps all."""
    teacher: Literal["frozen", "ema", "live"] = "frozen"
    """Who reads the hint: `frozen`, `ema` or `live`."""
    ema_rate: float = Field(0.02, gt=0, le=1)
    """How far `ema` moves to the student in a step: 1 is the student itself."""
    divergence: Literal["jsd", "taid", "eopd"] = "jsd"
    """From student to teacher: `jsd`, `taid` or `eopd`."""
    jsd_beta: float = Field(0.5, ge=0, le=1)
    """0: KL(teacher, student); 1: KL(student, teacher); between: of both to their mixture."""
    temperature: float = Field(1.0, gt=0)
    """Divides the logits of both sides; read by `jsd` alone."""
    taid: Taid = Taid()
    eopd: Eopd = Eopd()
    importance_clip: float | None = Field(None, gt=0)
    """Upper limit of p / p_base, by which a token's term is multiplied; null: no factor."""


class Dpo(Part):
    """Trace-replay DPO: the teachers' action against the agent's.

    ``weight`` is the composer loss's β; ``beta`` is DPO's own. ``loss`` has TRL's names; all of
    them compare with the base model but ``simpo``, which compares mean log-probabilities of a
    token and needs no base pass over the pairs (upstream: ``beta: 2.0, simpo_gamma: 0.5``).
    """

    weight: float = Field(1.0, ge=0)
    """β of the composer loss; 0 turns the term off."""
    loss: Literal[
        "sigmoid", "hinge", "ipo", "sigmoid_norm", "robust", "exo_pair", "nca_pair", "bco_pair",
        "sppo_hard", "apo_zero", "apo_down", "discopop", "simpo",
    ] = "sigmoid"  # fmt: skip
    """TRL's loss type of DPO, or `simpo`."""
    beta: float = Field(0.1, gt=0)
    """DPO's own: how much a nat of margin counts; higher stays closer to the base model."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of pairs taken to be the wrong way round; read by `robust`, `exo_pair` and `simpo`."""
    simpo_gamma: float = Field(0.5, ge=0)
    """Margin that `simpo` asks for, in units of beta times nats a token."""
    pairs_per_step: int = Field(2, ge=1)
    """Pairs that one optimizer step of one replica takes."""

    @model_validator(mode="after")
    def _smoothing_is_read(self) -> "Dpo":
        if self.loss == "exo_pair" and not self.label_smoothing:
            raise ValueError("loss exo_pair needs a label_smoothing above 0, for example 0.001")
        if self.label_smoothing and self.loss not in ("robust", "exo_pair", "simpo"):
            raise ValueError(
                f"label_smoothing is not read by loss {self.loss}, only by robust, exo_pair and"
                " simpo"
            )
        return self

    @property
    def needs_reference(self) -> bool:
        """Whether the base model has to score the pairs."""
        return self.loss != "simpo"


class Sft(Part):
    """Likelihood of actions to repeat: keeps the other terms from unlearning what was right.

    ``source: consensus`` is what the teachers of each group agree on. ``successes`` are the
    agent's own actions that nothing in the trace speaks against, at states that no teacher
    decided: they cost no teacher. ``both`` draws from all rows of both alike.
    """

    weight: float = Field(0.2, ge=0)
    """Factor of this term in the loss; 0 turns it off."""
    source: Literal["consensus", "successes", "both"] = "consensus"
    """Whose actions: `consensus` of the teachers, the agent's own `successes`, or `both`."""
    rows_per_step: int = Field(2, ge=1)
    """Demonstrations that one optimizer step of one replica takes."""


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
        """Return the weights of the channels that are on, in the order of their work."""
        every = {
            "grpo": self.grpo.weight, "sdpo": self.sdpo.weight, "dpo": self.dpo.weight,
            "sft": self.sft.weight,
        }  # fmt: skip
        return {name: weight for name, weight in every.items() if weight > 0}

    def rows_per_step(self) -> dict[str, int]:
        """Return how many rows one optimizer step of one replica takes from each channel."""
        every = {
            "grpo": self.grpo.groups_per_step, "sdpo": self.sdpo.rows_per_step,
            "dpo": self.dpo.pairs_per_step, "sft": self.sft.rows_per_step,
        }  # fmt: skip
        return {name: every[name] for name in self.weights()}
