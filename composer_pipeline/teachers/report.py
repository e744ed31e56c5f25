"""What a replay did, and how far it is.

Belongs here: the report, progress snapshots, and why teachers stopped. Does not belong here:
how they are shown (the CLI and the assets).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from composer_pipeline.errors import ComposerError
from composer_pipeline.money import PICO, Pico
from composer_pipeline.reports import Report
from composer_pipeline.teachers.ledger.values import Scope
from composer_pipeline.teachers.rate_limit import Lane
from composer_pipeline.teachers.teachers import Endpoint

#: (day, teacher -> questions without an answer), when a day is done and its partitions written.
OnDay = Callable[[str, Mapping[str, int]], None]
#: A :class:`Snapshot` about once a second.
OnProgress = Callable[["Snapshot"], None]

_REASONS = {
    "model_not_found": "the endpoint does not offer this model",
    "not_found": "the endpoint does not offer this model",
    "HTTP 404": "the endpoint does not offer this model",
    "model_deprecated": "the model was withdrawn",
    "no_endpoints": "no provider offers the model now",
    "payment_required": "the key has no credit for it",
    "privacy_restricted": "no provider of the model accepts these privacy terms",
    "constraint_filtered": "no provider of the model is within max_price and the other terms",
    "region_restricted": "the model is not offered in this region",
}


class TeacherStopped(ComposerError):
    """A teacher could not go on; the others did, and the run can be resumed.

    Attributes:
        teacher: its name.
        scope: what stopped: ``teacher:…``, or ``endpoint:…`` for the whole account.
        code: the provider's code, or ours.
    """

    def __init__(self, teacher: str, scope: str, code: str) -> None:
        self.teacher, self.scope, self.code = teacher, scope, code
        reason = _REASONS.get(code)
        why = f"{code} ({reason})" if reason else code
        super().__init__(
            f"teacher {teacher} stopped in scope {scope}: {why};"
            " what was bought is kept, run again to ask for the rest"
        )


class TeacherFigures(msgspec.Struct):
    """One teacher in a run. ``replies`` are all that exist now, ``cached`` those before.

    ``stopped`` is the code of why nothing more was asked, ``stopped_scope`` what it holds
    for. ``cache_read_share`` is of the prompt tokens of the replies bought in this run.
    """

    calls: int = 0
    replies: int = 0
    cached: int = 0
    refused: int = 0
    unknown: int = 0
    cost_picodollars: int = 0
    latency_p50_ms: float | None = None
    latency_p95_ms: float | None = None
    errors: dict[str, int] = msgspec.field(default_factory=dict)
    stopped: str = ""
    stopped_scope: str = ""
    not_asked: int = 0
    cache_read_share: float | None = None


class ReplayReport(msgspec.Struct, Report):
    """What a replay did.

    ``calls`` are HTTP requests sent for replies; ``replies`` the selected (state, teacher)
    with a paid reply now, ``cached`` those that had one before, ``recovered`` those fetched
    again for nothing after a crash. ``spent_usd`` and ``reserved_usd`` (in flight or
    unknown) are of this run's scope. ``by_day_teacher`` describes the partitions written.
    ``not_bought`` lists {state_id, teacher, why}; ``exhausted_scope`` names the ceiling
    that refused, or is empty; the cheapest call that it refused needs ``next_call_usd`` free, and
    ``left_usd`` was. ``not_asked`` counts pairs that a selector left out. ``sweep``
    says what the usage of the run's key showed, or is empty. ``unreadable`` counts replies
    that were paid for in this run, cannot be read and are kept. ``missing`` counts, by day and
    teacher, the questions without an answer; ``stopped_day`` is the day of the call that the
    ceiling refused first.
    """

    run_id: str
    simulated: bool
    states: int
    calls: int
    replies: int
    cached: int
    recovered: int
    refused: int
    unknown: int
    spent_usd: Decimal
    reserved_usd: Decimal
    ceiling_usd: Decimal
    exhausted_scope: str
    by_teacher: dict[str, TeacherFigures]
    by_day_teacher: dict[str, dict[str, dict[str, int]]]
    skipped: list[dict[str, str]]
    not_bought: list[dict[str, str]]
    not_asked: int = 0
    sweep: str = ""
    unreadable: int = 0
    next_call_usd: Decimal | None = None
    left_usd: Decimal | None = None
    missing: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    stopped_day: str = ""

    def problem(self) -> str:
        """Return one sentence where money was spent or calls were made for nothing, or "".

        For runs that no ceiling and no stopped teacher explains.
        """
        if self.unknown or self.unreadable:
            return (
                f"{self.unknown + self.unreadable} replies may have been paid for and were not"
                f" delivered ({self.unknown} lost, {self.unreadable} unreadable and kept); they"
                " stay charged, and lost ones are fetched by the next run"
            )
        if self.not_bought and not self.replies and not self.refused:
            whys = Counter(pair["why"] for pair in self.not_bought)
            (why, _), *_ = whys.most_common(1)
            return f"no reply came: {len(self.not_bought)} questions were not answered ({why})"
        return ""

    def at_the_ceiling(self) -> str:
        """Return what a person needs to know where a ceiling has refused calls, or ""."""
        if not self.exhausted_scope:
            return ""
        missing = sum(sum(teachers.values()) for teachers in self.missing.values())
        whole = len(self.by_day_teacher.keys() - self.missing.keys())
        at = f" at {self.stopped_day}" if self.stopped_day else ""
        return (
            f"Ceiling reached in {self.exhausted_scope}{at}: {self.left_usd or 0:.6f} USD are left,"
            f" and the next call needs {self.next_call_usd or 0:.6f} USD free."
            f" Whole days: {whole}; replies that are missing: {missing}. What was bought is kept:"
            f" raise the ceiling of {self.exhausted_scope}, and run again for the rest."
        )

    def why(self) -> dict[str, str]:
        """Return teacher -> why a question of it has no reply; the last one's reason."""
        return {pair["teacher"]: pair["why"] for pair in self.not_bought}

    def stopped(self) -> list[TeacherStopped]:
        """Return a typed error for each teacher that was stopped."""
        return [
            TeacherStopped(name, figures.stopped_scope, figures.stopped)
            for name, figures in self.by_teacher.items()
            if figures.stopped
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; USD amounts are numbers for display."""
        data = super().to_dict()
        amounts = ("spent_usd", "reserved_usd", "ceiling_usd", "next_call_usd", "left_usd")
        for name in amounts:
            amount = getattr(self, name)
            data[name] = None if amount is None else float(amount)
        return data


class TeacherProgress(msgspec.Struct, frozen=True):
    """One teacher in a snapshot. ``state``: ``ok``, ``paused``, ``probing`` or ``stopped``."""

    done: int
    total: int
    cached: int
    unknown: int
    in_flight: int
    window: int
    latency_p50_ms: float | None
    latency_p95_ms: float | None
    cache_read_share: float | None
    state: str


class Snapshot(msgspec.Struct, frozen=True):
    """How far a run is. Amounts are of the run's scope; ``reserved_usd`` has unknowns too."""

    phase: str
    elapsed_s: float
    done: int
    total: int
    cached: int
    unknown: int
    settled_usd: Decimal
    reserved_usd: Decimal
    ceiling_usd: Decimal
    by_teacher: dict[str, TeacherProgress]

    def line(self) -> str:
        """Return one line for a log."""
        slowest = max((t.latency_p95_ms or 0.0 for t in self.by_teacher.values()), default=0.0)
        stopped = [name for name, t in self.by_teacher.items() if t.state == "stopped"]
        return (
            f"{self.phase}: {self.done} of {self.total}, {self.cached} cached,"
            f" {self.unknown} unknown; {self.settled_usd:.4f} USD settled,"
            f" {self.reserved_usd:.4f} reserved of {self.ceiling_usd:.4f};"
            f" slowest p95 {slowest:.0f} ms"
            + (f"; stopped: {', '.join(stopped)}" if stopped else "")
        )


def snapshot(phase: str, elapsed_s: float, lanes: Mapping[str, Lane], scope: Scope) -> Snapshot:
    """Build a snapshot from the lanes and the run's scope."""
    by_teacher = {
        name: TeacherProgress(
            done=lane.done,
            total=lane.asked,
            cached=lane.cached,
            unknown=lane.unknown,
            in_flight=lane.inflight,
            window=int(lane.window),
            latency_p50_ms=lane.percentile(0.5),
            latency_p95_ms=lane.percentile(0.95),
            cache_read_share=lane.cache_read_share,
            state=_state(lane),
        )
        for name, lane in lanes.items()
    }
    parts = by_teacher.values()
    return Snapshot(
        phase=phase,
        elapsed_s=elapsed_s,
        done=sum(part.done for part in parts),
        total=sum(part.total for part in parts),
        cached=sum(part.cached for part in parts),
        unknown=sum(part.unknown for part in parts),
        settled_usd=scope.spent / PICO,
        reserved_usd=(scope.reserved + scope.unknown) / PICO,
        ceiling_usd=(scope.ceiling or 0) / PICO,
        by_teacher=by_teacher,
    )


def replay_report(
    *,
    run_id: str,
    endpoint: Endpoint,
    states: int,
    lanes: Mapping[str, Lane],
    scope: Scope,
    by_day_teacher: dict[str, dict[str, dict[str, int]]],
    skipped: list[dict[str, str]],
    not_bought: list[dict[str, str]],
    exhausted: Sequence[str],
    sweep: str,
) -> ReplayReport:
    """Add up what the lanes counted; the arguments are as in :class:`ReplayReport`.

    Args:
        run_id: the run's scope.
        endpoint: where the teachers are.
        states: how many were selected.
        lanes: by teacher.
        scope: the run's sums.
        by_day_teacher: figures of the partitions written.
        skipped: questions that do not fit.
        not_bought: questions without an answer, and why.
        exhausted: scopes that refused, the first first.
        sweep: what the key's usage showed.
    """
    by_teacher = {
        name: _teacher_figures(lane, endpoint.name, name, states - lane.asked)
        for name, lane in lanes.items()
    }
    all_lanes = lanes.values()
    return ReplayReport(
        run_id=run_id,
        simulated=endpoint.simulated,
        states=states,
        calls=sum(lane.calls for lane in all_lanes),
        replies=sum(lane.bought + lane.cached for lane in all_lanes),
        cached=sum(lane.cached for lane in all_lanes),
        recovered=sum(lane.recovered for lane in all_lanes),
        refused=sum(lane.refused for lane in all_lanes),
        unknown=sum(lane.unknown for lane in all_lanes),
        spent_usd=scope.spent / PICO,
        reserved_usd=(scope.reserved + scope.unknown) / PICO,
        ceiling_usd=(scope.ceiling or 0) / PICO,
        exhausted_scope=exhausted[0] if exhausted else "",
        by_teacher=by_teacher,
        by_day_teacher=by_day_teacher,
        skipped=skipped,
        not_bought=not_bought,
        not_asked=sum(part.not_asked for part in by_teacher.values()),
        sweep=sweep,
        unreadable=sum(lane.unreadable for lane in all_lanes),
    )


def at_ceiling(
    report: ReplayReport,
    scopes: Mapping[str, Scope],
    too_dear: Mapping[str, tuple[Pico, Pico]],
) -> ReplayReport:
    """Return the report with what the scope that refused has left, and what a call needs.

    Args:
        report: the report.
        scopes: all scopes, by name.
        too_dear: scope -> the least worst case that it refused, and what had to be free for it.
    """
    if not report.exhausted_scope:
        return report
    scope = scopes[report.exhausted_scope]
    left = (scope.ceiling or 0) - scope.spent - scope.reserved - scope.unknown
    needs = too_dear[report.exhausted_scope][1]
    return msgspec.structs.replace(report, next_call_usd=needs / PICO, left_usd=left / PICO)


def _teacher_figures(lane: Lane, endpoint: str, name: str, not_asked: int) -> TeacherFigures:
    """Return a lane's figures for the report."""
    scope = f"endpoint:{endpoint}" if lane.stopped_account else f"teacher:{name}"
    return TeacherFigures(
        calls=lane.calls,
        replies=lane.bought + lane.cached,
        cached=lane.cached,
        refused=lane.refused,
        unknown=lane.unknown,
        cost_picodollars=lane.cost,
        latency_p50_ms=lane.percentile(0.5),
        latency_p95_ms=lane.percentile(0.95),
        errors=lane.errors,
        stopped=lane.stopped,
        stopped_scope=scope if lane.stopped else "",
        not_asked=not_asked,
        cache_read_share=lane.cache_read_share,
    )


def _state(lane: Lane) -> str:
    if lane.stopped:
        return "stopped"
    return {"closed": "ok", "open": "paused", "half-open": "probing"}[lane.breaker]
