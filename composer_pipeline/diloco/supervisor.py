"""Starts the replicas of a run as processes and sees the run through. No torch.

Success is a complete log, never an exit code: a replica that was killed after its last
contribution has done its work, and one that exits with 0 too early has not.

A replica's exit code says whether starting it again could help:

=====  ==================================================================================
0      its work is done
2      bad input: the run fails at once with the replica's own sentence (``InputError``)
4      it failed in a way that would repeat (``ReplicaFailed``): likewise, at once
other  a crash or a signal: started again up to ``max_restarts``; then the run goes on
       without it while ``min_quorum`` slots are left
=====  ==================================================================================

Codes 2 and 4 end the run whatever the quorum: what is wrong for one replica is wrong for
the result. The sentence is the last line ``error: …`` of its output.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import methodcaller
from pathlib import Path

from composer_pipeline.diloco.log import Commit, OuterLog, require_rounds
from composer_pipeline.diloco.places.job import Job, Place
from composer_pipeline.diloco.places.local import SUPERVISOR, LocalCommand, ReplicaCommand
from composer_pipeline.diloco.slots import alive_slots, claim, claims, restarts_used
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.files import make_folder
from composer_pipeline.parent import child_of_this, end_with_parent

logger = logging.getLogger(__name__)

POLL_S = 0.2
#: Seconds between SIGTERM and SIGKILL.
STOP_PATIENCE_S = 5.0
#: Exit codes after which starting the same command again would fail the same way.
EXIT_BAD_INPUT, EXIT_WOULD_REPEAT = 2, 4

#: Fields of the spec that a replica fills in when it has loaded what it trains.
FOUND_BY_REPLICAS = frozenset({"model_signature", "base"})


class ReplicasFailed(ComposerError):
    """The replicas ended, or time ran out, before the log had all rounds."""


class ReplicaFailed(ComposerError):
    """One replica failed in a way that would repeat; the message is its own sentence."""


@dataclass(frozen=True)
class SlotEnd:
    """A replica's process that ended before the run; ``restart`` counts, 0 for none left."""

    slot: int
    code: int
    restart: int
    sentence: str


@dataclass(frozen=True)
class SupervisorReport:
    """What a finished run did; ``exit_codes`` lists those of every attempt of a slot."""

    rounds: tuple[Commit, ...]
    restarts: dict[int, int]
    exit_codes: dict[int, list[int]]
    state_sha: str


@dataclass
class _Slot:
    """One slot that this process supervises, and its attempt."""

    slot: int
    place: Place
    log: Path
    job: Job | None = None
    exit_codes: list[int] = field(default_factory=list)
    restarts: int = 0
    restart_at: float = 0.0
    lost: bool = False
    sentence: str = ""


