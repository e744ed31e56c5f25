"""What a run is doing, read from its log alone: rounds, slots, waits, bytes, who is missing.

Belongs here: the figures of ``composer-pipeline replicas``. Does not belong here: drawing them.
Nothing is written, so ages are by this machine's clock. No torch.
"""

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from composer_pipeline.diloco.inputs import read as read_inputs
from composer_pipeline.diloco.log import Commit, OuterLog
from composer_pipeline.diloco.slots import claims
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.diloco.store import Entry, ObjectStore
from composer_pipeline.errors import InputError
from composer_pipeline.reports import Report


@dataclass(frozen=True)
class SlotReport:
    """One slot.

    Attributes:
        slot: 0-based.
        state: ``done``, ``alive``, ``dead`` (no sign of life for the time-out) or ``free``.
        host: machine of its newest attempt.
        attempts: starts so far.
        seen_s: seconds since its last sign of life; ``None`` without any.
        merged: rounds with its change.
        rejected: rounds that left its change out.
        tokens: trained tokens that were merged.
        steps: optimizer steps that were merged; 0 in a log of an earlier version.
        step_s: seconds of a step in its last merged round; ``None`` where nobody measured it.
        bytes_sent: of the merged changes.
        wait_s: seconds that its contributions lay there until their rounds were committed.
    """

    slot: int
    state: str
    host: str
    attempts: int
    seen_s: float | None
    merged: int
    rejected: int
    tokens: int
    steps: int
    step_s: float | None
    bytes_sent: int
    wait_s: float


@dataclass(frozen=True)
class RunOverview(Report):
    """A run; ``missing`` are slots that an unfinished run has to do without at the moment."""

    url: str
    run_id: str
    done: int
    rounds: int
    min_quorum: int
    empty: list[int]
    tokens: int
    stored_bytes: int
    state_sha: str
    missing: list[int]
    slots: list[SlotReport] = field(default_factory=list)


def only_run(url: str, run_id: str = "") -> str:
    """Return the run that is meant: the one that was named, or the only one there.

    Raises:
        InputError: there is none, or several and none was named.
    """
    if run_id:
        return run_id
    runs = sorted({entry.key.split("/")[1] for entry in ObjectStore(url, "").list("runs")})
    if len(runs) == 1:
        return runs[0]
    if not runs:
        raise InputError(f"{url} holds no DiLoCo run")
    raise InputError(f"{url} holds the runs {', '.join(runs)}; name one with --run-id")


def overview(url: str, run_id: str) -> RunOverview:
    """Read a run.

    Raises:
        InputError: there is no such run, or its place cannot be read.
        OuterLogError: commits of it are lost.
    """
    log = OuterLog.open(url, run_id)
    there = read_inputs(log)
    spec = log.spec() or (there.agreement if there else None)
    if spec is None:
        raise InputError(f"{url} holds no DiLoCo run {run_id}")
    commits, entries = log.commits(), log.store.list("")
    rounds = [commit for commit in commits if commit.round]
    slots = _slots(log, spec, rounds, entries)
    done = len(rounds)
    away = [] if done >= spec.rounds else [s.slot for s in slots if s.state != "alive"]
    return RunOverview(
        url=url,
        run_id=run_id,
        done=done,
        rounds=spec.rounds,
        min_quorum=spec.min_quorum,
        empty=[commit.round for commit in rounds if commit.empty],
        tokens=sum(commit.tokens for commit in rounds),
        stored_bytes=sum(entry.size for entry in entries),
        state_sha=commits[-1].state_sha if commits else "",
        missing=away,
        slots=slots,
    )


def _slots(
    log: OuterLog, spec: DiLoCoSpec, commits: Sequence[Commit], entries: Sequence[Entry]
) -> list[SlotReport]:
    written = {entry.key: entry.last_modified for entry in entries}
    seen: dict[int, dt.datetime] = {}
    for (slot, _), when in log.members().items():
        seen[slot] = max(when, seen.get(slot, when))
    of = claims(log)
    attempts = Counter(claim.slot for claim in of)
    hosts = {claim.slot: claim.host for claim in of}  # in the order of attempts
    now, over = dt.datetime.now(dt.UTC), len(commits) >= spec.rounds
    reports = []
    for slot in range(spec.replicas):
        parts = [part for commit in commits for part in commit.included if part.slot == slot]
        age = (now - seen[slot]).total_seconds() if slot in seen else None
        reports.append(
            SlotReport(
                slot=slot,
                state=_state(age, over, spec.heartbeat_timeout_s),
                host=hosts.get(slot, ""),
                attempts=attempts[slot],
                seen_s=None if age is None else round(max(0.0, age), 1),
                merged=len(parts),
                rejected=sum(part.slot == slot for c in commits for part in c.rejected),
                tokens=sum(part.tokens for part in parts),
                steps=sum(part.steps for part in parts),
                step_s=next((part.seconds for part in reversed(parts) if part.seconds), None),
                bytes_sent=sum(part.size for part in parts),
                wait_s=round(sum(_waits(written, slot, commits)), 1),
            )
        )
    return reports


def _state(age: float | None, over: bool, timeout_s: float) -> str:
    if over:
        return "done"
    if age is None:
        return "free"
    return "alive" if age <= timeout_s else "dead"


def _waits(written: dict[str, dt.datetime], slot: int, commits: Sequence[Commit]) -> list[float]:
    """Return the seconds between a slot's contribution to each round and its commit."""
    pairs = [
        (written.get(f"rounds/{c.round}/contrib/{slot}.json"), f"rounds/{c.round}/commit.json")
        for c in commits
    ]
    return [
        max(0.0, (written[commit] - offered).total_seconds())
        for offered, commit in pairs
        if offered is not None and commit in written
    ]
