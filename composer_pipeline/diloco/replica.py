"""One replica's side of the protocol: join, contribute, commit or follow.

Belongs here: when a round is ready, who commits it, how others rebuild its result.
Does not belong here: key names (``log``), arithmetic (``outer``), the trainer
(``callback``).

No lease, no leader: the next state is a pure function of base and included deltas, and
the creation of ``commit.json`` decides. Two racing committers are harmless.
"""

import datetime as dt
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from composer_pipeline.diloco.codecs import Delta
from composer_pipeline.diloco.encoding import (
    decode_delta,
    decode_state,
    encode_delta,
    encode_state,
)
from composer_pipeline.diloco.heap import returning
from composer_pipeline.diloco.heartbeat import Leaving, Pulse
from composer_pipeline.diloco.log import (
    Commit,
    Contribution,
    CorruptObject,
    Included,
    OuterLog,
    OuterLogError,
    Rejected,
    require_rounds,
)
from composer_pipeline.diloco.merging import merged_steps
from composer_pipeline.diloco.outer import (
    Made,
    OuterState,
    Step,
    Tensors,
    norm,
    signature,
    squares,
)
from composer_pipeline.diloco.snapshots import collect
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.errors import InputError

#: Pauses between two looks at the log while waiting: first, factor, longest.
POLL_FIRST_S, POLL_FACTOR, POLL_MAX_S = 0.05, 1.5, 2.0
#: Norms of merged deltas that the guard compares with, and how many there must be.
RECENT_NORMS, FEWEST_NORMS = 16, 3
NOT_FINITE = "its delta has values that are not finite"
#: Makes the state after an outer step, one parameter at a time.
Steps = Callable[[], Iterator[Step]]


@dataclass(frozen=True)
class SyncResult:
    """What became of a contribution of this norm; ``withheld`` says why it had no delta.

    ``moved`` is how far the round's outer step went.
    """

    commit: Commit
    contributed: bool
    bytes_sent: int
    wait_s: float
    wasted_tokens: int
    norm: float
    moved: float
    withheld: str = ""


