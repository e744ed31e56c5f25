"""What every replica of a run must agree on, before any work. No torch."""

import json
import re
from typing import Literal, Self

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator

from composer_pipeline.config_file import checked
from composer_pipeline.errors import InputError

#: Outer optimizers by name, as learning rate and Nesterov momentum: federated averaging (arXiv
#: 1602.05629), and momentum as in DiLoCo (arXiv 2311.08105). Its 0.7/0.9 was worse than 0.4/0.8 in
#: every run of ``make bench-diloco``.
OUTER = {"fedavg": (1.0, 0.0), "nesterov": (0.4, 0.8)}
#: Runs with fewer rounds than this average by default.
MOMENTUM_ROUNDS = 6
#: Rounds from one whole state to the next where all rounds are kept.
SNAPSHOT_EVERY = 5
#: How a delta travels (``codecs``).
Codec = Literal["fp32", "bf16", "int8", "int4", "int2"]
#: What a round merges: a fragment of the parameters by its 0-based number, or all of them.
Fragment = int | msgspec.UnsetType
ALL: Fragment = msgspec.UNSET
#: What to do where the software differs.
OTHER_SOFTWARE = "; finish the run with what is there, or begin another one (docs/guide.md)"
#: A run's name in a log.
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def outer_defaults(merges: int, replicas: int) -> tuple[float, float]:
    """Return the outer ``(learning rate, momentum)`` for ``replicas`` and ``merges``.

    Momentum for runs long enough to benefit; plain averaging for shorter ones and for one
    replica, where it leaves the inner optimizer's result as it is.
    """
    return OUTER["nesterov" if merges >= MOMENTUM_ROUNDS and replicas > 1 else "fedavg"]


