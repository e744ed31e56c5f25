"""The state of a run, built from its commits in order, and what they imply for later rounds."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from composer_pipeline.diloco.codecs import Delta, decode_delta, decode_state, encode_state
from composer_pipeline.diloco.fragments import fragment_of, merged_steps
from composer_pipeline.diloco.log import (
    Commit,
    Contribution,
    CorruptObject,
    Included,
    OuterLog,
    OuterLogError,
    require_rounds,
)
from composer_pipeline.diloco.outer_optimizer import OuterState, Step, squares
from composer_pipeline.diloco.spec import ALL, DiLoCoSpec, Fragment
from composer_pipeline.diloco.store import Pieces

#: Norms of merged deltas that the guard keeps, and how many it needs.
RECENT_NORMS, FEWEST_NORMS = 16, 3


class NormGuard:
    """The norms of recently merged changes, by fragment."""

    def __init__(self, spec: DiLoCoSpec) -> None:
        self._spec = spec
        self.norms = [deque[float](maxlen=RECENT_NORMS) for _ in range(spec.fragments)]

    def clear(self) -> None:
        """Forget all commits."""
        for norms in self.norms:
            norms.clear()

    def note(self, commit: Commit) -> None:
        """Learn from the next commit, unless it merges several fragments."""
        numbers = self._spec.numbers(commit.fragment)
        if len(numbers) == 1:
            norms = (part.norm / _growth(part.steps) for part in commit.included if part.norm)
            self.norms[numbers[0]].extend(norms)

    def too_far(self, sizes: Mapping[int, float], steps: int) -> str:
        """Return why norms, by fragment, are too large beside recent ones; empty if none is."""
        return "; ".join(filter(None, (self._why(n, size, steps) for n, size in sizes.items())))

    def _why(self, fragment: int, size: float, steps: int) -> str:
        guard, known = self._spec.norm_guard, self.norms[fragment]
        if guard is None or len(known) < FEWEST_NORMS:
            return ""
        median = statistics.median(known) * _growth(steps)
        if size <= guard * median:
            return ""
        return (
            f"its norm {size:.3g} is above {guard:g} times the median {median:.3g} of recent ones"
        )


def _growth(steps: int) -> float:
    """Return the expected growth of a change's norm with its steps; 1 where not counted.

    Between steps of one direction (linear) and steps that undo each other (none), so that
    replicas of different speed can be compared.
    """
    return math.sqrt(steps or 1)


#: A slot counts as the fastest only if one of the last three rounds that merged something included
#: it: a vanished slot must not keep the others' rounds short, nor a restarted one be waited for.
REMEMBERED = 3


class Work(NamedTuple):
    """A slot's work in a round: its steps, and seconds of each (0: not measured)."""

    steps: int = 0
    seconds: float = 0.0


class Pace:
    """The slots' speeds, from commits: seconds of a step, and those that an upload adds to a round.

    An upload adds what it takes beyond the steps that are made meanwhile.
    """

    def __init__(self, spec: DiLoCoSpec) -> None:
        self._spec = spec
        self.clear()

    def clear(self) -> None:
        """Forget all commits."""
        self._seconds: dict[int, tuple[float, float]] = {}
        self._late: deque[set[int]] = deque(maxlen=REMEMBERED)

    def note(self, commit: Commit) -> None:
        """Learn from the next commit."""
        hidden = self._spec.overlap_steps
        measured = {
            part.slot: (part.seconds, max(0.0, part.upload_s - hidden * part.seconds))
            for part in commit.included
            if part.seconds > 0
        }
        self._seconds |= measured
        if commit.included:
            self._late.append(set(measured))

    def steps(self, slot: int) -> int:
        """Return the steps of a slot in the next round: at least 1; H if its speed is unknown."""
        most, own = self._spec.inner_steps, self._seconds.get(slot)
        rivals = [self._seconds[other] for other in set().union(*self._late)]
        if self._spec.pace == "equal-steps" or own is None or not rivals:
            return most
        least, (step, more) = min(most * step + more for step, more in rivals), own
        return max(1, min(most, int((least - more) / step + 1e-6)))


UNKNOWN = Work()