class Replica:
    """The state of one slot in a run; ``state`` is the base of ``round``.

    There is one state in memory, and each round writes it over: copy what is to stay.

    Args:
        log: the run's log.
        spec: what this replica believes; ``model_signature`` is filled in by ``join``.
        slot: 0-based, below ``spec.replicas``.
        attempt: 1-based start of the slot; a restart must use a new number.

    Raises:
        InputError: the slot is outside of the spec.
    """

    #: What this process has found to train (``DiLoCoSpec.base``); set before joining.
    base = ""
    #: Called while this process waits; it raises where nobody would miss it any more.
    watch: Callable[[], None] = staticmethod(lambda: None)
    state: OuterState

    def __init__(self, log: OuterLog, spec: DiLoCoSpec, slot: int, attempt: int = 1) -> None:
        if not 0 <= slot < spec.replicas:
            raise InputError(f"DiLoCo slot {slot} is outside of 0..{spec.replicas - 1}")
        self.log, self.spec, self.slot, self.attempt = log, spec, slot, attempt
        self.round, self.sha, self.wasted_tokens = 1, "", 0
        fastest = min(spec.heartbeat_timeout_s, spec.grace_s)
        self._pulse = Pulse(log, slot, attempt, max(0.05, fastest / 4))
        self.leaving = Leaving()
        self._late: tuple[Tensors, int] | None = None
        #: What the codec has lost of this slot's merged deltas, by name; private to this process.
        self.lost: Tensors = {}
        self._moved = 0.0
        self._norms: deque[float] = deque(maxlen=RECENT_NORMS)
        self._empty: dict[int, str] = {}
        self._own: dict[str, Delta] = {}
        self._checked: dict[str, Delta | str] = {}
        self._proposed: dict[str, Steps] = {}

    @property
    def finished(self) -> bool:
        """Whether the last round of the spec is committed."""
        return self.round > self.spec.rounds

    # -- joining ---------------------------------------------------------------------------

    def announce(self) -> None:
        """Show that this slot is taken, while its process still loads what it needs."""
        self._pulse.start()

    def join(self, parameters: Mapping[str, torch.Tensor]) -> OuterState:
        """Agree on the spec, adopt the newest committed state and wait for the others.

        Args:
            parameters: what is trained, by name; the initial state if the run is new.

        Returns:
            The state to train from, which is also ``state``.

        Raises:
            InputError: the run has another spec, another model, or an unfit store.
            OuterLogError: objects of the log are lost or damaged.
        """
        found = {"model_signature": signature(parameters), "base": self.base}
        self.spec = self.spec.model_copy(update=found)
        self.log.probe()
        self.log.agree(self.spec)
        self.log.store.patience_s = self.spec.store_patience_s
        self.announce()
        if self.log.commit(0) is None:
            initial = encode_state(OuterState.initial(parameters))
            key, digest = self.log.put_state(0, initial)
            self.log.try_commit(Commit(0, (), (), "", digest, key, len(initial), self.slot))
        self._recover()
        if not self.finished:
            self._barrier()
        # An earlier attempt of this slot may have contributed already: training the round
        # again would be wasted, but the commit may need this slot.
        while not self.finished and self.slot in self.log.contributions(self.round)[0]:
            self._follow(self._await_commit())
        return self.state

    def private(self) -> tuple[Tensors, dict[str, Any]]:
        """Return what this slot alone knows and the log does not: tensors, and plain numbers."""
        late, tokens = self._late or ({}, 0)
        tensors = {f"late/{name}": tensor for name, tensor in late.items()}
        tensors |= {f"lost/{name}": tensor for name, tensor in self.lost.items()}
        numbers = {
            "round": self.round,
            "late": self._late is not None,
            "tokens": tokens,
            "wasted": self.wasted_tokens,
        }
        return tensors, numbers

    def load_private(self, tensors: Tensors, numbers: Mapping[str, Any]) -> None:
        """Restore :meth:`private`, after joining."""
        self.wasted_tokens = self._pulse.wasted_tokens = numbers["wasted"]
        if numbers["round"] != self.round:
            return  # the contribution to that round has carried both
        kinds: dict[str, Tensors] = {"late": {}, "lost": {}}
        for key, tensor in tensors.items():
            kind, _, name = key.partition("/")
            kinds[kind][name] = tensor
        self._late = (kinds["late"], numbers["tokens"]) if numbers["late"] else None
        self.lost = kinds["lost"]

    def close(self) -> None:
        """Stop the heartbeat. The log stays as it is."""
        self._pulse.stop()

    def leave(self) -> None:
        """Go without being missed: the others need not wait for the heartbeat to grow old."""
        self._pulse.leave()

    def _barrier(self) -> None:
        """Wait until all slots are alive, the round is under way, or the join timeout.

        Without it the fastest one would go on alone, at the start or after all had died.
        """
        deadline, pause = time.monotonic() + self.spec.join_timeout_s, POLL_FIRST_S
        if self.round > 1 and self._alive()[0] - {self.slot}:
            return
        while len(self._alive()[0]) < self.spec.replicas and time.monotonic() < deadline:
            if self.log.commit(self.round) or self.log.contributions(self.round)[0]:
                return
            pause = self._pause(pause)

    def _pause(self, seconds: float) -> float:
        """Wait before the next look at the log; return how long to wait after it."""
        self.watch()
        time.sleep(seconds)
        return min(seconds * POLL_FACTOR, POLL_MAX_S)

    def _alive(self) -> tuple[set[int], dt.datetime]:
        """Return the slots with a recent heartbeat, and the store's present time."""
        ages, now = self._pulse.ages()
        return {slot for slot, age in ages.items() if age <= self.spec.heartbeat_timeout_s}, now

    def _recover(self) -> None:
        """Load the newest whole state that can be read, and replay the commits after it.

        Raises:
            OuterLogError: none leads to the last commit.
        """
        last = -1
        # Who reads slowly may find removed what was there: then there are newer commits.
        while (commits := self.log.commits())[-1].round > last:
            last = commits[-1].round
            if any(self._replay(commits, whole) for whole in reversed(commits)):
                return
        raise OuterLogError(
            f"run {self.log.run_id}: no state that can be read leads to round {last}; if machines"
            " compute different bits, diloco.kept_rounds: 2 writes the state of each round"
        )

    def _replay(self, commits: list[Commit], whole: Commit) -> bool:
        """Return whether the state of one commit and the changes after it give the newest one."""
        if not whole.state_key:
            return False
        self._norms.clear()
        self._empty.clear()
        for earlier in commits[: whole.round]:
            self._note(earlier)
        try:
            self._load(whole)
        except CorruptObject:
            return False
        return all(self._advance(later) for later in commits[whole.round + 1 :])

    def _load(self, commit: Commit) -> None:
        data = self.log.read(commit.state_key, commit.state_sha, commit.state_size)
        state = decode_state(data)
        self.state = getattr(self, "state", state)
        self._adopt(commit, state.steps)

    def _adopt(self, commit: Commit, steps: Steps) -> None:
        """Move to the state after ``commit``: one tensor after the other is written over."""
        moved = 0.0
        for step in steps():
            moved += squares(step.theta - self.state.theta[step.name])
            # In place: new tensors between old ones' gaps would make the heap grow.
            self.state.theta[step.name].copy_(step.theta)
            self.state.momentum[step.name].copy_(step.momentum)
        self._moved = math.sqrt(moved)
        self.sha, self.round = commit.state_sha, commit.round + 1
        self._pulse.round = self.round
        self._own.clear()
        self._checked.clear()
        self._proposed.clear()
        self._note(commit)

    def _note(self, commit: Commit) -> None:
        """Keep what later rounds are judged by: recent norms, and rounds that merged nothing."""
        self._norms.extend(part.norm for part in commit.included if part.norm)
        if commit.empty:
            self._empty[commit.round] = commit.reasons
            require_rounds(self.log.run_id, self.spec, self._empty)

    # -- one round -------------------------------------------------------------------------

    def sync(
        self, delta: Mapping[str, torch.Tensor], *, tokens: int = 0,
        local: Mapping[str, torch.Tensor] | None = None,
    ) -> SyncResult:  # fmt: skip
        """Contribute to ``round``, wait for its commit, and move to the newest state.

        Args:
            delta: ``θ_global − θ_local`` by name, fp32 on the CPU.
            tokens: tokens (or rows) that the delta was trained on; for reports.
            local: the parameters that the delta leads to, which a replica alone then has to the
                bit; without them they are rounded.

        Returns:
            The commit of the round that the delta was for. If the round had been committed
            without this slot, ``late_decay`` of the delta goes into the next one; where that is
            0 it is dropped and its tokens are counted as wasted.

        Raises:
            OuterLogError: no quorum within ``round_timeout_s``, or a damaged log.
        """
        with returning():
            return self._sync(delta, tokens, local)

    def _sync(
        self, delta: Mapping[str, torch.Tensor], tokens: int,
        local: Mapping[str, torch.Tensor] | None,
    ) -> SyncResult:  # fmt: skip
        started, sent = time.monotonic(), 0
        fresh, fresh_tokens = delta, tokens
        if self._late is not None:
            earlier, its_tokens = self._late
            decay = self.spec.late_decay
            delta = Made(delta, partial(_sum, delta, earlier, decay))
            tokens += its_tokens
        if self.lost:
            delta = Made(delta, partial(_sum, delta, self.lost, 1.0))
        size = norm(delta)
        withheld = "" if math.isfinite(size) else NOT_FINITE
        packed = self._packed(delta, fresh, local) if not withheld else None
        commit = self.log.commit(self.round)
        if commit is None:
            with self.leaving.afterwards():
                sent = self._contribute(packed, tokens, withheld)
            commit = self._await_commit()
        mine = self.slot, self.attempt
        contributed = any((part.slot, part.attempt) == mine for part in commit.included)
        carried = self.spec.late_decay > 0 and not withheld and self.slot not in commit.judged
        # Once: what it carried itself is lost where it is late again.
        self._late = (dict(fresh), fresh_tokens) if carried else None
        if not contributed:
            self.wasted_tokens += tokens - fresh_tokens * carried
            self._pulse.wasted_tokens = self.wasted_tokens
        elif packed is not None and self.spec.error_feedback and not packed.whole:
            for name in delta:  # which is made from what was lost before
                self.lost[name] = delta[name] - packed[name]
        self._follow(commit)
        moved = self._moved
        while not self.finished and (later := self.log.commit(self.round)) is not None:
            self._follow(later)
        waited = time.monotonic() - started
        return SyncResult(
            commit, contributed, sent, waited, self.wasted_tokens, size, moved, withheld
        )

    def _packed(
        self, delta: Mapping[str, torch.Tensor], fresh: Mapping[str, torch.Tensor],
        local: Mapping[str, torch.Tensor] | None,
    ) -> Delta:  # fmt: skip
        """Return what travels: the parameters themselves where the round takes them as they are."""
        plain = delta is fresh and self.spec.codec == "fp32"
        if local is not None and plain and self.spec.leaves_alone:
            return Delta.to(local, self.state.theta)
        return Delta.pack(delta, self.spec.codec)

    def _contribute(self, delta: Delta | None, tokens: int, withheld: str) -> int:
        """Store a delta and its manifest, which is written after it; return the bytes sent."""
        key, digest, size = "", "", 0
        if delta is not None:
            data = encode_delta(delta)
            key, digest = self.log.put_delta(self.round, self.slot, data)
            self._own[key], size = delta, len(data)
        self.log.contribute(
            Contribution(
                self.round, self.slot, self.attempt, key, digest, size, self.sha, tokens,
                withheld,
            )
        )  # fmt: skip
        return size

    def _await_commit(self) -> Commit:
        """Return the commit of ``round``, writing it when it is this slot's turn."""
        deadline = time.monotonic() + self.spec.round_timeout_s
        ready_since, pause = None, POLL_FIRST_S
        while True:
            if (commit := self.log.commit(self.round)) is not None:
                return commit
            offers, first = self.log.contributions(self.round)
            now = time.monotonic()
            if first is None or not self._ready(offers, first):
                ready_since = None
            else:
                ready_since = now if ready_since is None else ready_since
                place = sorted(offers).index(self.slot) if self.slot in offers else len(offers)
                if now - ready_since >= place * self.spec.takeover_s:
                    proposal = self._propose(offers)
                    if proposal is not None:
                        with self.leaving.afterwards():
                            self.log.try_commit(proposal)
                        continue
            if now > deadline:
                raise OuterLogError(
                    f"round {self.round} of run {self.log.run_id} got {len(offers)} contributions "
                    f"(min_quorum {self.spec.min_quorum}) in {self.spec.round_timeout_s:g} s"
                )
            pause = self._pause(pause)

    def _ready(self, offers: Mapping[int, Contribution], first: dt.datetime) -> bool:
        """Whether the round may be committed: all are in, or a quorum is and waiting is over."""
        if len(offers) >= self.spec.replicas:
            return True
        if len(offers) < self.spec.min_quorum:
            return False
        alive, now = self._alive()
        if not alive - offers.keys():
            return True
        return (now - first).total_seconds() > self.spec.grace_s

    def _check(self, offer: Contribution) -> Delta | str:
        """Return the offered delta, or why it is rejected; each is looked at once."""
        if offer.withheld:
            return offer.withheld
        if offer.key not in self._checked:
            try:
                if offer.base_sha != self.sha:
                    raise CorruptObject(f"its base is {offer.base_sha[:16]}, not {self.sha[:16]}")
                if offer.key in self._own:
                    # It is here; but the others can only merge what arrived.
                    self.log.verify(offer.key, offer.sha256, offer.size)
                self._checked[offer.key] = self._delta(offer)
            except CorruptObject as error:
                self._checked[offer.key] = str(error)
        return self._checked[offer.key]

    def _propose(self, offers: Mapping[int, Contribution]) -> Commit | None:
        """Merge what is valid, store the result, and return the commit to create.

        None where too few deltas are valid and a missing slot may still bring one. If all
        slots have contributed and too few are valid, the round is committed empty: the state
        stays, and the run goes on with the next round.
        """
        deltas: dict[int, Delta] = {}
        norms: dict[int, float] = {}
        rejected = []
        for slot in sorted(offers):
            checked = self._check(offers[slot])
            if isinstance(checked, str):
                rejected.append(Rejected(slot, checked))
                continue
            size = norm(checked)
            if high := self._too_far(size):
                rejected.append(Rejected(slot, high))
            else:
                deltas[slot], norms[slot] = checked, size
        if len(deltas) < self.spec.min_quorum:
            if len(offers) < self.spec.replicas:
                return None
            deltas = {}
        shares = self._shares({slot: offers[slot].tokens for slot in deltas})
        included = tuple(offers[slot].included(shares[slot], norms[slot]) for slot in deltas)
        steps = self._merged(included, deltas)
        data = encode_state(self.state, steps)
        key, size = "", 0
        if self.spec.is_snapshot(self.round):
            collect(self.log, self.spec, self.round)
            key, size = self.log.put_state(self.round, data)[0], len(data)
        self._proposed[data.sha256] = steps
        return Commit(
            round=self.round,
            included=included,
            rejected=tuple(rejected),
            base_sha=self.sha,
            state_sha=data.sha256,
            state_key=key,
            state_size=size,
            by=self.slot,
            tokens=sum(part.tokens for part in included),
        )

    def _too_far(self, size: float) -> str:
        """Return why a norm is too large beside those of recent rounds; empty where it is not."""
        guard, known = self.spec.norm_guard, self._norms
        if guard is None or len(known) < FEWEST_NORMS:
            return ""
        median = statistics.median(known)
        if size <= guard * median:
            return ""
        return f"its norm {size:.3g} is above {guard:g} times the median {median:.3g} of late ones"

    def _shares(self, tokens: Mapping[int, int]) -> dict[int, float]:
        """Return the weight of each slot; equal ones too where nobody counted any tokens."""
        total = sum(tokens.values()) if self.spec.weights == "tokens" else 0
        return {slot: n / total if total else 1.0 / len(tokens) for slot, n in tokens.items()}

    def _merged(self, included: tuple[Included, ...], deltas: Mapping[int, Delta]) -> Steps:
        """Return what makes the next state, which is never in memory beside the present one."""
        if not included:
            return self.state.steps
        return partial(
            merged_steps,
            self.state,
            [deltas[part.slot] for part in included],
            [part.weight for part in included],
            self.spec,
        )

    def _follow(self, commit: Commit) -> None:
        """Move to the state after ``commit``, or to a newer one where its parts are gone."""
        if not self._advance(commit):
            self._recover()

    def _advance(self, commit: Commit) -> bool:
        """Move to the state after ``commit``: rebuilt from its deltas, else downloaded."""
        steps = self._proposed.get(commit.state_sha) or self._rebuilt(commit)
        if steps is not None:
            self._adopt(commit, steps)
        elif commit.state_key:
            try:
                self._load(commit)
            except CorruptObject:
                return False
        return self.round > commit.round

    def _rebuilt(self, commit: Commit) -> Steps | None:
        """Return what makes the state after ``commit`` if this machine computes the same bits."""
        if commit.base_sha != self.sha:
            return None
        try:
            deltas = {part.slot: self._delta(part) for part in commit.included}
        except CorruptObject:
            return None
        steps = self._merged(commit.included, deltas)
        return steps if encode_state(self.state, steps).sha256 == commit.state_sha else None

    def _delta(self, part: Included | Contribution) -> Delta:
        """Return a delta: as it is known here, or read.

        Raises:
            CorruptObject: it cannot be read as the commit has it.
        """
        known = self._own.get(part.key) or self._checked.get(part.key)
        if isinstance(known, Delta):
            return known
        data = self.log.read(part.key, part.sha256, part.size)
        return decode_delta(data, self.state.theta, self.spec.codec)


def _sum(
    one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor], share: float, name: str
) -> torch.Tensor:
    """Return a parameter of the first, and a share of the second."""
    return one[name] + other[name] * share
