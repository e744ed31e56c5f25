"""What each slot of a run did over time, its totals, and their drawing, read from the log alone.

All times are those at which the store wrote an object, so machines whose clocks differ share one
axis. An attempt begins with its claim and ends with its last heartbeat: both are exact to one
heartbeat interval. No torch.
"""

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

import msgspec

from composer_pipeline import charts
from composer_pipeline.diloco.inputs import read as read_inputs
from composer_pipeline.diloco.log import Commit, OuterLog, contribution_key
from composer_pipeline.diloco.slots import claims
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.diloco.store import Entry, ObjectStore
from composer_pipeline.errors import InputError
from composer_pipeline.files import make_folder, replace
from composer_pipeline.reports import Report

#: A slot trains (or loads), waits for a commit, or has no live replica; with ``overlap_steps`` its
#: change travels beside that, from the end of its round to the commit.
TRAINING, WAITING, DEAD, TRAVELS = "training", "waiting", "dead", "change travels"
#: The fate of a slot's round.
MERGED, REJECTED, LATE, MISSING = "merged", "rejected", "late", "missing"


@dataclass(frozen=True)
class Span:
    """One slot's time between two seconds since the run's start, within one round."""

    slot: int
    kind: str
    start: float
    end: float
    round: int


@dataclass(frozen=True)
class RoundMark:
    """One commit: ``at`` seconds, the bytes of its deltas, and the fate of each slot.

    ``fate`` is ``merged``, ``rejected``, ``late`` (the slot was alive and had not contributed) or
    ``missing`` (it was dead); ``why`` has the reason of rejected ones, ``steps`` the
    optimizer steps of merged ones.
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
    """A run so far; ``seconds`` is the time from the first start to the last commit."""

    replicas: int
    seconds: float
    spans: list[Span]
    rounds: list[RoundMark]
    starts: dict[int, list[float]]


def history(log: OuterLog) -> History:
    """Read a run; raises ``InputError`` where nothing of it is there."""
    spec = log.spec()
    if spec is None:
        raise InputError(f"{log.store.url} holds no DiLoCo run {log.run_id} that has started")
    commits = [commit for commit in log.commits() if commit.round]
    written = {entry.key: entry.last_modified for entry in log.store.list("")}
    last = written.get(f"rounds/{commits[-1].round}/commit.json") if commits else None
    lives = _lives(log, written, spec.heartbeat_timeout_s, last)
    zero = min([*written.values(), *(start for life in lives.values() for start, _ in life)])

    def since(when: dt.datetime) -> float:
        return max(0.0, (when - zero).total_seconds())

    spans: list[Span] = []
    rounds: list[RoundMark] = []
    began = zero
    for commit in commits:
        ended = written.get(f"rounds/{commit.round}/commit.json", began)
        mark = RoundMark(commit.round, since(ended), commit.bytes, commit.tokens, {}, {})
        for slot in range(spec.replicas):
            ready, waits = _offered(written, slot, commit, spec)
            found = list(_spans(lives.get(slot, []), began, ended, waits))
            spans += [Span(slot, k, since(a), since(b), commit.round) for k, a, b in found]
            if spec.overlap_steps and ready is not None:
                spans.append(Span(slot, TRAVELS, since(ready), since(ended), commit.round))
            mark.fate[slot] = _fate(commit, slot, found)
        mark.why.update(commit.why)
        mark.steps.update({part.slot: part.steps for part in commit.included if part.steps})
        rounds.append(mark)
        began = ended
    starts = {slot: [since(start) for start, _ in life] for slot, life in lives.items()}
    return History(spec.replicas, since(began), spans, rounds, starts)


Life = tuple[dt.datetime, dt.datetime]


def _lives(
    log: OuterLog, written: Mapping[str, dt.datetime], timeout_s: float, last: dt.datetime | None
) -> dict[int, list[Life]]:
    """Return when each attempt of a slot began and was last seen.

    An attempt that left by itself has removed its heartbeat: it was last seen when it contributed.
    The newest attempt of a slot lives on if it beat within the timeout before ``last``.
    """
    seen = dict(log.members())
    for round_ in range(1, 1 + max(0, log.last_round())):
        for slot, offer in log.contributions(round_)[0].items():
            when = written.get(contribution_key(round_, slot))
            if when is not None:
                key = slot, offer.attempt
                seen[key] = max(when, seen.get(key, when))
    keys = {(c.slot, c.attempt): f"slots/{c.slot}/{c.attempt}.json" for c in claims(log)}
    began = {who: written[key] for who, key in keys.items() if key in written}
    lives: dict[int, list[Life]] = {}
    for slot, attempt in sorted({*seen, *began}):
        # A replica without a supervisor has no claim: its first heartbeat counts.
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


def _offered(
    written: Mapping[str, dt.datetime], slot: int, commit: Commit, spec: DiLoCoSpec
) -> tuple[dt.datetime | None, dt.datetime | None]:
    """Return when a slot began to send its change to a round, and when it had to wait for it."""
    offered = written.get(contribution_key(commit.round, slot))
    part = next((part for part in commit.included if part.slot == slot), None)
    if offered is None or part is None:
        return offered, offered
    ready = offered - dt.timedelta(seconds=part.upload_s)
    steps = spec.overlap_steps if commit.round < spec.rounds else 0
    return ready, ready + dt.timedelta(seconds=steps * part.seconds)


def _fate(commit: Commit, slot: int, spans: Sequence[tuple[str, dt.datetime, dt.datetime]]) -> str:
    if slot in commit.slots:
        return MERGED
    if slot in commit.why:
        return REJECTED
    return LATE if spans and spans[-1][0] != DEAD else MISSING


@dataclass(frozen=True)
class SlotReport:
    """One slot.

    Attributes:
        slot: 0-based.
        state: ``done``, ``alive``, ``dead`` (no heartbeat for the timeout) or ``free``.
        host: machine of its newest attempt.
        attempts: starts so far.
        seen_s: seconds since its last heartbeat; ``None`` without any.
        merged: rounds with its change.
        rejected: rounds that left its change out.
        tokens: trained tokens that were merged.
        steps: optimizer steps that were merged.
        step_s: seconds of a step in its last merged round; ``None`` if not measured.
        bytes_sent: of the merged changes.
        wait_s: seconds for which it waited for commits.
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
    """A run; ``missing`` are the slots without a live replica in an unfinished run."""

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
    """Return ``run_id``, or the only run in the log."""
    if run_id:
        return run_id
    runs = sorted({entry.key.split("/")[1] for entry in ObjectStore(url, "").list("runs")})
    if len(runs) == 1:
        return runs[0]
    if not runs:
        raise InputError(f"{url} holds no DiLoCo run")
    raise InputError(f"{url} holds the runs {', '.join(runs)}; name one with --run-id")


