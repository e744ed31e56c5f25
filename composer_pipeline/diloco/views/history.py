"""What each slot did over time, read from a run's log alone: also after every process is gone.

Belongs here: spans and rounds with their times. Does not belong here: drawing them
(``report.timeline``), and totals (``overview``). Nothing is written. No torch.

All times are those at which the store wrote an object, so machines whose clocks differ have one
axis. A start is its claim, a death its last heartbeat: both are exact to one heartbeat interval.
"""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from composer_pipeline.diloco.log import Commit, OuterLog
from composer_pipeline.diloco.slots import claims
from composer_pipeline.errors import InputError

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
