"""One replica's side of the protocol: join, contribute, commit or follow.

No lease, no leader: the next state is a pure function of base and included deltas, and the creation
of ``commit.json`` decides. Two racing committers are harmless.
"""

import ctypes
import datetime as dt
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import torch

from composer_pipeline.diloco.codecs import CODECS, Delta, bytes_of, encode_delta, encode_state
from composer_pipeline.diloco.fragments import collect, fragment_names, fragment_of, shares_of
from composer_pipeline.diloco.heartbeat import GracefulExit, HeartbeatSender
from composer_pipeline.diloco.log import (
    Commit,
    Contribution,
    CorruptObject,
    OuterLog,
    OuterLogError,
    Rejected,
    contribution_key,
)
from composer_pipeline.diloco.outer_optimizer import LazyTensors, OuterState, Tensors, signature
from composer_pipeline.diloco.rounds import UNKNOWN, Follower, Work
from composer_pipeline.diloco.spec import ALL, Codec, DiLoCoSpec
from composer_pipeline.diloco.store import Pieces
from composer_pipeline.errors import InputError

#: Parameters of mallopt(3), from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: Bytes from which a block is mapped on its own, during a sync and after it, when training takes
#: its blocks from the heap again, which is faster; the latter is the most that the dynamic
#: threshold of a process that has freed large blocks reaches.
_DURING, _AFTER = 2**20, 32 * 2**20


@contextmanager
def returning_memory() -> Iterator[None]:
    """Return large freed blocks to the system inside the block; does nothing without glibc."""
    library: Any = ctypes.CDLL(None)
    fixed = "MALLOC_MMAP_THRESHOLD_" in os.environ
    if fixed or not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        yield
        return
    library.malloc_trim(0)
    library.mallopt(_MMAP_THRESHOLD, _DURING)
    try:
        yield
    finally:
        library.mallopt(_MMAP_THRESHOLD, _AFTER)
        library.mallopt(_TRIM_THRESHOLD, 2 * _AFTER)


#: Pauses between two reads of the log while waiting: first, factor, longest.
POLL_FIRST_S, POLL_FACTOR, POLL_MAX_S = 0.05, 1.5, 2.0
#: Seconds between two checks, while training, whether others have ended the round.
LOOK_S = 1.0
#: Share of the grace time that an upload may take, before a coarser codec is chosen.
UPLOAD_SHARE = 0.5
NOT_FINITE = "its delta has values that are not finite"


@dataclass(frozen=True)
class SyncResult:
    """What became of a contribution of this norm; ``withheld`` says why it had no delta.

    ``moved`` is how far the round's outer step went; ``changed`` names the parameters to take from
    the state now, while the others continue as they were trained.
    """

    commit: Commit
    contributed: bool
    bytes_sent: int
    wait_s: float
    wasted_tokens: int
    norm: float
    moved: float
    withheld: str = ""
    changed: frozenset[str] = frozenset()


