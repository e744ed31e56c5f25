"""What each slot did over time, read from a run's log alone: also after every process is gone.

Belongs here: spans and rounds with their times. Does not belong here: drawing them
(``report.timeline``), and totals (``overview``). Nothing is written. No torch.

All times are those at which the store wrote an object, so machines whose clocks differ have one
axis. A start is its claim, a death its last heartbeat: both are exact to one heartbeat interval.
"""

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from composer_pipeline.diloco.inputs import read as read_inputs
from composer_pipeline.diloco.log import Commit, OuterLog
from composer_pipeline.diloco.slots import claims
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.diloco.store import Entry, ObjectStore
from composer_pipeline.errors import InputError
from composer_pipeline.reports import Report

#: What a slot does: it trains (or loads what it trains), it has contributed and waits for the
#: commit, or nobody has it.
TRAINING, WAITING, DEAD = "training", "waiting", "dead"
#: What became of a slot's round.
MERGED, REJECTED, LATE, MISSING = "merged", "rejected", "late", "missing"


@dataclass(frozen=True)
class Span:
    """One slot's time between two seconds since the run's begin, within one round."""

    slot: int
    kind: str
    start: float
    end: float
    round: int


@dataclass(frozen=True)
class RoundMark:
    """One commit: ``at`` seconds, the bytes of its deltas, and what became of each slot.

    ``fate`` is ``merged``, ``rejected``, ``late`` (the slot was alive and had not contributed) or
    ``missing`` (it was dead); ``why`` has the reason of those that were rejected, ``steps`` the
    optimizer steps of those that were merged.
    """

    round: int
    at: float
    bytes: int
    tokens: int
    fate: dict[int, str]
    why: dict[int, str]
    steps: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """A run so far; ``seconds`` is the time of the last commit after the first start."""

    replicas: int
    seconds: float
    spans: list[Span]
    rounds: list[RoundMark]
    starts: dict[int, list[float]]


def history(log: OuterLog) -> History:
    """Read a run.

    Raises:
        InputError: nothing of it is there, or its store cannot be read.
        OuterLogError: commits of it are lost.
    """
    spec = log.spec()
    if spec is None:
        raise InputError(f"{log.store.url} holds no DiLoCo run {log.run_id} that has begun")
    commits = [commit for commit in log.commits() if commit.round]
    written = {entry.key: entry.last_modified for entry in log.store.list("")}
    lives = _lives(log, written, spec.heartbeat_timeout_s, _at(written, commits))
    zero = min([*written.values(), *(start for life in lives.values() for start, _ in life)])

    def since(when: dt.datetime) -> float:
        return max(0.0, (when - zero).total_seconds())

    spans: list[Span] = []
    rounds: list[RoundMark] = []
    began = zero
    for commit in commits:
        ended = written.get(_commit_key(commit.round), began)
        mark = RoundMark(
            commit.round, since(ended), sum(p.size for p in commit.included), commit.tokens, {}, {}
        )
        for slot in range(spec.replicas):
            offered = written.get(f"rounds/{commit.round}/contrib/{slot}.json")
            found = list(_spans(lives.get(slot, []), began, ended, offered))
            spans += [Span(slot, k, since(a), since(b), commit.round) for k, a, b in found]
            mark.fate[slot] = _fate(commit, slot, found)
        mark.why.update({part.slot: part.reason for part in commit.rejected})
        mark.steps.update({part.slot: part.steps for part in commit.included if part.steps})
        rounds.append(mark)
        began = ended
    starts = {slot: [since(start) for start, _ in life] for slot, life in lives.items()}
    return History(spec.replicas, since(began), spans, rounds, starts)


def _commit_key(round_: int) -> str:
    return f"rounds/{round_}/commit.json"


def _at(written: Mapping[str, dt.datetime], commits: Sequence[Commit]) -> dt.datetime | None:
    """Return when the run's last round was committed."""
    return written.get(_commit_key(commits[-1].round)) if commits else None


Life = tuple[dt.datetime, dt.datetime]


def _lives(
    log: OuterLog, written: Mapping[str, dt.datetime], timeout_s: float, last: dt.datetime | None
) -> dict[int, list[Life]]:
    """Return when each attempt of a slot began and was last seen.

    One that left by itself has taken its heartbeat back: it was last seen when it contributed.
    The newest attempt of a slot lives on where it beat within the time-out before ``last``.
    """
    seen = dict(log.members())
    for round_ in range(1, 1 + max(0, log.last_round())):
        for slot, offer in log.contributions(round_)[0].items():
            when = written.get(f"rounds/{round_}/contrib/{slot}.json")
            if when is not None:
                key = slot, offer.attempt
                seen[key] = max(when, seen.get(key, when))
    began = {(c.slot, c.attempt): written[f"slots/{c.slot}/{c.attempt}.json"] for c in claims(log)}
    lives: dict[int, list[Life]] = {}
    for slot, attempt in sorted({*seen, *began}):
        # A replica that no supervisor started has no claim; its first sign is what is known.
        end = seen.get((slot, attempt), began.get((slot, attempt)))
        assert end is not None
        start = began.get((slot, attempt), min(written.values()) if attempt == 1 else end)
        lives.setdefault(slot, []).append((start, max(start, end)))
    for life in lives.values():
        start, end = life[-1]
        if last is not None and (last - end).total_seconds() <= timeout_s:
            life[-1] = start, max(end, last)
    return lives


def _spans(
    life: Iterable[Life], began: dt.datetime, ended: dt.datetime, offered: dt.datetime | None
) -> Iterable[tuple[str, dt.datetime, dt.datetime]]:
    """Yield what a slot did between two commits: (kind, start, end), without gaps."""
    at = began
    for start, end in life:
        start, end = max(start, at), min(end, ended)
        if end <= start:
            continue
        if start > at:
            yield DEAD, at, start
        turn = end if offered is None else min(max(offered, start), end)
        if turn > start:
            yield TRAINING, start, turn
        if end > turn:
            yield WAITING, turn, end
        at = end
    if ended > at:
        yield DEAD, at, ended


def _fate(commit: Commit, slot: int, spans: Sequence[tuple[str, dt.datetime, dt.datetime]]) -> str:
    if slot in (part.slot for part in commit.included):
        return MERGED
    if slot in commit.judged:
        return REJECTED
    return LATE if spans and spans[-1][0] != DEAD else MISSING


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