def overview(url: str, run_id: str) -> RunOverview:
    """Read a run's totals; raises ``InputError`` where there is no such run."""
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
                rejected=sum(slot in commit.why for commit in commits),
                tokens=sum(part.tokens for part in parts),
                steps=sum(part.steps for part in parts),
                step_s=next((part.seconds for part in reversed(parts) if part.seconds), None),
                bytes_sent=sum(part.size for part in parts),
                wait_s=round(sum(_waits(written, slot, commits, spec)), 1),
            )
        )
    return reports


def _state(age: float | None, over: bool, timeout_s: float) -> str:
    if over:
        return "done"
    if age is None:
        return "free"
    return "alive" if age <= timeout_s else "dead"


def _waits(
    written: Mapping[str, dt.datetime], slot: int, commits: Sequence[Commit], spec: DiLoCoSpec
) -> Iterator[float]:
    """Yield the seconds that a slot waited for each round."""
    for commit in commits:
        _, waits = _offered(written, slot, commit, spec)
        ended = written.get(f"rounds/{commit.round}/commit.json")
        if waits is not None and ended is not None:
            yield max(0.0, (ended - waits).total_seconds())


#: The drawing of a run over time in its folder, and its data.
TIMELINE, FIGURES = "report/timeline.svg", "report/timeline.json"
#: Name to (round to value); ``NAME, replica N`` is drawn thin, with the line of ``NAME``.
Losses = Mapping[str, Mapping[int, float]]
#: Fill and opacity of a span, colour of a commit's mark.
_SPANS = {
    TRAINING: (charts.BLUE, 0.6), WAITING: (charts.GREY, 1.0), DEAD: (charts.INK, 0.85),
    TRAVELS: (charts.SOFT, 1.0),
}  # fmt: skip
_FATES = {MERGED: charts.GREEN, REJECTED: charts.RED, LATE: charts.AMBER, MISSING: ""}
Scale = Callable[[float], float]
_ROW, _LEFT, _RIGHT, _TOP, _PANEL = 30, 100, 16, 24, 64


