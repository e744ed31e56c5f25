"""DiLoCo for any Trainer of transformers or TRL, as one callback.

What a replica has besides the committed parameters (the steps of an unfinished round, the inner
optimizer's moments, random numbers, the trainer's own state) is private: it is kept across the
rounds of one process, and with ``keep`` in a file from which a restart resumes (``checkpoint``) if
the log is still at that place. The learning-rate schedule follows the round.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Self

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

from composer_pipeline.diloco.checkpoint import InnerCheckpoint, Part, bare, set_random_state
from composer_pipeline.diloco.fragments import fragment_of
from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.diloco.outer_optimizer import Tensors, master, pseudo_gradient
from composer_pipeline.diloco.replica import Replica, SyncResult
from composer_pipeline.diloco.rounds import Stopwatch, Work
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.errors import ComposerError, InputError

OnCommit = Callable[[int, dict[str, Any]], None]
#: Rounds in a row without a finite delta after which a replica exits, to be restarted.
MOST_DIVERGED = 2


class Diverged(ComposerError):
    """A replica's parameters were not finite twice in a row."""


def trainable(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the trained parameters themselves, by name: only the adapters, with LoRA."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def adopt(
    model: torch.nn.Module, theta: Mapping[str, torch.Tensor], names: Iterable[str] | None = None,
    sent: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Copy ``theta``, or only ``names``, into the trained parameters, in their dtype and device.

    Of those in ``sent``, which has them as they were sent, what training changed since is added.
    """
    parameters = trainable(model)
    if odd := parameters.keys() ^ theta.keys():
        raise InputError(f"the DiLoCo state and the model differ in the parameter {min(odd)}")
    for name, parameter in parameters.items():
        if parameter.shape != theta[name].shape:
            raise InputError(
                f"the DiLoCo state has {name} as {tuple(theta[name].shape)}, "
                f"the model as {tuple(parameter.shape)}"
            )
    with torch.no_grad():
        for name in parameters if names is None else names:
            parameter = parameters[name]
            new = theta[name].to(device=parameter.device, dtype=parameter.dtype)
            if name in sent:  # in this order a state equal to what was sent changes nothing
                new = parameter.float() + (new.float() - sent[name].to(parameter.device).float())
            parameter.copy_(new)


class _Sync(threading.Thread):
    """A sync beside training, of the parameters ``sent``; ``tokens`` and ``work`` led to them."""

    def __init__(
        self, sync: Callable[[], SyncResult], sent: Tensors, tokens: int, work: Work
    ) -> None:
        super().__init__(name="diloco-sync", daemon=True)
        self.sent, self.tokens, self.work = sent, tokens, work
        self._sync = sync
        self._error: BaseException | None = None

    def run(self) -> None:
        """Sync, and keep what it returns or raises."""
        try:
            self._result = self._sync()
        except BaseException as error:  # noqa: BLE001  raised again in the training thread
            self._error = error

    def check(self) -> None:
        """Raise what the sync raised, if it has ended."""
        if self._error is not None:
            raise self._error

    def result(self) -> SyncResult:
        """Wait for the sync and return its result."""
        if self.is_alive():
            self.join()
        self.check()
        return self._result


class DiLoCoCallback(TrainerCallback):
    """Makes a Trainer one replica of a DiLoCo run.

    Set ``max_steps = rounds * inner_steps`` and ``save_strategy="no"``: the durable result
    is the log. The Trainer stops when all rounds are committed, with fewer steps where this
    replica's rounds are shorter (``pace``); each begins at its place of the schedule.

    Args:
        url: folder or URL of the log.
        run_id: the run.
        slot: 0-based slot of this process.
        spec: what all replicas agree on; the model's signature is added at join.
        attempt: 1-based start of the slot.
        on_commit: called with the round and a JSON-able summary after each round that this
            replica took part in or waited for.
        supervisor: process id of the parent; this process stops when it dies.

    Raises:
        InputError: the slot is outside of the spec, or the store cannot be opened.
    """

    def __init__(
        self,
        *,
        url: str,
        run_id: str,
        slot: int,
        spec: DiLoCoSpec,
        attempt: int = 1,
        on_commit: OnCommit | None = None,
        supervisor: int | None = None,
    ) -> None:
        self.replica = Replica(OuterLog.open(url, run_id), spec, slot, attempt)
        self.replica.watch = self._require_supervisor
        self.commits: list[dict[str, Any]] = []
        self._on_commit = on_commit
        self._parent = supervisor
        self._round, self._inner, self._tokens_seen, self._diverged = 1, 0, 0, 0
        self._sync: _Sync | None = None
        #: Whether the last optimizer step ended with other parameters than it had made.
        self.moved = False
        self._steps, self._clock = spec.inner_steps, Stopwatch()
        self._start: Tensors = {}
        self._file: InnerCheckpoint | None = None
        self._random: Part | None = None

    def keep(self, file: InnerCheckpoint) -> None:
        """Keep this replica's private state in a file, and resume from it."""
        self._file = file

    @classmethod
    def from_env(cls, *, on_commit: OnCommit | None = None) -> Self:
        """Build the callback from the environment that the supervisor gives a replica."""
        values = {}
        for name in ("URL", "RUN", "SLOT", "ATTEMPT", "SPEC"):
            variable = f"COMPOSER_DILOCO_{name}"
            if variable not in os.environ:
                raise InputError(f"the environment variable {variable} is not set")
            values[name] = os.environ[variable]
        for name in ("SLOT", "ATTEMPT"):
            if not values[name].isdecimal():
                raise InputError(f"COMPOSER_DILOCO_{name} is {values[name]!r}, not a number")
        supervisor = os.environ.get("COMPOSER_DILOCO_SUPERVISOR")
        return cls(
            url=values["URL"],
            run_id=values["RUN"],
            slot=int(values["SLOT"]),
            spec=DiLoCoSpec.from_json(values["SPEC"], "COMPOSER_DILOCO_SPEC"),
            attempt=int(values["ATTEMPT"]),
            on_commit=on_commit,
            supervisor=int(supervisor) if supervisor else None,
        )

    @property
    def spec(self) -> DiLoCoSpec:
        """What this replica agrees to."""
        return self.replica.spec

    @property
    def slot(self) -> int:
        """The 0-based slot of this process."""
        return self.replica.slot

    def start_round(self) -> int:
        """Return the first round that is still to be trained: 1 in a new run."""
        return max(0, self.replica.log.last_round()) + 1

    def position(self) -> int:
        """Return the optimizer steps of the run behind this replica's parameters."""
        return (self._round - 1) * self.spec.inner_steps + self._inner

    @property
    def ends_round(self) -> bool:
        """Whether the current optimizer step is the last one of its round."""
        return self._inner + 1 >= self._steps

    @property
    def exchanges(self) -> bool:
        """Whether the current optimizer step ends a round, or takes the result of the last one."""
        return self.ends_round or self._takes

    @property
    def _takes(self) -> bool:
        last = min(self._steps, self.spec.overlap_steps)
        return self._sync is not None and self._inner + 1 >= last

    @property
    def finished(self) -> bool:
        """Whether the last round is committed and taken."""
        return self._sync is None and self.replica.finished

    # -- the Trainer's events --------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Join the run and start from its newest committed state, or from what was kept."""
        model = kwargs["model"]
        if not trainable(model):
            raise InputError("the model has no parameter that requires a gradient")
        needed = self.spec.rounds * self.spec.inner_steps
        if 0 < state.max_steps < needed:
            raise InputError(
                f"max_steps is {state.max_steps}, but {self.spec.rounds} DiLoCo rounds of "
                f"{self.spec.inner_steps} inner steps need {needed}"
            )
        self.replica.join(trainable(model))
        self._begin_round(model, kwargs.get("lr_scheduler"))
        if not self.finished and self._resume(state, kwargs):
            self._end_round(state, kwargs)
        control.should_training_stop |= self.finished

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore a resumed replica's random state, which making batches has changed."""
        self._clock.start()
        if self._random is not None:
            set_random_state(*self._random)
            self._random = None

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the round with this step where others wait; later hooks depend on it."""
        if self._sync is None and not self.replica.finished and self.replica.awaited():
            self._steps = self._inner + 1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count a step; at the round's end contribute, and start from the commit.

        Without ``overlap_steps`` it is awaited, else it is taken after so many steps.
        """
        self._require_supervisor()
        self._clock.lap()
        ends, takes = self.ends_round, self._takes
        self._inner, self.moved = self._inner + 1, False
        if self._sync is not None:
            self._sync.check()
        if takes:
            self._take(state, kwargs)
        if self._sync is None and not self.finished:
            if ends and self._inner:  # 0 where others have ended the round, and a later one begins
                self._keep(state, kwargs, ended=True)
                self._end_round(state, kwargs)
            elif self._file is not None and self._file.due(self._inner):
                self._keep(state, kwargs, ended=False)
        if self.finished:
            adopt(kwargs["model"], self.replica.state.theta)
            control.should_training_stop = self.moved = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the model with the newest committed parameters."""
        if self._sync is not None:
            self._take(state, kwargs)
        adopt(kwargs["model"], self.replica.state.theta)
        self.replica.close()

    # -- between rounds --------------------------------------------------------------------

    def _require_supervisor(self) -> None:
        if self._parent is not None and os.getppid() != self._parent:
            raise ComposerError(f"the supervisor of DiLoCo slot {self.slot} is gone")

    def _end_round(self, state: Any, given: Mapping[str, Any]) -> None:
        """Contribute what the round has changed, and start over from its commit."""
        local = trainable(given["model"])
        tokens = int(state.num_input_tokens_seen) - self._tokens_seen
        self._tokens_seen = int(state.num_input_tokens_seen)
        work = Work(self._inner, self._clock.seconds())
        waits = not self.spec.overlap_steps or self._round >= self.spec.rounds
        if not waits:
            part = fragment_of(local, self.spec.fragments, self.spec.fragment(self._round))
            local = {name: part[name].detach().to("cpu", copy=True) for name in part}
        delta = pseudo_gradient(self._start, local)
        sync = partial(self.replica.sync, delta, tokens=tokens, local=local, work=work)
        self._sync = _Sync(sync, {} if waits else local, tokens, work)
        if waits:
            self._sync.run()
            self._take(state, given)
        else:
            self._sync.start()
            self._round, self._inner, self._clock = self._round + 1, 0, Stopwatch()
            _align(given.get("lr_scheduler"), self.position())

    def _take(self, state: Any, given: Mapping[str, Any]) -> None:
        """Continue from the commit that the sync waits for, with what was trained meanwhile."""
        sync, self._sync = self._sync, None
        assert sync is not None
        began = time.monotonic()
        result = sync.result()
        waited = time.monotonic() - began if sync.sent else result.wait_s
        inner = self._inner if sync.sent and self.replica.round == self._round else 0
        # What was trained on from a change that was rejected is left behind with it.
        sent = {} if result.withheld or self.slot in result.commit.why else sync.sent
        self._begin_round(given["model"], given.get("lr_scheduler"), result.changed, sent, inner)
        self._report(result, sync, waited)
        self._heal(result.withheld, given.get("optimizer"))

    def _begin_round(
        self, model: torch.nn.Module, scheduler: Any, names: Iterable[str] | None = None,
        sent: Mapping[str, torch.Tensor] = MappingProxyType({}), inner: int = 0,
    ) -> None:  # fmt: skip
        """Adopt the state, or some of its parameters: the others continue as trained."""
        theta, self.moved = self.replica.state.theta, True
        adopt(model, theta, names, sent)
        # The parameters after rounding to their dtype: the delta must be what training changed,
        # not what a bf16 copy could not represent.
        parameters = trainable(model)
        for name in parameters if names is None else names:
            self._start[name] = master(theta[name].to(parameters[name].dtype))
        self._round, self._inner, self._steps = self.replica.round, inner, self.replica.steps
        if not inner:
            self._clock = Stopwatch()
        _align(scheduler, self.position())

    def _heal(self, withheld: str, optimizer: Any) -> None:
        """Reset the inner optimizer, whose moments are not finite after such a round either."""
        self._diverged = self._diverged + 1 if withheld else 0
        if not withheld:
            return
        if self._diverged >= MOST_DIVERGED:
            raise Diverged(
                f"replica {self.slot}: {withheld}, in {self._diverged} rounds one after the other;"
                " lower learning_rate"
            )
        if optimizer is not None:
            bare(optimizer).state.clear()

    # -- the private state -----------------------------------------------------------------

    def _keep(self, state: Any, given: Mapping[str, Any], *, ended: bool) -> None:
        if self._file is None:
            return
        seen = int(state.num_input_tokens_seen)
        counts = {"seen": seen, "round": seen - self._tokens_seen, "diverged": self._diverged}
        model, optimizer = given["model"], given.get("optimizer")
        self._file.save(self.replica, self._inner, trainable(model), optimizer, counts, ended=ended)

    def _resume(self, state: Any, given: Mapping[str, Any]) -> bool:
        """Restore the kept state, where it fits the log; return whether its round is over."""
        found = self._file.find(self.replica) if self._file is not None else None
        if found is None:
            return False
        assert self._file is not None
        optimizer = given.get("optimizer")
        behind = found.round < self.replica.round  # its round is committed: the moments are left
        counts = self._file.load(found, self.replica, optimizer)
        offer = self.replica.log.contribution(found.round, self.slot) if behind else None
        withheld = offer.withheld if offer else ""
        if not withheld:
            kept = found.part("parameter")[0]
            merged = self.replica.merged_in(found.round) if behind else set[str]()
            adopt(given["model"], kept, kept.keys() - merged)
        if not behind:
            self._inner = found.inner
            _align(given.get("lr_scheduler"), self.position())
        self._random = found.part("random")
        state.num_input_tokens_seen = counts["seen"]
        self._tokens_seen = counts["seen"] - (0 if behind else counts["round"])
        self._diverged = counts["diverged"]
        if behind:
            self._heal(withheld, optimizer)
        self._file.on_event("resumed", {"round": self.replica.round, "inner": self._inner})
        return found.ended and not behind

    def _report(self, result: SyncResult, sync: _Sync, waited: float) -> None:
        commit = result.commit
        info: dict[str, Any] = {
            "round": commit.round,
            "rounds": self.spec.rounds,
            "slot": self.slot,
            "attempt": self.replica.attempt,
            "merged": bool(commit.included),
            "included": list(commit.slots),
            "rejected": commit.why,
            "contributed": result.contributed,
            "by": commit.by,
            "state_sha": commit.state_sha,
            "tokens": commit.tokens,
            "steps": sync.work.steps,
            "local_tokens": sync.tokens,
            "wasted_tokens": result.wasted_tokens,
            "withheld": result.withheld,
            "bytes_sent": result.bytes_sent,
            "delta_norm": result.norm,
            "update_norm": result.moved,
            "wait_s": round(waited, 3),
            "sync_s": round(result.wait_s, 3),
        }
        self.commits.append(info)
        if self._on_commit is not None:
            self._on_commit(commit.round, info)


def _align(scheduler: Any, step: int) -> None:
    """Move a LambdaLR (all of transformers' usual schedules) to ``step`` of the run.

    Other schedulers keep their own count, since their learning rate is not a function of the step
    alone.
    """
    inner = getattr(scheduler, "scheduler", scheduler)
    if not isinstance(inner, LambdaLR) or inner.last_epoch == step:
        return
    inner.last_epoch = step
    rates = [b * f(step) for b, f in zip(inner.base_lrs, inner.lr_lambdas, strict=True)]
    for group, rate in zip(inner.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    inner._last_lr = rates
