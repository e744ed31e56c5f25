"""What every replica of a run must agree on, before any work.

Belongs here: the numbers and rules of a DiLoCo run, their defaults and their
comparison. Does not belong here: where the log lives and which slot a process is
(``log``, ``supervisor``), and how tensors are merged (``tensors``). No torch.
"""

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
#: Runs with fewer rounds than this average: the same experiment begins here.
MOMENTUM_ROUNDS = 6
#: Every so many rounds the whole state is written where all rounds are kept.
SNAPSHOT_EVERY = 5
#: How a delta travels; ``tensors.codecs`` says what each makes of the numbers.
Codec = Literal["fp32", "bf16", "int8", "int4", "int2"]
#: What a round merges: a fragment of the parameters by its number, 0-based, or all of them.
Fragment = int | msgspec.UnsetType
ALL: Fragment = msgspec.UNSET
#: What a run may be called in a log.
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def outer_defaults(merges: int, replicas: int) -> tuple[float, float]:
    """Return the outer ``(learning rate, momentum)`` for ``replicas`` and so many merges.

    Momentum for runs long enough for it to pay; plain averaging for shorter ones and for one
    replica, where it leaves the inner optimizer's result as it is.
    """
    return OUTER["nesterov" if merges >= MOMENTUM_ROUNDS and replicas > 1 else "fedavg"]