class Figures(msgspec.Struct, frozen=True):
    """The data of a drawing."""

    history: History
    losses: dict[str, dict[int, float]] = {}


def write_timeline(run_dir: Path, run: History, losses: Losses) -> None:
    """Write the drawing and its data into a run folder."""
    make_folder((run_dir / TIMELINE).parent)
    figures = Figures(run, {name: dict(points) for name, points in losses.items()})
    replace(run_dir / FIGURES, msgspec.json.encode(figures).decode())
    replace(run_dir / TIMELINE, timeline(run, losses))


def read_timeline(run_dir: Path) -> str | None:
    """Return the drawing of a run, made again from its data; ``None`` without any."""
    path = run_dir / FIGURES
    if not path.is_file():
        return None
    try:
        figures = msgspec.json.decode(path.read_bytes(), type=Figures)
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is not a timeline of a run: {error}") from None
    return timeline(figures.history, figures.losses)


def timeline(run: History, losses: Losses | None = None, *, width: int = 960) -> str:
    """Return an SVG: a row a slot, the bytes of each round below, and a panel a loss below these.

    ``width`` is in pixels.
    """
    span = max(run.seconds, 1e-9)
    room = width - _LEFT - _RIGHT

    def scale(seconds: float) -> float:
        return _LEFT + seconds / span * room

    parts = _head(run, scale)
    for slot in range(run.replicas):
        parts += _slot(run, slot, scale)
    y = _TOP + run.replicas * _ROW
    parts += _bytes(run.rounds, y, scale)
    y += _PANEL
    of: dict[str, dict[str, Mapping[int, float]]] = {}
    for name, points in (losses or {}).items():
        if points:
            of.setdefault(name.partition(", ")[0], {})[name] = points
    for name, curves in of.items():
        parts += _losses(run.rounds, name, curves, y, scale)
        y += _PANEL
    kinds = [kind for kind in _SPANS if kind != TRAVELS or any(s.kind == kind for s in run.spans)]
    parts += _foot(span, y, scale, kinds)
    return charts.svg(width, y + 52, parts)


def _head(run: History, scale: Scale) -> list[str]:
    """Return the rounds' numbers where they fit, and a vertical line at each commit."""
    bottom = _TOP + run.replicas * _ROW + _PANEL
    parts, free = [], 0.0
    for mark in run.rounds:
        x = scale(mark.at)
        parts.append(charts.path(f"M{x:.1f},{_TOP - 6} V{bottom}", charts.GRID))
        if x - 4 > free:
            parts.append(charts.text(x, 12, f"{mark.round}", anchor="middle"))
            free = x + 20
    return [charts.text(0, 12, "round"), *parts]


def _slot(run: History, slot: int, scale: Scale) -> list[str]:
    y = _TOP + slot * _ROW
    parts = [charts.text(0, y + 14, f"replica {slot}")]
    marks = {mark.round: mark for mark in run.rounds}
    for one in (one for one in run.spans if one.slot == slot):
        mark = marks[one.round]
        fill, opacity = _SPANS[one.kind]
        if one.kind == TRAINING and mark.fate[slot] == REJECTED:
            fill = _FATES[REJECTED]
        why = f": {mark.why[slot]}" if slot in mark.why else ""
        took = f"{one.end - one.start:.1f} s"
        if one.kind == TRAINING and slot in mark.steps:
            took = f"{took}, {mark.steps[slot]} steps"
        label = f"replica {slot}, round {one.round}: {one.kind} {took}; {mark.fate[slot]}{why}"
        x, end = scale(one.start), scale(one.end)
        top, high = (y + 21, 4) if one.kind == TRAVELS else (y, 20)
        parts.append(
            f'<rect class="{one.kind}" x="{x:.1f}" y="{top}" width="{max(0.8, end - x):.1f}"'
            f' height="{high}" fill="{fill}" fill-opacity="{opacity}">'
            f"<title>{escape(label)}</title></rect>"
        )
    for mark in run.rounds:
        if colour := _FATES[mark.fate[slot]]:
            x = scale(mark.at)
            parts.append(
                f'<rect class="{mark.fate[slot]}" x="{x - 2:.1f}" y="{y - 2}" width="3"'
                f' height="24" fill="{colour}"/>'
            )
    for number, start in enumerate(run.starts.get(slot, []), 1):
        if number > 1:
            x = scale(start)
            label = f"replica {slot}: start {number}"
            parts.append(
                f'<path class="start" d="M{x:.1f},{y - 3} l-4,-6 h8 z" fill="{charts.INK}">'
                f"<title>{escape(label)}</title></path>"
            )
    return parts


