"""Asking every teacher about every state, within the ceiling, and surviving anything.

Belongs here: the order of calls, admission, retries, recovery, stopping, and the report.
Does not belong here: what an outcome is (``replay.wire``), the arithmetic of the ceiling
(``replay.ledger``), and what a reply says (``replay.replies``).

A run goes: adopt what dead processes left; settle generations whose cost can be asked;
send again, byte for byte, what may have been paid for (the provider's response cache gives
the reply for nothing); then all chains (session, teacher) side by side, each in order; then
write the ``replies`` partitions from the ledger. Running it again asks nothing twice.
"""

import asyncio
import contextlib
import os
import random
import signal
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.replay.lanes import Lane
from composer_pipeline.replay.ledger import Admission, Ledger, Reply, ledger_path
from composer_pipeline.replay.money import PICO, to_pico
from composer_pipeline.replay.questions import Question, Questions
from composer_pipeline.replay.replies import write_replies
from composer_pipeline.replay.teachers import Teacher, TeacherSet
from composer_pipeline.replay.wire import BUSY_STATUSES, Outcome, Wire

if TYPE_CHECKING:
    from composer_pipeline.traces.load import TraceState

Progress = Callable[[str, int, int], None]

#: Recoveries at a time, before anything new is asked.
RECOVERIES = 4
#: Worst cases left free for recoveries: always one, which is enough to recover one after
#: the other; so many where that is at most this share of the ceiling.
HEADROOM_CALLS, HEADROOM_SHARE = 4, 8
_LATER = "later"
_POLL_S = 0.05
_POLLS_TO_ADOPT = 20


class TeacherFigures(msgspec.Struct):
    """One teacher in a run. ``replies`` are all that exist now, ``cached`` those before."""

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