class Supervisor:
    """Runs one process a slot until the log has ``spec.rounds`` commits.

    Args:
        url: folder or URL of the log.
        run_id: the run; running again with the same one resumes at the last commit.
        spec: what the replicas agree on; passed to them by environment.
        commands: one for each slot that runs here, in the order of the slots.
        run_dir: gets ``slot-<n>.log`` with the output of all attempts.
        places: where each of the next slots is started.
        elsewhere: number of the last slots, whose replicas join by themselves.
        max_restarts: per slot, until a round merges it again; over all supervisors of the run.
        timeout_s: of the whole run; None means none.
        drain_s: time for replicas to exit by themselves after the last commit.
        on_round: called once for each commit, in order.
        on_log: called with the slot and each line of its output.
        on_end: called when a process ended before the run, before it is restarted.

    Raises:
        InputError: not one command for each replica of the spec.
    """

    def __init__(
        self,
        *,
        url: str,
        run_id: str,
        spec: DiLoCoSpec,
        commands: Sequence[ReplicaCommand],
        run_dir: Path,
        places: Sequence[Place] = (),
        elsewhere: int = 0,
        max_restarts: int = 2,
        timeout_s: float | None = None,
        drain_s: float = 60.0,
        on_round: Callable[[Commit], None] = lambda commit: None,
        on_log: Callable[[int, str], None] = lambda slot, line: None,
        on_end: Callable[[SlotEnd], None] = lambda end: None,
    ) -> None:
        if len(commands) + len(places) + elsewhere != spec.replicas:
            raise InputError(f"{len(commands)} replica commands for replicas {spec.replicas}")
        self.url, self.run_id, self.spec, self.run_dir = url, run_id, spec, run_dir
        self.log = OuterLog.open(url, run_id)
        self._max_restarts, self._timeout = max_restarts, timeout_s
        logs = [run_dir / f"slot-{number}.log" for number in range(spec.replicas - elsewhere)]
        here = [LocalCommand(*each) for each in zip(commands, logs, strict=False)]
        self._slots = [
            _Slot(number, place, log)
            for number, (place, log) in enumerate(zip([*here, *places], logs, strict=True))
        ]
        self._drain, self._on_round, self._on_log = drain_s, on_round, on_log
        self._on_end = on_end
        self._elsewhere, self._seen_s, self._look_at = elsewhere, time.monotonic(), 0.0
        self._commits: list[Commit] = []

    def run(self) -> SupervisorReport:
        """Start the replicas, restart those that die, and return when all rounds are committed.

        Children run in sessions of their own and are stopped when this returns or raises;
        no other process is touched.

        Raises:
            InputError: the run's log has another spec, or a replica was given bad input.
            ReplicaFailed: a replica failed in a way that would repeat.
            ReplicasFailed: fewer slots than the quorum are left, or the timeout has passed.
            EmptyRounds: more rounds merged nothing than the spec allows.
        """
        started = time.monotonic()
        there = self.log.spec()
        difference = there and there.difference(self.spec, ignore=FOUND_BY_REPLICAS)
        if difference:
            raise InputError(f"spec.json of run {self.run_id} does not fit: {difference}")
        self.log.store.patience_s = self.spec.store_patience_s
        make_folder(self.run_dir)
        self._read_commits()
        slots = self._slots
        for slot in slots:
            slot.job = slot.place.find(slot.slot)
        try:
            while not self._complete():
                for slot in slots:
                    self._tend(slot)
                self._read_commits()
                if not self._complete():
                    self._check(slots, started)
                    time.sleep(POLL_S)
            self._wait_for_exit(slots)
        finally:
            _stop(slots)
            for slot in slots:
                self._forward(slot)
                if slot.job is not None:
                    slot.job.close()
        return SupervisorReport(
            rounds=tuple(self._commits[1:]),
            restarts={slot.slot: slot.restarts for slot in slots},
            exit_codes={slot.slot: slot.exit_codes for slot in slots},
            state_sha=self._commits[-1].state_sha,
        )

    def _complete(self) -> bool:
        # Round 0 is the initial state, so a complete log has one commit more than rounds.
        return len(self._commits) > self.spec.rounds

    def _read_commits(self) -> None:
        while not self._complete():
            commit = self.log.commit(len(self._commits))
            if commit is None:
                return
            self._commits.append(commit)
            if commit.round:
                self._on_round(commit)
            require_rounds(self.run_id, self.spec, self._commits)

    def _tend(self, slot: _Slot) -> None:
        """Start a slot that should run, and record one that has ended."""
        if slot.job is None:
            if not slot.lost and not self._complete() and time.monotonic() >= slot.restart_at:
                self._start(slot)
            return
        code = slot.job.poll()
        self._forward(slot)
        if code is None:
            return
        self._read_commits()
        if self._complete():  # it ended with the run, not before
            return
        slot.exit_codes.append(code)
        slot.sentence = slot.job.last_sentence()
        slot.job.close()
        slot.job = None
        if code in (EXIT_BAD_INPUT, EXIT_WOULD_REPEAT):
            kind = InputError if code == EXIT_BAD_INPUT else ReplicaFailed
            raise kind(f"{slot.sentence} (replica {slot.slot})")
        used = restarts_used(claims(self.log), slot.slot, self._commits)
        slot.lost = used >= self._max_restarts
        if not slot.lost:
            slot.restarts += 1
            slot.restart_at = time.monotonic() + 0.5 * (used + 1)
        self._on_end(SlotEnd(slot.slot, code, 0 if slot.lost else slot.restarts, slot.sentence))
        then = "not started again" if slot.lost else f"restart {slot.restarts}"
        logger.warning("slot %d ended with %d; %s", slot.slot, code, then)

    def _start(self, slot: _Slot) -> None:
        attempt = claim(self.log, slot.slot, again=slot.restarts > 0)
        env = {
            "COMPOSER_DILOCO_URL": self.url,
            "COMPOSER_DILOCO_RUN": self.run_id,
            "COMPOSER_DILOCO_SLOT": str(slot.slot),
            "COMPOSER_DILOCO_ATTEMPT": str(attempt),
            "COMPOSER_DILOCO_SPEC": self.spec.model_dump_json(),
            **supervised(),
        }
        slot.job = slot.place.launch(slot.slot, attempt, env)

    def _forward(self, slot: _Slot) -> None:
        """Pass a replica's new output lines to ``on_log``."""
        for line in slot.job.lines() if slot.job is not None else ():
            self._on_log(slot.slot, line)

    def _check(self, slots: Sequence[_Slot], started: float) -> None:
        """Raise if the run can no longer complete."""
        done = max(0, len(self._commits) - 1)
        progress = f"{done} of {self.spec.rounds} rounds are committed"
        logs = ", ".join(str(slot.log) for slot in slots)
        left = sum(not slot.lost for slot in slots) + self._elsewhere
        if left < self.spec.min_quorum:
            ends = "; ".join(
                f"slot {slot.slot} ended with {slot.exit_codes[-1]}: {slot.sentence}"
                for slot in slots
                if slot.lost
            )
            raise ReplicasFailed(
                f"{left} replicas are left of min_quorum {self.spec.min_quorum}, {progress} "
                f"({ends}; logs {logs})"
            )
        if self._elsewhere and all(slot.lost for slot in slots):
            self._look_for_others(progress)
        if self._timeout is not None and time.monotonic() - started > self._timeout:
            raise ReplicasFailed(f"time is up after {self._timeout:g} s, {progress} (logs {logs})")

    def _look_for_others(self, progress: str) -> None:
        """Raise if no replica of another machine has beaten for ``round_timeout_s``."""
        now = time.monotonic()
        if now < self._look_at:
            return
        timeout = self.spec.heartbeat_timeout_s
        self._look_at = now + timeout
        if alive_slots(self.log, timeout):
            self._seen_s = now
        elif now - self._seen_s > self.spec.round_timeout_s:
            raise ReplicasFailed(
                f"run {self.run_id}: no replica has been alive for"
                f" {self.spec.round_timeout_s:g} s, {progress}; start some with python -m"
                f" trainers.replica --log {self.url} --run-id {self.run_id}"
            )

    def _wait_for_exit(self, slots: Sequence[_Slot]) -> None:
        """Let the replicas exit by themselves, up to ``drain_s``."""
        deadline = time.monotonic() + self._drain
        for slot in slots:
            while slot.job is not None and slot.job.poll() is None:
                self._forward(slot)
                if time.monotonic() > deadline:
                    break
                time.sleep(POLL_S / 4)


def supervised() -> dict[str, str]:
    """Return the variables by which a child knows this process as its supervisor."""
    return child_of_this(SUPERVISOR)


def end_with_supervisor() -> None:
    """Let the kernel end this process as soon as the supervisor that started it is gone.

    Called by a replica before it loads anything, so that after ``kill -9`` of the supervisor
    nobody writes into the run folder any more. Does nothing without a supervisor.
    """
    end_with_parent(SUPERVISOR)


def _stop(slots: Sequence[_Slot]) -> None:
    """End the attempts of all slots, with SIGTERM first, and record known exit codes."""
    running = [slot.job for slot in slots if slot.job is not None]
    for end in (methodcaller("cancel"), methodcaller("kill")):
        for job in running:
            if job.poll() is None:
                end(job)
        deadline = time.monotonic() + STOP_PATIENCE_S
        while any(job.poll() is None for job in running) and time.monotonic() < deadline:
            time.sleep(POLL_S / 4)
    for slot in slots:
        if slot.job is not None and (code := slot.job.poll()) is not None:
            slot.exit_codes.append(code)