def _bytes(rounds: Sequence[RoundMark], y: float, scale: Scale) -> list[str]:
    top = max((mark.bytes for mark in rounds), default=0) or 1
    high = _PANEL - 22
    base = y + 8 + high
    parts = [charts.text(0, y + 18, "bytes"), charts.text(0, y + 34, _size(top))]
    for mark in rounds:
        tall = mark.bytes / top * high
        label = f"round {mark.round}: {_size(mark.bytes)}, {mark.tokens:,} tokens"
        parts.append(
            f'<rect class="bytes" x="{scale(mark.at) - 4:.1f}" y="{base - tall:.1f}" width="6"'
            f' height="{max(tall, 0.5):.1f}" fill="{charts.SOFT}"><title>{label}</title></rect>'
        )
    return parts


def _losses(
    rounds: Sequence[RoundMark], name: str, curves: Losses, y: float, scale: Scale
) -> list[str]:
    """Return a panel with one quantity: its mean, and its replicas as thin lines."""
    at = {mark.round: mark.at for mark in rounds}
    known = {
        curve_name: [(at[r], value) for r, value in sorted(values.items()) if r in at]
        for curve_name, values in curves.items()
    }
    every = [value for points in known.values() for _, value in points]
    if not every:
        return []
    marks = charts.ticks(every, 2)
    low, span, high = min(marks), max(marks) - min(marks), _PANEL - 18

    def place(when: float, value: float) -> tuple[float, float]:
        return scale(when), y + 8 + high - (value - low) / span * high

    parts = []
    for value, label in marks.items():
        level = place(0, value)[1]
        parts.append(charts.path(f"M{_LEFT},{level:.1f} H{scale(rounds[-1].at):.1f}", charts.GRID))
        if value in (min(marks), max(marks)):
            parts.append(charts.text(_LEFT - 6, level + 4, label, anchor="end", fill=charts.SOFT))
    parts.append(charts.text(0, y + 36, name))
    for curve_name, points in known.items():
        width = 2.5 if curve_name == name else 1
        placed = [place(*point) for point in points]
        parts.append(
            charts.curve(placed, charts.QUANTITIES.get(name, charts.BLUE), curve_name, width)
        )
    return parts


def _foot(span: float, y: float, scale: Scale, kinds: Iterable[str]) -> list[str]:
    anchors = {0.0: "start", 0.5: "middle", 1.0: "end"}
    parts = [
        charts.text(scale(share * span), y + 22, f"{share * span:.0f} s", anchor=anchor)
        for share, anchor in anchors.items()
    ]
    legend = [(kind, *_SPANS[kind]) for kind in kinds]
    legend += [(fate, colour, 1.0) for fate, colour in _FATES.items() if colour]
    x = _LEFT
    for name, colour, opacity in legend:
        parts.append(
            f'<rect x="{x}" y="{y + 32}" width="12" height="12" fill="{colour}"'
            f' fill-opacity="{opacity}"/>'
        )
        parts.append(charts.text(x + 17, y + 42, "training, loading" if name == TRAINING else name))
        x += 124 if name in (TRAINING, TRAVELS) else 92
    parts.append(f'<path d="M{x + 4},{y + 43} l-4,-8 h8 z" fill="{charts.INK}"/>')
    return [*parts, charts.text(x + 14, y + 42, "started again")]


def _size(count: int) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 10_000 else f"{count:,} B"