class ReplayReport(msgspec.Struct):
    """What a replay did.

    ``calls`` are HTTP requests sent for replies; ``replies`` the selected (state, teacher)
    with a paid reply now, ``cached`` those that had one before, ``recovered`` those fetched
    again for nothing after a crash. ``spent_usd`` and ``reserved_usd`` (in flight or
    unknown) are of this run's scope. ``by_day_teacher`` describes the partitions written.
    ``not_bought`` lists {state_id, teacher, why}; ``exhausted_scope`` names the ceiling
    that refused, or is empty.
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; USD amounts are numbers for display."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        for name in ("spent_usd", "reserved_usd", "ceiling_usd"):
            data[name] = float(getattr(self, name))
        return data

    def to_json(self) -> str:
        """Return :meth:`to_dict` as one JSON object."""
        return msgspec.json.encode(self.to_dict()).decode()


def replay(
    lake: Lake,
    teacher_set: TeacherSet,
    *,
    max_usd: Decimal,
    days: Sequence[str] | None = None,
    teachers: Sequence[str] | None = None,
    run_id: str | None = None,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    max_states: int | None = None,
    only_on_active_path: bool = False,
) -> ReplayReport:
    """Buy the teachers' replies that are not there yet, and write the lake's partitions.

    Args:
        lake: has the states; gets the ``replies``.
        teacher_set: who is asked, and where.
        max_usd: ceiling of this run in USD. With a ``run_id`` that was used before, it is
            the ceiling of all runs of that name together.
        days: days of the states; all when ``None``.
        teachers: names of teachers; all when ``None``.
        run_id: name of the run's scope; a new one when ``None``.
        ledger: an open ledger, or its path; in the lake when ``None``.
        progress: called with (teacher, done, total).
        max_states: only so many states, failed actions first, then by time.
        only_on_active_path: leave out abandoned branches.

    Returns:
        The report; a ceiling that refused calls is in ``exhausted_scope``.

    Raises:
        InputError: a ceiling that is not above 0, a missing API key, an unknown teacher, a
            lake without states, a bucket lake without a ledger path.
        ComposerError: the endpoint cannot be reached or refuses the account, or a signal
            ended the run. Replies that were paid for are in the lake all the same.
    """
    if not Decimal(max_usd).is_finite() or to_pico(max_usd) <= 0:
        raise InputError(f"--max-usd must be above 0 USD, not {max_usd}")
    api_key = teacher_set.api_key()
    questions = Questions(
        lake,
        teacher_set,
        days=days,
        teachers=teachers,
        max_states=max_states,
        only_on_active_path=only_on_active_path,
    )
    lake.check_writable()
    questions.pin_tools()
    opened = ledger if isinstance(ledger, Ledger) else Ledger(ledger_path(lake, ledger))
    try:
        name = run_id or uuid.uuid4().hex
        opened.set_ceiling(f"run:{name}", Decimal(max_usd))
        run = _Run(questions, opened, name, to_pico(max_usd), progress)
        asyncio.run(run.main(api_key))
        figures = write_replies(
            lake, opened, [t.name for t in questions.teachers], questions.days, run.refusals
        )
        report = run.report(figures)
    finally:
        if opened is not ledger:
            opened.close()
    run.raise_for_failure(report)
    return report


class _Run:
    """The state of one run in one event loop."""

    def __init__(
        self,
        questions: Questions,
        ledger: Ledger,
        run_id: str,
        ceiling: int,
        progress: Progress | None,
    ) -> None:
        self.questions = questions
        self.teacher_set = questions.teacher_set
        self.limits = self.teacher_set.limits
        self.ledger = ledger
        self.run_id = run_id
        self.ceiling = ceiling
        self.progress = progress
        self.lanes = {teacher.name: Lane(teacher.concurrency) for teacher in questions.teachers}
        self.refusals: list[dict[str, Any]] = []
        self.skipped: list[dict[str, str]] = []
        self.not_bought: list[dict[str, str]] = []
        self.exhausted: list[str] = []
        self.account = ""
        self.interrupted = False
        self.done = 0
        self.total = len(questions.states) * len(questions.teachers)
        self._answered: set[tuple[str, str]] = set()
        self._unknown: set[tuple[str, str]] = set()
        self._largest = 0

    # -- order -------------------------------------------------------------------

    async def main(self, api_key: str | None) -> None:
        self.stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        signals = [signal.SIGTERM, signal.SIGINT]
        if threading.current_thread() is not threading.main_thread():
            signals = []
        for number in signals:
            loop.add_signal_handler(number, self._interrupt, loop, signals)
        try:
            endpoint = self.teacher_set.endpoint
            async with Wire(
                endpoint, api_key, read_timeout_s=self.limits.read_timeout_s
            ) as self.wire:
                self.ledger.adopt_dead()
                for attempt, generation in self.ledger.unsettled_generations():
                    cost = await self.wire.generation_cost(generation)
                    if cost is not None:
                        self.ledger.reconcile(attempt, cost)
                await self._recover()
                chains = self.questions.chains()
                await self._all(
                    self._chain(chain, teacher)
                    for chain in chains
                    for teacher in self.questions.teachers
                )
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def _interrupt(self, loop: asyncio.AbstractEventLoop, signals: list[signal.Signals]) -> None:
        """Admit nothing more; what is in flight may finish. A second signal ends at once."""
        self.interrupted = True
        self.stop.set()
        for number in signals:
            loop.remove_signal_handler(number)

    async def _recover(self) -> None:
        self._unknown = self.ledger.unknown_calls()
        if not self._unknown:
            return
        gate = asyncio.Semaphore(RECOVERIES)

        async def one(state: "TraceState", teacher: Teacher) -> None:
            async with gate:
                await self._answer(state, teacher, first_pass=True)

        await self._all(
            one(state, teacher)
            for state in self.questions.states
            for teacher in self.questions.teachers
            if (state.state_id, teacher.name) in self._unknown
        )

    async def _chain(self, chain: "list[TraceState]", teacher: Teacher) -> None:
        for state in chain:
            if (state.state_id, teacher.name) not in self._answered:
                await self._answer(state, teacher)

    async def _all(self, jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Run jobs to their end; once stopped, give them the drain time and cancel."""
        tasks = [asyncio.ensure_future(job) for job in jobs]
        if not tasks:
            return
        stopped = asyncio.ensure_future(self.stop.wait())
        try:
            pending = set(tasks)
            while pending and not self.stop.is_set():
                done, _ = await asyncio.wait(
                    {*pending, stopped}, return_when=asyncio.FIRST_COMPLETED
                )
                pending -= done
                if any(task.exception() for task in done if task is not stopped):
                    self.stop.set()
            if pending:
                _, pending = await asyncio.wait(pending, timeout=self.limits.drain_s)
        finally:
            stopped.cancel()
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    # -- one state, one teacher ----------------------------------------------------

    async def _answer(
        self, state: "TraceState", teacher: Teacher, *, first_pass: bool = False
    ) -> None:
        """Get one answer, or record why there is none. Never raises for a bad answer."""
        await asyncio.sleep(0)  # a chain whose answers are all there lets others run
        try:
            await self._answer_once(state, teacher, first_pass=first_pass)
        finally:
            if (state.state_id, teacher.name) in self._answered:
                self.done += 1
                if self.progress:
                    self.progress(teacher.name, self.done, self.total)

    async def _answer_once(
        self, state: "TraceState", teacher: Teacher, *, first_pass: bool
    ) -> None:
        lane = self.lanes[teacher.name]
        question = self.questions.build(state, teacher)
        where = {"state_id": state.state_id, "teacher": teacher.name}
        self._answered.add((state.state_id, teacher.name))
        if known := self.ledger.outcome(question.key, question.call):
            lane.cached += known == "billed"
            lane.refused += known == "refused"
            return
        if question.refuse:
            lane.refused += 1
            self.refusals.append(self._refusal_row(question))
            return
        if question.skip:
            self.skipped.append(where | {"why": question.skip})
            return
        why = await self._buy(question, lane, first_pass=first_pass)
        if why == _LATER:
            self._answered.discard((state.state_id, teacher.name))
        elif why:
            self.not_bought.append(where | {"why": why})

    async def _buy(self, question: Question, lane: Lane, *, first_pass: bool) -> str:
        """Ask until there is an answer; return why there is none, or an empty string."""
        scopes = self._scopes(question)
        tries = waits = 0
        was_unknown = (question.call.state_id, question.call.teacher) in self._unknown
        while True:
            if why := self._closed(lane, scopes):
                return why
            outcome: Outcome | None = None
            async with lane.slot():
                if why := self._closed(lane, scopes):
                    return why
                admission = self._admit(question, scopes, recovery=was_unknown)
                if admission.kind == "reserved":
                    tries += 1
                    outcome = await self._send(question, lane, admission.attempt)
            if admission.kind == "cached":
                lane.cached += 1
                return ""
            if admission.kind == "refused" and first_pass:
                return _LATER  # other recoveries make room
            if admission.kind == "refused":
                self.exhausted.append(admission.scope)
                return f"budget exhausted: {admission.scope}"
            if outcome is None:  # busy or wait: a call in flight will change that
                waits += 1
                if waits % _POLLS_TO_ADOPT == 0:
                    self.ledger.adopt_dead()  # unless its process has died meanwhile
                await self._pause(_POLL_S)
                continue
            if outcome.kind in ("billed", "refused"):
                return ""
            was_unknown = was_unknown or outcome.kind == "unknown"
            if outcome.stop or not outcome.retryable or tries >= self.limits.attempts:
                lane.unknown += outcome.kind == "unknown"
                return outcome.detail
            if outcome.retry_after is None:
                ceiling = min(self.limits.backoff_cap_s, self.limits.backoff_s * 2 ** (tries - 1))
                await self._pause(random.uniform(0, ceiling))  # noqa: S311

    def _admit(self, question: Question, scopes: list[str], *, recovery: bool) -> Admission:
        self._largest = max(self._largest, question.amount)
        generous = min(HEADROOM_CALLS * self._largest, self.ceiling // HEADROOM_SHARE)
        headroom = max(self._largest, generous)
        return self.ledger.reserve(
            question.key,
            question.amount,
            scopes,
            question.call,
            headroom=0 if recovery else headroom,
        )

    async def _send(self, question: Question, lane: Lane, attempt: str) -> Outcome:
        """Send once and write the outcome to the ledger before anything else happens."""
        self.ledger.mark_sent(attempt)
        lane.calls += 1
        try:
            outcome = await self.wire.chat(question.body)
            cost = outcome.cost
            if outcome.source_id:
                cost = await self.wire.generation_cost(outcome.source_id)
        except asyncio.CancelledError:
            self.ledger.mark_unknown(attempt, "cancelled")
            lane.unknown += 1
            raise
        if outcome.kind == "billed":
            reply = Reply(
                "billed",
                outcome.status,
                outcome.body,
                cost,
                outcome.generation_id,
                outcome.latency_ms,
                "recovered" if outcome.source_id else "bought",
            )
            billed = outcome.cost or 0
            held = self.ledger.settle(attempt, billed, reply, source=outcome.source_id)
            lane.bought += 1
            lane.recovered += bool(outcome.source_id)
            lane.cost += billed
            lane.succeeded(outcome.latency_ms)
            if not held:
                lane.stopped = "bound_violation: a bill passed its worst case"
            return outcome
        if outcome.kind == "refused":
            refusal = Reply(
                "refused", outcome.status, outcome.body, 0, outcome.generation_id,
                outcome.latency_ms, "bought", outcome.detail,
            )  # fmt: skip
            self.ledger.release(attempt, outcome.detail, refusal)
            lane.refused += 1
            return outcome
        if outcome.kind == "unbilled":
            self.ledger.release(attempt, outcome.detail)
        else:
            self.ledger.mark_unknown(
                attempt,
                outcome.detail,
                raw=outcome.body or None,
                generation=outcome.generation_id if outcome.status == 200 else "",
            )
        busy = outcome.status in BUSY_STATUSES
        lane.failed(outcome.detail, busy=busy, retry_after=outcome.retry_after)
        lane.unreachable = outcome.unreachable
        if outcome.stop == "account":
            self.account = outcome.detail
        elif outcome.stop == "teacher":
            lane.stopped = outcome.detail
        elif lane.down:
            lane.stopped = f"too many failures, the last: {outcome.detail}"
        return outcome

    def _closed(self, lane: Lane, scopes: list[str]) -> str:
        """Return why nothing more may be asked here, or an empty string."""
        if self.stop.is_set():
            return "interrupted"
        if self.account:
            return f"the endpoint refuses the account: {self.account}"
        if lane.stopped:
            return f"teacher stopped: {lane.stopped}"
        refused = [scope for scope in self.exhausted if scope in scopes]
        return f"budget exhausted: {refused[0]}" if refused else ""

    def _scopes(self, question: Question) -> list[str]:
        today = datetime.now(UTC).strftime("%Y-%m-%d")
        return [
            f"run:{self.run_id}",
            f"day:{today}",
            f"month:{today[:7]}",
            f"teacher:{question.call.teacher}",
            f"partition:{question.call.day}",
            "global",
        ]

    async def _pause(self, seconds: float) -> None:
        """Sleep, or wake when the run is stopped."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stop.wait(), seconds)

    def _refusal_row(self, question: Question) -> dict[str, Any]:
        call = question.call
        return {
            "teacher": call.teacher,
            "day": call.day,
            "state_id": call.state_id,
            "session_id": call.session_id,
            "request_hash": question.key,
            "status": "refused",
            "detail": question.refuse,
            "cost_picodollars": 0,
            **{k: v for k, v in call.meta.items() if k != "toolset"},
        }

    # -- the report ----------------------------------------------------------------

    def report(self, figures: dict[str, dict[str, dict[str, int]]]) -> ReplayReport:
        scope = self.ledger.status()[f"run:{self.run_id}"]
        by_teacher = {
            name: TeacherFigures(
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
            )
            for name, lane in self.lanes.items()
        }
        lanes = self.lanes.values()
        return ReplayReport(
            run_id=self.run_id,
            simulated=self.teacher_set.endpoint.simulated,
            states=len(self.questions.states),
            calls=sum(lane.calls for lane in lanes),
            replies=sum(lane.bought + lane.cached for lane in lanes),
            cached=sum(lane.cached for lane in lanes),
            recovered=sum(lane.recovered for lane in lanes),
            refused=sum(lane.refused for lane in lanes),
            unknown=sum(lane.unknown for lane in lanes),
            spent_usd=scope.spent / PICO,
            reserved_usd=(scope.reserved + scope.unknown) / PICO,
            ceiling_usd=(scope.ceiling or 0) / PICO,
            exhausted_scope=self.exhausted[0] if self.exhausted else "",
            by_teacher=by_teacher,
            by_day_teacher=figures,
            skipped=self.skipped,
            not_bought=self.not_bought,
        )

    def raise_for_failure(self, report: ReplayReport) -> None:
        """Raise where the run did not end by itself, or never began.

        Raises:
            ComposerError: see :func:`replay`.
        """
        if self.account:
            raise ComposerError(
                f"endpoint {self.teacher_set.endpoint.name} refuses the account"
                f" ({self.account}); check {self.teacher_set.endpoint.api_key_env} and its credit"
            )
        if self.interrupted:
            raise ComposerError(
                f"replay was interrupted after {report.replies} of {self.total} replies;"
                " run it again to go on"
            )
        down = all(lane.unreachable for lane in self.lanes.values())
        if report.not_bought and not report.replies and down:
            url = self.teacher_set.endpoint.url()
            raise ComposerError(f"endpoint {url} cannot be reached")
