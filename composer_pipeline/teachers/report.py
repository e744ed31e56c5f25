"""What a replay did, how far it is, and why teachers stopped."""

from collections import Counter
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from composer_pipeline.errors import ComposerError
from composer_pipeline.money import PICO, Pico
from composer_pipeline.reports import Report
from composer_pipeline.teachers.ledger.values import Scope
from composer_pipeline.teachers.rate_limit import TeacherWindow
from composer_pipeline.teachers.teachers import Endpoint

#: Called with (day, teacher -> questions without an answer) once its partitions are written.
OnDay = Callable[[str, Mapping[str, int]], None]
#: Called with a :class:`Snapshot` about once a second.
OnProgress = Callable[["Snapshot"], None]

#: How the reason of a question that a ceiling refused begins; its scope follows.
NO_MONEY = "budget exhausted: "

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
    """A teacher, or the whole endpoint, could not go on; the run can be resumed."""

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
    again at no cost after a crash. ``spent_usd`` and ``reserved_usd`` (in flight or unknown) are
    of this run's scope. ``by_day_teacher`` describes the partitions written. ``not_bought`` lists
    {state_id, teacher, why}; ``exhausted_scope`` is the scope that refused, or empty; of its
    ``exhausted_ceiling_usd``, ``left_usd`` was free, and the cheapest call that it refused needs
    ``next_call_usd``.
    ``not_asked`` counts pairs that a selector left out. ``sweep`` is what the usage of the run's
    key showed, or empty. ``unreadable`` counts replies that were paid for in this run, cannot be
    read and are kept. ``missing`` counts, by day and teacher, the questions without an answer;
    ``stopped_day`` is the day of the call that the ceiling refused first.
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
    exhausted_ceiling_usd: Decimal | None = None
    missing: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    stopped_day: str = ""

    def problem(self) -> str:
        """Return one sentence if money was spent or calls were made for nothing, or ""."""
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
        """Return what a person needs to know if a ceiling has refused calls, or ""."""
        if not self.exhausted_scope:
            return ""
        missing = sum(sum(teachers.values()) for teachers in self.missing.values())
        whole = len(self.by_day_teacher.keys() - self.missing.keys())
        at = f" at {self.stopped_day}" if self.stopped_day else ""
        ceiling = self.exhausted_ceiling_usd or Decimal(0)
        spent, each = ceiling - (self.left_usd or 0), self.spent_usd / max(self.calls, 1)
        return (
            f"Stopped at the ceiling of {self.exhausted_scope}{at}: {_usd(spent)} of"
            f" {_usd(ceiling)} spent; this run's {self.calls} calls cost {_usd(each)} on average,"
            f" the next could cost up to {_usd(self.next_call_usd or Decimal(0))}, with a lost"
            " reply fetched again, and a call is made only if its worst case fits."
            f" Complete days: {whole}; missing replies: {missing}. What was bought is kept: raise"
            f" the ceiling of {self.exhausted_scope} and run again for the rest."
        )

    def why(self) -> dict[str, str]:
        """Return teacher -> why its last question without a reply has none."""
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
        amounts = {
            name: getattr(self, name) for name in self.__struct_fields__ if name.endswith("_usd")
        }
        return super().to_dict() | {
            name: None if amount is None else float(amount) for name, amount in amounts.items()
        }


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
    """How far a run is. Amounts are of its scope; ``reserved_usd`` includes unknown outcomes."""

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


def snapshot(
    phase: str, elapsed_s: float, windows: Mapping[str, TeacherWindow], scope: Scope
) -> Snapshot:
    """Return a snapshot of the teachers and the run's scope."""
    states = {"closed": "ok", "open": "paused", "half-open": "probing"}
    by_teacher = {
        name: TeacherProgress(
            done=window.done,
            total=window.asked,
            cached=window.cached,
            unknown=window.unknown,
            in_flight=window.inflight,
            window=int(window.size),
            latency_p50_ms=window.percentile(0.5),
            latency_p95_ms=window.percentile(0.95),
            cache_read_share=window.cache_read_share,
            state="stopped" if window.stopped else states[window.breaker],
        )
        for name, window in windows.items()
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
    windows: Mapping[str, TeacherWindow],
    scopes: Mapping[str, Scope],
    too_dear: Mapping[str, tuple[Pico, Pico]],
    **more: Any,
) -> ReplayReport:
    """Add up what the teachers' windows counted; ``more`` are fields of the report."""
    # too_dear: scope that refused -> the least worst case refused, and what had to be free.
    by_teacher = {
        name: TeacherFigures(
            calls=window.calls,
            replies=window.bought + window.cached,
            cached=window.cached,
            refused=window.refused,
            unknown=window.unknown,
            cost_picodollars=window.cost,
            latency_p50_ms=window.percentile(0.5),
            latency_p95_ms=window.percentile(0.95),
            errors=window.errors,
            stopped=window.stopped,
            stopped_scope=_stopped_scope(window, endpoint, name),
            not_asked=states - window.asked,
            cache_read_share=window.cache_read_share,
        )
        for name, window in windows.items()
    }
    parts, scope = by_teacher.values(), scopes[f"run:{run_id}"]
    found = ReplayReport(
        run_id=run_id,
        simulated=endpoint.simulated,
        states=states,
        calls=sum(part.calls for part in parts),
        replies=sum(part.replies for part in parts),
        cached=sum(part.cached for part in parts),
        recovered=sum(window.recovered for window in windows.values()),
        refused=sum(part.refused for part in parts),
        unknown=sum(part.unknown for part in parts),
        spent_usd=scope.spent / PICO,
        reserved_usd=(scope.reserved + scope.unknown) / PICO,
        ceiling_usd=(scope.ceiling or 0) / PICO,
        exhausted_scope=next(iter(too_dear), ""),
        by_teacher=by_teacher,
        not_asked=sum(part.not_asked for part in parts),
        unreadable=sum(window.unreadable for window in windows.values()),
        **more,
    )
    if found.exhausted_scope:
        refusing = scopes[found.exhausted_scope]
        held = refusing.spent + refusing.reserved + refusing.unknown
        found.exhausted_ceiling_usd = (refusing.ceiling or 0) / PICO
        found.left_usd = found.exhausted_ceiling_usd - held / PICO
        found.next_call_usd = too_dear[found.exhausted_scope][1] / PICO
    return found


def _usd(amount: Decimal) -> str:
    return f"${amount:,.2f}" if amount >= 1 else f"${amount.normalize():.3g}"


def _stopped_scope(window: TeacherWindow, endpoint: Endpoint, name: str) -> str:
    if not window.stopped:
        return ""
    return f"endpoint:{endpoint.name}" if window.stopped_account else f"teacher:{name}"