class DiLoCoRules(BaseModel):
    """How a run's replicas train and agree: the ``diloco`` block of a recipe.

    A recipe adds where the replicas run, :class:`DiLoCoSpec` what they found. Times are seconds.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    replicas: int = Field(2, ge=1)
    """Processes that train side by side, each on a device of its own where there are any."""
    rounds: int | None = Field(None, ge=1)
    """How often they agree; 4 where neither `steps` nor `epochs` of the recipe is given."""
    inner_steps: int = Field(10, ge=1)
    """Optimizer steps of a replica in a round."""
    pace: Literal["equal-steps", "equal-time"] = "equal-steps"
    """What replicas of different speed have in common in a round. `equal-time`: the fastest makes
    `inner_steps`, each other one as many as fit into the same time by its last rounds, and none
    waits for a slow one; rows of the steps that it leaves out are not seen, so an epoch is
    not complete. Use `weights: tokens` with it: otherwise a change of few steps counts like one of
    many and shortens the outer step."""
    fragments: int = Field(1, ge=1)
    """Parts of the trained parameters, by layers and of about the same size, of which a round
    merges one, in turn: each is trained for `fragments` times `inner_steps` steps until its turn
    comes again, and a round's bytes shrink by that factor. The last round merges all."""
    overlap_steps: int = Field(0, ge=0)
    """Steps of the next round that a replica makes while its change travels and is merged; then it
    takes the result and keeps what these steps changed. 0 waits. The last round always waits."""
    outer: Literal["fedavg", "nesterov"] | None = None
    """How their changes are merged: `fedavg` takes the mean, `nesterov` with momentum (0.4, 0.8);
    null: `nesterov` from 6 rounds of each fragment on, and `fedavg` for one replica."""
    outer_lr: float | None = Field(None, gt=0)
    """Step along the mean change of a round; null: that of `outer`."""
    outer_momentum: float | None = Field(None, ge=0, lt=1)
    """Nesterov momentum of that step; null: that of `outer`."""
    min_quorum: int = Field(1, ge=1)
    """Fewest replicas in a commit."""
    join_timeout_s: float = Field(300.0, gt=0)
    """Seconds that replicas wait for each other when they join; then the present ones start."""
    grace_s: float = Field(300.0, gt=0)
    """Seconds that a round waits for the others after its first contribution."""
    codec: Codec = "fp32"
    """How a replica's change travels and is merged: whole, as bfloat16, or as integers of 8, 4 or 2
    bits with a scale for each block (1.01, 0.53 and 0.28 bytes a parameter). A replica whose upload
    would take more than half of `grace_s`, by its last one, takes a coarser one."""
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
    """A replica's change above this multiple of the recent median is left out; null: never."""
    late_decay: float = Field(0.0, ge=0, le=1)
    """Share of a change that came too late which its replica's next one carries; 0 drops it."""
    heartbeat_timeout_s: float = Field(30.0, gt=0)
    """Seconds without a heartbeat after which a replica counts as dead."""
    takeover_s: float = Field(10.0, gt=0)
    """Seconds after which the next replica in line commits in place of one that does not."""
    round_timeout_s: float = Field(3600.0, gt=0)
    """Seconds that a round waits for its quorum before the replica fails."""
    store_patience_s: float = Field(300.0, ge=0)
    """Seconds for which a log that `log` names is retried when it fails."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min_quorum > self.replicas:
            raise ValueError(f"min_quorum {self.min_quorum} exceeds replicas {self.replicas}")
        if self.overlap_steps > self.inner_steps:
            raise ValueError(
                f"overlap_steps {self.overlap_steps} exceeds inner_steps {self.inner_steps}"
            )
        return self

    def feeds_back(self, codec: str) -> bool:
        """Return whether what a codec lost is added to the next change."""
        return codec == "int2" if self.error_feedback is None else self.error_feedback


class DiLoCoSpec(DiLoCoRules):
    """The agreement between the replicas, written once to ``spec.json`` of the run.

    ``rounds`` is the run's end (R): without it a late replica would keep training after its
    peers have stopped.
    """

    rounds: int = Field(ge=1)
    """R: outer rounds of the whole run."""
    inner_steps: int = Field(ge=1)
    """H: optimizer steps of a replica in a round."""
    data_plan: str = ""
    """What the replicas train on, as text or hash."""
    model_signature: str = ""
    """Names, shapes and dtypes of what is trained."""
    base: str = ""
    """What each replica found, names and hashes in turn: weights, tokenizer, recipe."""
    software: str = ""
    """What each replica computes with, names and values in turn: versions, and a hash of code."""

    @property
    def outer_step(self) -> tuple[float, float]:
        """The outer ``(learning rate, momentum)``.

        By default that of ``outer``, or of :func:`outer_defaults`; a lone learning rate or
        momentum without ``outer`` leaves the other one neutral.
        """
        if self.outer is not None:
            lr, momentum = OUTER[self.outer]
        elif self.outer_lr is None and self.outer_momentum is None:
            lr, momentum = outer_defaults(self.rounds // self.fragments, self.replicas)
        else:
            lr, momentum = OUTER["fedavg"]
        return (
            lr if self.outer_lr is None else self.outer_lr,
            momentum if self.outer_momentum is None else self.outer_momentum,
        )

    @property
    def takes_result_as_is(self) -> bool:
        """Whether a round's state is the result of its only replica."""
        return self.replicas == 1 and self.outer_step == (1.0, 0.0)

    def fragment(self, round_: int) -> Fragment:
        """Return which fragment a round merges; the last round merges all."""
        if self.fragments == 1 or round_ == self.rounds:
            return ALL
        return (round_ - 1) % self.fragments

    def numbers(self, fragment: Fragment) -> list[int]:
        """Return the numbers of one fragment, or of all."""
        return [fragment] if isinstance(fragment, int) else list(range(self.fragments))

    def is_snapshot(self, round_: int) -> bool:
        """Return whether the whole state after a round is written; two cover what is kept."""
        every = SNAPSHOT_EVERY if self.kept_rounds is None else self.kept_rounds // 2
        return round_ % every == 0 or round_ == self.rounds

    @classmethod
    def from_json(cls, text: str | bytes, source: str) -> "DiLoCoSpec":
        """Parse a spec; an ``InputError`` names its ``source`` and the field."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InputError(f"{source} is not JSON: {error}") from error
        return checked(data, source, cls)

    def difference(self, other: "DiLoCoSpec", *, ignore: frozenset[str] = frozenset()) -> str:
        """Return ``"field is A there and B here"`` for the first difference, or ``""``.

        ``software`` comes first; of it and of ``base`` all names that differ are in the sentence.
        """
        there, here = self.model_dump(), other.model_dump()
        for field in ("software", *type(self).model_fields):
            if field in ignore or there[field] == here[field]:
                continue
            if field not in ("base", "software"):
                return f"{field} is {there[field]!r} there and {here[field]!r} here"
            theirs, ours = identity_by_name(there[field]), identity_by_name(here[field])
            odd = [name for name in theirs | ours if theirs.get(name) != ours.get(name)]
            pairs = (f"{n} is {theirs.get(n)} there and {ours.get(n)} here" for n in odd)
            return ", ".join(pairs) + OTHER_SOFTWARE * (field == "software")
        return ""


def identity_by_name(base: str) -> dict[str, str]:
    """Return ``DiLoCoSpec.base`` or ``software`` as values by name."""
    words = base.split()
    return dict(zip(words[::2], words[1::2], strict=True))