class Stopwatch:
    """Measures the steps of one round in this process, without the time between rounds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._took: list[float] = []

    def start(self) -> None:
        """Start with the first step; does nothing at later ones."""
        if self._since is None:
            self._since = self._clock()

    def lap(self) -> None:
        """Record the end of a step; what follows counts to the next one."""
        now = self._clock()
        if self._since is not None:
            self._took.append(now - self._since)
        self._since = now

    def seconds(self) -> float:
        """Return the median time of a step (a process's first is long); 0 without any."""
        return statistics.median(self._took) if self._took else 0.0


class Follower:
    """Follows a run: ``state`` is the base of ``round``, and ``sha`` its hash.

    There is one state in memory, and each round changes it in place: copy what is to stay. A commit
    of other bits than were computed here is read from the log.
    """

    state: OuterState

    def __init__(self, log: OuterLog, spec: DiLoCoSpec) -> None:
        self.log, self.spec = log, spec
        self.round, self.sha = 1, ""
        #: The hash of the values in ``state``: those of ``sha``, or merged but not yet committed.
        self._held = ""
        self._moved = 0.0
        self._changed: set[str] = set()
        self._guard = NormGuard(spec)
        self._pace = Pace(spec)
        self._empty: dict[int, Commit] = {}
        #: Deltas by key: those that this process made, and those it has checked.
        self._own: dict[str, Delta] = {}
        self._checked: dict[str, Delta | str] = {}

    @property
    def finished(self) -> bool:
        """Whether the last round of the spec is committed."""
        return self.round > self.spec.rounds

    def merged_in(self, round_: int) -> set[str]:
        """Return the names of the parameters that a committed round merged, or should have."""
        commit = self.log.commit(round_)
        return self._names(ALL if commit is None else commit.fragment)

    def _names(self, fragment: Fragment) -> set[str]:
        """Return the names of a fragment's parameters."""
        return set(fragment_of(self.state.theta, self.spec.fragments, fragment))

    def _recover(self) -> None:
        """Load the newest readable whole state, and replay the commits after it."""
        last = -1
        # A slow reader may find objects removed: then there are newer commits.
        while len(commits := self.log.commits()) > last + 1:
            last = commits[-1].round
            if any(self._replay(commits, whole) for whole in reversed(commits)):
                return
        if not commits:
            raise OuterLogError(f"run {self.log.run_id}: its commits are gone from the log")
        raise OuterLogError(
            f"run {self.log.run_id}: no state that can be read leads to round {last}; if machines"
            " compute different bits, diloco.kept_rounds: 2 writes the state of each round"
        )

    def _replay(self, commits: list[Commit], whole: Commit) -> bool:
        """Return whether one commit's state and the changes after it give the newest state."""
        self._pace.clear()
        self._guard.clear()
        self._empty.clear()
        for earlier in commits[: whole.round]:
            self._note(earlier)
        return self._load(whole) and all(map(self._advance, commits[whole.round + 1 :]))

    def _load(self, commit: Commit) -> bool:
        """Move to the state after ``commit`` as the log has it; return whether it can be read."""
        if not commit.state_key:
            return False
        try:
            data = self.log.read(commit.state_key, commit.state_sha, commit.state_size)
            state = decode_state(data)
        except CorruptObject:
            return False
        self.state, moved = getattr(self, "state", state), 0.0
        for step in state.steps():
            by = squares(step.theta - self.state.theta[step.name])
            if by:  # another fragment's, where rounds in between were not followed
                self._changed.add(step.name)
            moved += by
            # In place: new tensors in the gaps of old ones would fragment the heap.
            self.state.theta[step.name].copy_(step.theta)
            self.state.momentum[step.name].copy_(step.momentum)
        self._moved = math.sqrt(moved)
        self._adopt(commit)
        return True

    def _adopt(self, commit: Commit) -> None:
        """Begin the round after ``commit`` from the state, which has its values."""
        self._changed |= self._names(commit.fragment)
        self.sha = self._held = commit.state_sha
        self.round = commit.round + 1
        self._own.clear()
        self._checked.clear()
        self._note(commit)

    def _note(self, commit: Commit) -> None:
        """Record recent norms, speeds, and rounds that merged nothing."""
        self._pace.note(commit)
        self._guard.note(commit)
        if commit.empty:
            self._empty[commit.round] = commit
            require_rounds(self.log.run_id, self.spec, self._empty.values())

    def _follow(self, commit: Commit) -> None:
        """Move to the state after ``commit``, or to a newer one where its objects are gone."""
        if not self._advance(commit):
            self._recover()

    def _advance(self, commit: Commit) -> bool:
        """Move to the state after ``commit``: merged here, else downloaded."""
        # It has those values already if it was proposed here, or merges nothing.
        if self._held == commit.state_sha or self._rebuild(commit):
            self._adopt(commit)
            return True
        return self._load(commit)

    def _rebuild(self, commit: Commit) -> bool:
        """Merge the deltas of ``commit``; return whether this machine computes the same bits."""
        if commit.base_sha != self._held:
            return False
        try:
            deltas = {part.slot: self._delta(part, commit.fragment) for part in commit.included}
        except CorruptObject:
            return False
        return self._merge(commit.included, deltas).sha256 == commit.state_sha

    def _merge(self, included: tuple[Included, ...], deltas: Mapping[int, Delta]) -> Pieces:
        """Merge into the state, and return its bytes, which were hashed on the way."""
        squared = [0.0]

        def steps() -> Iterator[Step]:
            chosen, weights = [deltas[p.slot] for p in included], [p.weight for p in included]
            for step in merged_steps(self.state, chosen, weights, self.spec):
                squared.append(step.moved)
                yield step

        data = encode_state(self.state, steps() if included else None)
        self._held, self._moved = data.sha256, math.sqrt(sum(squared))
        return data

    def _delta(self, part: Included | Contribution, fragment: Fragment) -> Delta:
        """Return a delta, known to this process or read."""
        known = self._own.get(part.key) or self._checked.get(part.key)
        if isinstance(known, Delta):
            return known
        data = self.log.read(part.key, part.sha256, part.size)
        like = fragment_of(self.state.theta, self.spec.fragments, fragment)
        return decode_delta(data, like, self.spec.codec)