class Replica(Follower):
    """One slot of a run, which follows it and contributes.

    ``join`` fills in the spec's ``model_signature``. ``attempt`` is the 1-based start of the slot;
    a restart must use a new number.
    """

    #: ``DiLoCoSpec.base`` of this process; set before joining.
    base = ""
    #: Called while this process waits; raises when its supervisor is gone.
    watch: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, log: OuterLog, spec: DiLoCoSpec, slot: int, attempt: int = 1) -> None:
        if not 0 <= slot < spec.replicas:
            raise InputError(f"DiLoCo slot {slot} is outside of 0..{spec.replicas - 1}")
        super().__init__(log, spec)
        self.slot, self.attempt, self.wasted_tokens = slot, attempt, 0
        fastest = min(spec.heartbeat_timeout_s, spec.grace_s)
        self._heartbeats = HeartbeatSender(log, slot, attempt, max(0.05, fastest / 4))
        self.graceful_exit = GracefulExit()
        #: By fragment: a change that came too late, for the next contribution, and its tokens.
        self._late: dict[int, tuple[Tensors, int]] = {}
        #: What the codec has lost of this slot's merged deltas, by name.
        self.lost: Tensors = {}
        self._next_look = 0.0
        #: Seconds that a byte of the last upload took.
        self._byte_s = 0.0

    @property
    def steps(self) -> int:
        """The optimizer steps of this slot in ``round``, as far as commits know its speed."""
        return self._pace.steps(self.slot)

    def awaited(self) -> bool:
        """Whether another slot has made all H steps of ``round``, where rounds are of equal time.

        For a slot of unknown speed, or one that became slow. Reads the log at most every ``LOOK_S``
        and returns False in between.
        """
        now = time.monotonic()
        if self.spec.pace == "equal-steps" or now < self._next_look:
            return False
        self._next_look = now + LOOK_S
        offers = self.log.contributions(self.round)[0]
        return any(offer.steps >= self.spec.inner_steps for offer in offers.values())

    # -- joining ---------------------------------------------------------------------------

    def announce(self) -> None:
        """Show that this slot is taken, while its process still loads."""
        self._heartbeats.start()

    def join(self, parameters: Mapping[str, torch.Tensor]) -> OuterState:
        """Agree on the spec, adopt the newest committed state and wait for the others.

        ``parameters`` is what is trained, by name: the initial state if the run is new. Returns the
        state to train from, which is also ``state``.

        Raises:
            InputError: the run has another spec, another model, or an unfit store; or the model
                has fewer tensors than fragments.
            OuterLogError: objects of the log are lost or damaged.
        """
        fragment_names(parameters, self.spec.fragments)
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
        while not self.finished and self.log.contribution(self.round, self.slot) is not None:
            self._follow(self._await_commit())
        return self.state

    def private(self) -> tuple[Tensors, dict[str, Any]]:
        """Return what only this slot knows, and not the log: tensors, and plain numbers."""
        late = [part for part, _ in self._late.values()]
        tensors = {f"late/{name}": tensor for part in late for name, tensor in part.items()}
        tensors |= {f"lost/{name}": tensor for name, tensor in self.lost.items()}
        numbers = {
            "round": self.round,
            "late": {str(number): tokens for number, (_, tokens) in self._late.items()},
            "wasted": self.wasted_tokens,
        }
        return tensors, numbers

    def load_private(self, tensors: Tensors, numbers: Mapping[str, Any]) -> None:
        """Restore :meth:`private`, after joining."""
        self.wasted_tokens = self._heartbeats.wasted_tokens = numbers["wasted"]
        carried = set[str]()
        if numbers["round"] != self.round:  # that round's contribution has carried both
            carried = self.merged_in(numbers["round"])
        kinds: dict[str, Tensors] = {"late": {}, "lost": {}}
        for key, tensor in tensors.items():
            kind, _, name = key.partition("/")
            if name not in carried:
                kinds[kind][name] = tensor
        self.lost = kinds["lost"]
        if not kinds["late"]:
            return
        for number, tokens in numbers["late"].items():
            part = {n: t for n, t in kinds["late"].items() if n in self._names(int(number))}
            if part:
                self._late[int(number)] = part, tokens

    def close(self) -> None:
        """Stop the heartbeat. The log stays as it is."""
        self._heartbeats.stop()

    def leave(self) -> None:
        """Leave at once: the others need not wait for the heartbeat to age."""
        self._heartbeats.leave()

    def _barrier(self) -> None:
        """Wait until all slots are alive, the round is under way, or the join timeout.

        Without it the fastest one would start alone, at the beginning or after all had died.
        """
        deadline, pause = time.monotonic() + self.spec.join_timeout_s, POLL_FIRST_S
        if self.round > 1 and self._alive()[0] - {self.slot}:
            return
        while len(self._alive()[0]) < self.spec.replicas and time.monotonic() < deadline:
            if self.log.commit(self.round) or self.log.contributions(self.round)[0]:
                return
            pause = self._pause(pause)

    def _adopt(self, commit: Commit) -> None:
        super()._adopt(commit)
        self._heartbeats.round = self.round

    def _pause(self, seconds: float) -> float:
        """Wait before the next read of the log; return the next pause."""
        self.watch()
        time.sleep(seconds)
        return min(seconds * POLL_FACTOR, POLL_MAX_S)

    def _alive(self) -> tuple[set[int], dt.datetime]:
        """Return the slots with a recent heartbeat, and the store's present time."""
        ages, now = self._heartbeats.ages()
        return {slot for slot, age in ages.items() if age <= self.spec.heartbeat_timeout_s}, now

    # -- one round -------------------------------------------------------------------------

    def sync(
        self, delta: Mapping[str, torch.Tensor], *, tokens: int = 0,
        local: Mapping[str, torch.Tensor] | None = None, work: Work = UNKNOWN,
    ) -> SyncResult:  # fmt: skip
        """Contribute to ``round``, wait for its commit, and move to the newest state.

        Args:
            delta: ``θ_global − θ_local`` by name, fp32 on the CPU; the global parameters are those
                that were last taken. Of a run in fragments only the round's fragment is read.
            tokens: tokens (or rows) that the delta was trained on; for reports.
            local: the parameters that the delta leads to, which a replica alone then has to the
                bit; without them they are rounded.
            work: the steps that led to the delta, and how long they took.

        Returns:
            The commit of the round that the delta was for. If the round had been committed
            without this slot, ``late_decay`` of the delta goes into the next one; where that is
            0 it is dropped and its tokens are counted as wasted.

        Raises:
            OuterLogError: no quorum within ``round_timeout_s``, or a damaged log.
        """
        with returning_memory():
            return self._sync(delta, tokens, local, work)

    def _sync(
        self, delta: Mapping[str, torch.Tensor], tokens: int,
        local: Mapping[str, torch.Tensor] | None, work: Work,
    ) -> SyncResult:  # fmt: skip
        started, sent = time.monotonic(), 0
        self._changed, self._moved = set(), 0.0
        fragment = self.spec.fragment(self.round)
        part = fragment_of(self.state.theta, self.spec.fragments, fragment)
        if fragment is not ALL:
            delta = LazyTensors(part, delta.__getitem__)
        if self.spec.late_decay:
            delta = dict(delta)  # it may depend on the state, and is read after that has changed
        fresh, fresh_tokens = delta, tokens
        numbers = self.spec.numbers(fragment)
        delta, tokens = self._with_rest(fresh, tokens, numbers)
        packed = self._packed(delta, fresh, local, part)
        lossy = self.spec.feeds_back(packed.codec) and not packed.whole
        lost = {name: delta[name] - packed[name] for name in packed} if lossy else {}
        size = packed.norm
        withheld = "" if math.isfinite(size) else NOT_FINITE
        commit = self.log.commit(self.round)
        if commit is None:
            with self.graceful_exit.deferred():
                sent = self._contribute(packed, tokens, withheld, work)
            commit = self._await_commit()
        mine = self.slot, self.attempt
        contributed = any((part.slot, part.attempt) == mine for part in commit.included)
        carried = (
            self.spec.late_decay > 0
            and not withheld
            and self.slot not in (*commit.slots, *commit.why)
        )
        # Only the fresh part: what it carried itself is lost if it is late again.
        if carried:
            self._late[numbers[0]] = dict(fresh), fresh_tokens
        if not contributed:
            self.wasted_tokens += tokens - fresh_tokens * carried
            self._heartbeats.wasted_tokens = self.wasted_tokens
        else:  # what was lost has the earlier loss in it
            self.lost = {n: t for n, t in self.lost.items() if n not in packed} | lost
        self._follow(commit)
        moved = self._moved
        while not self.finished and (later := self.log.commit(self.round)) is not None:
            self._follow(later)
        if withheld:  # the other parameters are not finite either, or were trained with such
            self._changed = set(self.state.theta)
        waited = time.monotonic() - started
        return SyncResult(
            commit, contributed, sent, waited, self.wasted_tokens, size, moved, withheld,
            frozenset(self._changed),
        )  # fmt: skip

    def _with_rest(
        self, delta: Mapping[str, torch.Tensor], tokens: int, numbers: Sequence[int]
    ) -> tuple[Mapping[str, torch.Tensor], int]:
        """Add to a change what is carried over: late changes, and the codec's loss."""
        for earlier, its_tokens in [self._late.pop(n) for n in numbers if n in self._late]:
            delta = LazyTensors(delta, partial(_sum, delta, earlier, self.spec.late_decay))
            tokens += its_tokens
        if self.lost:
            delta = LazyTensors(delta, partial(_sum, delta, self.lost, 1.0))
        return delta, tokens

    def _packed(
        self, delta: Mapping[str, torch.Tensor], fresh: Mapping[str, torch.Tensor],
        local: Mapping[str, torch.Tensor] | None, base: Tensors,
    ) -> Delta:  # fmt: skip
        """Return what travels: the parameters themselves where the round takes them as they are."""
        plain = delta is fresh and self.spec.codec == "fp32"
        if local is not None and plain and self.spec.takes_result_as_is:
            return Delta.to(local, base)
        return Delta.pack(delta, self._codec(sum(tensor.numel() for tensor in base.values())))

    def _codec(self, count: int) -> Codec:
        """Return the finest codec whose bytes, by the last upload, arrive in the grace time."""
        # Alone, nobody waits for it.
        may = self.spec.grace_s * UPLOAD_SHARE if self.spec.replicas > 1 else math.inf
        left = CODECS[CODECS.index(self.spec.codec) :]
        return next((c for c in left if bytes_of(c, count) * self._byte_s <= may), left[-1])

    def _contribute(self, delta: Delta, tokens: int, withheld: str, work: Work) -> int:
        """Store a delta, unless it is withheld, then its record; return the bytes sent."""
        key, digest, size, took = "", "", 0, 0.0
        if not withheld:
            data, began = encode_delta(delta), time.monotonic()
            key, digest = self.log.put_delta(self.round, self.slot, data)
            took = time.monotonic() - began
            self._own[key], size = delta, len(data)
            self._byte_s = took / size
        self.log.contribute(
            Contribution(
                self.round, self.slot, self.attempt, key, digest, size, self.sha, tokens,
                withheld, work.steps, work.seconds, took,
            )
        )  # fmt: skip
        return size

    def _await_commit(self) -> Commit:
        """Return the commit of ``round``, writing it when it is this slot's turn."""
        deadline = time.monotonic() + self.spec.round_timeout_s
        ready_since, pause, proposal = None, POLL_FIRST_S, None
        while True:
            if (commit := self.log.commit(self.round)) is not None:
                return commit
            own = contribution_key(self.round, self.slot)
            offers, first = self.log.contributions(self.round, own)
            now = time.monotonic()
            if first is None or not self._ready(offers, first):
                ready_since = None
            else:
                ready_since = now if ready_since is None else ready_since
                place = sorted(offers).index(self.slot) if self.slot in offers else len(offers)
                turn = now - ready_since >= place * self.spec.takeover_s
                # Nothing more can come: all merge at once, and need not when the commit is there.
                if turn or len(offers) == self.spec.replicas:
                    proposal = proposal or self._propose(offers)
                if turn and proposal is not None:
                    with self.graceful_exit.deferred():
                        self.log.try_commit(self._with_state(*proposal))
                    continue
            if now > deadline:
                raise OuterLogError(
                    f"round {self.round} of run {self.log.run_id} got {len(offers)} contributions "
                    f"(min_quorum {self.spec.min_quorum}) in {self.spec.round_timeout_s:g} s"
                )
            pause = self._pause(pause)

    def _ready(self, offers: Mapping[int, Contribution], first: dt.datetime) -> bool:
        """Return whether all contributions are in, or a quorum is and the wait is over."""
        if len(offers) >= self.spec.replicas:
            return True
        if len(offers) < self.spec.min_quorum:
            return False
        alive, now = self._alive()
        if not alive - offers.keys():
            return True
        return (now - first).total_seconds() > self.spec.grace_s

    def _check(self, offer: Contribution) -> Delta | str:
        """Return the offered delta, or why it is rejected; each is checked once."""
        if offer.withheld:
            return offer.withheld
        if offer.key not in self._checked:
            try:
                if offer.base_sha != self.sha:
                    raise CorruptObject(f"its base is {offer.base_sha[:16]}, not {self.sha[:16]}")
                if offer.key in self._own:
                    # Known here, but the others can only merge what arrived.
                    self.log.verify(offer.key, offer.sha256, offer.size)
                self._checked[offer.key] = self._delta(offer, self.spec.fragment(self.round))
            except CorruptObject as error:
                self._checked[offer.key] = str(error)
        return self._checked[offer.key]

    def _propose(self, offers: Mapping[int, Contribution]) -> tuple[Commit, Pieces] | None:
        """Merge what is valid into the state; return the commit to create, and the state's bytes.

        None where too few deltas are valid and a missing slot may still bring one; once all slots
        have contributed, such a round is committed empty, and the state stays.
        """
        deltas: dict[int, Delta] = {}
        norms: dict[int, float] = {}
        rejected = []
        for slot in sorted(offers):
            checked = self._check(offers[slot])
            if isinstance(checked, str):
                rejected.append(Rejected(slot, checked))
                continue
            sizes = self._sizes(checked)
            if high := self._guard.too_far(sizes, offers[slot].steps):
                rejected.append(Rejected(slot, high))
            else:
                deltas[slot], norms[slot] = checked, math.hypot(*sizes.values())
        if len(deltas) < self.spec.min_quorum:
            if len(offers) < self.spec.replicas:
                return None
            deltas = {}
        shares = shares_of({slot: offers[slot].tokens for slot in deltas}, self.spec)
        included = tuple(offers[slot].included(shares[slot], norms[slot]) for slot in deltas)
        data = self._merge(included, deltas)
        commit = Commit(
            round=self.round,
            included=included,
            rejected=tuple(rejected),
            base_sha=self.sha,
            state_sha=data.sha256,
            state_key="",
            state_size=0,
            by=self.slot,
            tokens=sum(part.tokens for part in included),
            fragment=self.spec.fragment(self.round),
        )
        return commit, data

    def _with_state(self, commit: Commit, data: Pieces) -> Commit:
        """Store the whole state where its round has one; return the commit that names it."""
        if not self.spec.is_snapshot(commit.round):
            return commit
        collect(self.log, self.spec, commit.round)
        key, _ = self.log.put_state(commit.round, data)
        return msgspec.structs.replace(commit, state_key=key, state_size=len(data))

    def _sizes(self, delta: Delta) -> dict[int, float]:
        """Return the norm of each fragment in a delta to the present round."""
        numbers = self.spec.numbers(self.spec.fragment(self.round))
        return {n: math.sqrt(sum(map(delta.squares, self._names(n)))) for n in numbers}


def _sum(
    one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor], share: float, name: str
) -> torch.Tensor:
    """Return a parameter of the first, plus a share of the second's if it has one."""
    return one[name] + other[name] * share if name in other else one[name]
