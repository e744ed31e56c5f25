"""The state of a run as its commits lead to it, kept by reading them one after the other.

Belongs here: loading a whole state, rebuilding the next one from deltas, and what commits say of
later rounds. Does not belong here: writing anything into the log (``replica``).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from composer_pipeline.diloco.log import (
    Commit,
    Contribution,
    CorruptObject,
    Included,
    OuterLog,
    OuterLogError,
    require_rounds,
)
from composer_pipeline.diloco.rounds.norm_guard import NormGuard
from composer_pipeline.diloco.rounds.pace import Pace
from composer_pipeline.diloco.spec import ALL, DiLoCoSpec, Fragment
from composer_pipeline.diloco.tensors.codecs import Delta
from composer_pipeline.diloco.tensors.encoding import decode_delta, decode_state, encode_state
from composer_pipeline.diloco.tensors.fragments import fragment_of
from composer_pipeline.diloco.tensors.merging import merged_steps
from composer_pipeline.diloco.tensors.outer import OuterState, Step, squares

#: Makes the state after an outer step, one parameter at a time.
Steps = Callable[[], Iterator[Step]]


class Follower:
    """Who follows a run: ``state`` is the base of ``round``, and ``sha`` its hash.

    There is one state in memory, and each round writes it over: copy what is to stay.

    Args:
        log: the run's log.
        spec: what is agreed.
    """

    state: OuterState

    def __init__(self, log: OuterLog, spec: DiLoCoSpec) -> None:
        self.log, self.spec = log, spec
        self.round, self.sha = 1, ""
        self._moved = 0.0
        self._changed: set[str] = set()
        self._guard = NormGuard(spec)
        self._pace = Pace(spec)
        self._empty: dict[int, str] = {}
        #: Deltas by their keys: those that this process made, and those it has looked at.
        self._own: dict[str, Delta] = {}
        self._checked: dict[str, Delta | str] = {}
        self._proposed: dict[str, Steps] = {}

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
        self._pace.clear()
        self._guard.clear()
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
        self._changed |= self._names(commit.fragment)
        for step in steps():
            if step.theta is self.state.theta[step.name]:
                continue
            by = squares(step.theta - self.state.theta[step.name])
            if by:  # of another fragment, where rounds in between were not followed
                self._changed.add(step.name)
            moved += by
            # In place: new tensors between old ones' gaps would make the heap grow.
            self.state.theta[step.name].copy_(step.theta)
            self.state.momentum[step.name].copy_(step.momentum)
        self._moved = math.sqrt(moved)
        self.sha, self.round = commit.state_sha, commit.round + 1
        self._own.clear()
        self._checked.clear()
        self._proposed.clear()
        self._note(commit)

    def _note(self, commit: Commit) -> None:
        """Keep what later rounds go by: recent norms, speeds, and rounds that merged nothing."""
        self._pace.note(commit)
        self._guard.note(commit)
        if commit.empty:
            self._empty[commit.round] = commit.reasons
            require_rounds(self.log.run_id, self.spec, self._empty)

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
            deltas = {part.slot: self._delta(part, commit.fragment) for part in commit.included}
        except CorruptObject:
            return None
        steps = self._merged(commit.included, deltas)
        return steps if encode_state(self.state, steps).sha256 == commit.state_sha else None

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

    def _delta(self, part: Included | Contribution, fragment: Fragment) -> Delta:
        """Return a delta: as it is known here, or read.

        Raises:
            CorruptObject: it cannot be read as the commit has it.
        """
        known = self._own.get(part.key) or self._checked.get(part.key)
        if isinstance(known, Delta):
            return known
        data = self.log.read(part.key, part.sha256, part.size)
        like = fragment_of(self.state.theta, self.spec.fragments, fragment)
        return decode_delta(data, like, self.spec.codec)