class DiLoCoSpec(BaseModel):
    """The agreement between the replicas; written once to ``spec.json`` of the run.

    All times are seconds. ``rounds`` is the run's end (R): without it a late replica would
    go on training after its peers have stopped.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rounds: int = Field(ge=1, description="R: outer rounds of the whole run")
    inner_steps: int = Field(ge=1, description="H: optimiser steps on a replica per round")
    pace: Literal["equal-steps", "equal-time"] = Field(
        default="equal-steps", description="of slots in a round: H steps, or the fastest's time"
    )
    replicas: int = Field(default=2, ge=1, description="M: slots")
    fragments: int = Field(
        default=1, ge=1, description="P: parts of the parameters, of which a round merges one"
    )
    min_quorum: int = Field(default=1, ge=1, description="fewest valid deltas in a commit")
    outer_lr: float | None = Field(default=None, gt=0)
    outer_momentum: float | None = Field(default=None, ge=0, lt=1)
    codec: Codec = Field(default="fp32", description="how a delta travels")
    error_feedback: bool = Field(
        default=False, description="what the codec lost of a delta is added to the slot's next one"
    )
    kept_rounds: int | None = Field(
        default=10, ge=2, description="rounds whose deltas stay in the log, at most; None: all"
    )
    weights: Literal["equal", "tokens"] = Field(
        default="equal",
        description="of deltas in a merge: equal, or by trained tokens, as equal-time needs",
    )
    max_empty_rounds: int = Field(
        default=1, ge=0, description="rounds of a run that may be committed without any delta"
    )
    norm_guard: float | None = Field(
        default=30.0, gt=1, description="a delta above so many medians of recent norms is rejected"
    )
    join_timeout_s: float = Field(default=300.0, gt=0)
    grace_s: float = Field(default=300.0, gt=0, description="after the first contribution")
    heartbeat_timeout_s: float = Field(default=30.0, gt=0)
    takeover_s: float = Field(default=10.0, gt=0, description="T: wait per place in the queue")
    round_timeout_s: float = Field(default=3600.0, gt=0, description="longest wait for a quorum")
    store_patience_s: float = Field(
        default=300.0, ge=0, description="how long a store that fails is tried again"
    )
    late_decay: float = Field(
        default=0.0, ge=0, le=1,
        description="share of a change that came too late which its replica's next one carries",
    )  # fmt: skip
    data_plan: str = Field(default="", description="what the replicas train on, as text or hash")
    model_signature: str = Field(default="", description="names, shapes, dtypes of what is trained")
    base: str = Field(default="", description="what each replica found: weights, tokenizer, recipe")

    @model_validator(mode="before")
    @classmethod
    def _fill_outer(cls, values: object) -> object:
        """Replace absent outer settings by the defaults for rounds and replicas."""
        if isinstance(values, dict) and isinstance(values.get("rounds"), int):
            given = values.get("replicas", cls.model_fields["replicas"].default)
            replicas = given if isinstance(given, int) else 1  # refused later
            parts = values.get("fragments", 1)
            merges = values["rounds"] // parts if isinstance(parts, int) and parts > 0 else 0
            lr, momentum = outer_defaults(merges, replicas)
            values = dict(values)
            # A lone learning rate or momentum keeps the other at its neutral value.
            alone = values.get("outer_lr") is None, values.get("outer_momentum") is None
            if all(alone):
                values["outer_lr"], values["outer_momentum"] = lr, momentum
            elif alone[0]:
                values["outer_lr"] = 1.0
            elif alone[1]:
                values["outer_momentum"] = 0.0
        return values

    @model_validator(mode="after")
    def _quorum_fits(self) -> Self:
        if self.min_quorum > self.replicas:
            raise ValueError(
                f"min_quorum {self.min_quorum} is larger than replicas {self.replicas}"
            )
        return self

    @property
    def outer(self) -> tuple[float, float]:
        """The outer ``(learning rate, momentum)``, never None."""
        lr, momentum = self.outer_lr, self.outer_momentum
        assert lr is not None
        assert momentum is not None
        return lr, momentum

    @property
    def leaves_alone(self) -> bool:
        """Whether the outer step is none: one replica, whose result the round takes as it is."""
        return self.replicas == 1 and self.outer == (1.0, 0.0)

    def fragment(self, round_: int) -> Fragment:
        """Return which fragment a round merges; the last round merges all that is trained."""
        if self.fragments == 1 or round_ == self.rounds:
            return ALL
        return (round_ - 1) % self.fragments

    def numbers(self, fragment: Fragment) -> list[int]:
        """Return the fragments that are meant by one that may be all of them."""
        return [fragment] if isinstance(fragment, int) else list(range(self.fragments))

    @property
    def snapshot_every(self) -> int:
        """Rounds from one whole state in the log to the next: two of them cover what is kept."""
        return SNAPSHOT_EVERY if self.kept_rounds is None else self.kept_rounds // 2

    def is_snapshot(self, round_: int) -> bool:
        """Whether the whole state after a round is written."""
        return round_ % self.snapshot_every == 0 or round_ == self.rounds

    def to_json(self) -> str:
        """Return the canonical JSON text of the spec (stable field order)."""
        return self.model_dump_json(indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, source: str) -> "DiLoCoSpec":
        """Parse a spec; ``source`` names where it came from in the error.

        Raises:
            InputError: not JSON, an unknown field, or a value out of range.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InputError(f"{source} is not JSON: {error}") from error
        return checked(data, source, cls)

    def difference(self, other: "DiLoCoSpec", *, ignore: frozenset[str] = frozenset()) -> str:
        """Return ``"field is A there and B here"`` for the first difference, or ``""``.

        ``self`` is "there" (the log), ``other`` is "here" (the replica).
        """
        there, here = self.model_dump(), other.model_dump()
        for field in type(self).model_fields:
            if field not in ignore and there[field] != here[field]:
                return f"{field} is {there[field]!r} there and {here[field]!r} here"
        return ""


def identity_by_name(base: str) -> dict[str, str]:
    """Return what a replica has found (``DiLoCoSpec.base``: names and hashes in turn), by name."""
    words = base.split()
    return dict(zip(words[::2], words[1::2], strict=True))


def shard(
    n_rows: int, *, slot: int, replicas: int, start_round: int = 1, rows_per_round: int = 0
) -> list[int]:
    """Return the row numbers of one slot, in the order it trains on them.

    Slot ``s`` has the rows ``i`` with ``i mod replicas == s``. A replica that starts at a
    later round begins where that round begins (modulo its rows), so the data follow the
    round and not the number of steps that the process itself has made.

    Args:
        n_rows: rows of the whole training split.
        slot: 0-based slot.
        replicas: M.
        start_round: 1-based first round that the process trains.
        rows_per_round: rows that one replica reads in a round; 0 disables the rotation.

    Raises:
        InputError: the slot gets no row.
    """
    rows = list(range(slot, n_rows, replicas))
    if not rows:
        raise InputError(
            f"{n_rows} training rows are too few for {replicas} DiLoCo replicas: "
            f"slot {slot} has none"
        )
    start = (start_round - 1) * rows_per_round % len(rows)
    return rows[start:] + rows[:start]
