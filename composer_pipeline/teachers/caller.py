"""One question from its body to an answer in the ledger, or to the reason why there is none."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from composer_pipeline.actions import Action
from composer_pipeline.money import NOTHING, Pico
from composer_pipeline.reports import Progress
from composer_pipeline.teachers.client import Wire
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.values import Call
from composer_pipeline.teachers.outcome import (
    BUSY_STATUSES,
    Outcome,
    TokenPrice,
    read_reply,
    settled_as_it_is,
)
from composer_pipeline.teachers.paid_call import PaidCalls
from composer_pipeline.teachers.questions import Question, Questions
from composer_pipeline.teachers.queue import ByteGate, Unit
from composer_pipeline.teachers.rate_limit import TeacherWindow
from composer_pipeline.teachers.replies import ReplyChecks, judge, names_of
from composer_pipeline.teachers.report import NO_MONEY
from composer_pipeline.teachers.request import anchor, anchored_tokens, worst_case
from composer_pipeline.teachers.teachers import Teacher

if TYPE_CHECKING:
    from composer_pipeline.states.state import TraceState

#: Worst cases left free for recoveries: at least one, which is enough to recover one after
#: the other; HEADROOM_CALLS where that is at most 1 / HEADROOM_SHARE of the ceiling.
HEADROOM_CALLS, HEADROOM_SHARE = 4, 8
#: HEADROOM_SHARE once the ceiling has refused a call: then only the calls under way count, no
#: longer the most expensive one so far, so that smaller ones use what is left.
TIGHT_SHARE = 16
#: Returned for a call that the budget refuses for now.
_LATER = "later"
#: The shortest and longest wait for money or for another process's call, in seconds.
_POLL_S, _LONGEST_POLL_S = 0.05, 0.5
#: How often a waiting call looks whether the process it waits for has died, in seconds.
_ADOPT_EVERY_S = 1.0


class Answers:
    """Actions by state and teacher; ``None`` for a teacher that gave nothing usable."""

    def __init__(self, ledger: Ledger, checks: Callable[[str], ReplyChecks]) -> None:
        self._ledger = ledger
        self._checks = checks
        self._checks_of: dict[str, ReplyChecks] = {}
        self._actions: dict[str, dict[str, Action | None]] = {}
        #: (teacher, day) -> key of a call -> action.
        self._stored: dict[tuple[str, str], dict[str, Action | None]] = {}

    def of(self, state_id: str) -> Mapping[str, Action | None]:
        """Return teacher -> action of those that were asked about a state."""
        return self._actions.get(state_id, {})

    def add(self, call: Call, body: bytes) -> None:
        """Add a reply that has just come."""
        self._set(call, self._judge(body, call.day, call.meta))

    def add_stored(self, key: str, call: Call) -> None:
        """Add a reply that the ledger had before."""
        partition = (call.teacher, call.day)
        if key not in self._stored.get(partition, {}):
            self._stored[partition] = {
                row["key"]: self._judge(row["body"], call.day, row["meta"])
                for row in self._ledger.rows(*partition)
                if row["outcome"] == "billed"
            }
        self._set(call, self._stored[partition].get(key))

    def add_nothing(self, state_id: str, teacher: str) -> None:
        """Add that a teacher was asked, unless it gave an answer."""
        self._actions.setdefault(state_id, {}).setdefault(teacher, None)

    def _set(self, call: Call, action: Action | None) -> None:
        self._actions.setdefault(call.state_id, {})[call.teacher] = action

    def _judge(self, body: bytes, day: str, meta: Mapping[str, Any]) -> Action | None:
        if day not in self._checks_of:
            self._checks_of[day] = self._checks(day)
        return judge(read_reply(body), self._checks_of[day].of(meta), names_of(meta))[2]


class Caller:
    """Gets answers, and keeps what came of each (state, teacher) of a run."""

    def __init__(
        self,
        questions: Questions,
        calls: PaidCalls,
        *,
        ceiling: Pico,
        windows: Mapping[str, TeacherWindow],
        stop: asyncio.Event,
        progress: Progress | None = None,
        answers: Answers | None = None,
        whole_days: bool = False,
    ) -> None:
        self.questions = questions
        #: Once a ceiling has refused a call of one day, nothing is bought for another.
        self.whole_days = whole_days
        self.calls = calls
        self.commits = calls.commits
        self.ceiling = ceiling
        self.windows = windows
        #: Set when nothing more may be asked.
        self.stop = stop
        self.progress = progress
        #: Gets what came back, where a selector needs it.
        self.answers = answers
        self.limits = questions.teacher_set.limits
        self.gate = ByteGate(self.limits.inflight_mib << 20)
        #: Name of an endpoint -> its wire.
        self.wires: Mapping[str, Wire] = {}
        #: Rows of the lake for questions that must not be sent.
        self.refusals: list[dict[str, Any]] = []
        self.skipped: list[dict[str, str]] = []
        self.not_bought: list[dict[str, str]] = []
        #: (teacher, day) -> questions that need not be asked again.
        self.settled: Counter[tuple[str, str]] = Counter()
        #: Why the endpoint refuses the account; empty where it does not.
        self.account = ""
        #: (state_id, teacher) of calls that earlier runs may have paid for.
        self.unknown: set[tuple[str, str]] = set()
        #: Key -> when its latest unknown attempt left, in microseconds since 1970.
        self.unknown_since: dict[str, int] = {}
        #: Scope -> the least worst case that it refused, and what had to be free for it; the
        #: scope that refused first is the first.
        self.too_dear: dict[str, tuple[Pico, Pico]] = {}
        #: Scope -> the day of the call that it refused first.
        self.stopped_at: dict[str, str] = {}
        self._largest = NOTHING
        #: Whether a ceiling has refused a call with room for the most expensive of all.
        self._tight = False
        #: Attempt under way, and key that was lost -> what its recovery needs.
        self._flying: dict[str, Pico] = {}
        self._lost: dict[str, Pico] = {}
        self._adopt_at = 0.0

    # -- one state, one teacher ----------------------------------------------------

    async def answer(
        self,
        state: "TraceState",
        teacher: Teacher,
        unit: Unit | None = None,
        *,
        first_pass: bool = False,
    ) -> bool:
        """Get one answer, or record why there is none. Never raises for a bad answer.

        ``unit`` is the unit of the state, for the prefix-anchored bound. With ``first_pass``,
        return False, to be asked again, where the budget refuses it.
        """
        window = self.windows[teacher.name]
        question = self.questions.build(state, teacher)
        await self.gate.acquire(size := len(question.body))
        try:
            why = await self._answer(question, state, teacher, window, unit, first_pass=first_pass)
        finally:
            self.gate.release(size)
        if why == _LATER:
            return False
        if why:
            self.not_bought.append(
                {"state_id": state.state_id, "teacher": teacher.name, "why": why}
            )
        else:
            self.settled[teacher.name, state.day] += 1
        if self.answers:
            self.answers.add_nothing(state.state_id, teacher.name)
        window.done += 1
        if self.progress:
            done = sum(one.done for one in self.windows.values())
            self.progress(teacher.name, done, sum(one.asked for one in self.windows.values()))
        return True

    async def _answer(
        self,
        question: Question,
        state: "TraceState",
        teacher: Teacher,
        window: TeacherWindow,
        unit: Unit | None,
        *,
        first_pass: bool,
    ) -> str:
        """Return why there is no answer, or an empty string."""
        chained = unit if unit is not None and unit.order == "chain" else None
        if chained:
            bound = anchored_tokens(question.body, chained.anchors.get(state.chain_id))
            if bound is not None:
                amount = worst_case(teacher, question.body, prompt_tokens=bound)
                question = msgspec.structs.replace(
                    question, amount=min(question.amount, amount), unanchored=question.amount
                )
        closed = self._closed(window, question)
        if closed or question.refuse or question.skip:
            stored = await self.commits.do(operations.outcome(question.key, question.call))
            if stored:
                self._count_stored(question, window, stored)
            elif question.refuse:
                window.refused += 1
                self.refusals.append(_refusal_row(question))
            elif question.skip:
                self.skipped.append(
                    {"state_id": state.state_id, "teacher": teacher.name, "why": question.skip}
                )
            else:
                return closed
            return ""
        why, outcome = await self._buy(question, teacher, window, first_pass=first_pass)
        if chained and outcome and outcome.prompt_tokens:
            measured = anchor(question.body, outcome.prompt_tokens)
            if measured:
                chained.anchors[state.chain_id] = measured
        return why

    async def _buy(  # noqa: C901  one loop over the answers of ledger and provider
        self, question: Question, teacher: Teacher, window: TeacherWindow, *, first_pass: bool
    ) -> tuple[str, Outcome | None]:
        """Ask until there is an answer; return why there is none, and the last outcome."""
        tries = sent_us = 0
        # A call that another process lost may still be generated; of its own, this one knows.
        wait = self.limits.recover_after_s
        price = TokenPrice(teacher.max_price.prompt, teacher.max_price.completion)
        recovery = (question.call.state_id, question.call.teacher) in self.unknown
        while True:
            outcome: Outcome | None = None
            if lost_us := self.unknown_since.get(question.key, 0):
                # While the lost call is still being generated, the same bytes are a second
                # purchase; once it has ended, they are a hit of the response cache.
                longest_s = self.limits.recover_after_s
                await self._pause(min(lost_us / 1_000_000 + longest_s - time.time(), longest_s))
            await window.acquire()
            try:
                if why := self._closed(window, question):
                    return why, None
                room = NOTHING if recovery else self._room(question.to_recover)
                admission = await self.calls.reserve(
                    question.key, question.amount, question.call,
                    digest=question.digest, headroom=room, recover_after_s=wait,
                )  # fmt: skip
                if admission.kind == "reserved":
                    tries += 1
                    sent_us = time.time_ns() // 1000
                    self._flying[admission.attempt] = question.to_recover
                    outcome = await self._chat(question, teacher, window, admission.attempt, price)
            finally:
                window.release()
            # The slot is for what is in flight; the bill is written without it.
            if outcome is not None:
                if outcome.kind == "refused" and recovery and tries < self.limits.attempts:
                    # A reply may have been paid for already; one refusal must not hide it.
                    outcome = msgspec.structs.replace(outcome, kind="unbilled", retryable=True)
                if outcome.cut and not self._may_fetch_again(teacher, outcome, tries):
                    outcome = settled_as_it_is(outcome)
                await self._settle(question, teacher, window, admission.attempt, outcome)
                if outcome.kind == "unknown" and not outcome.ended:
                    self.unknown_since[question.key] = sent_us
                if outcome.kind in ("billed", "unpriced", "refused"):
                    self._lost.pop(question.key, None)
                    return "", outcome
                recovery = recovery or outcome.kind == "unknown"
                if recovery:
                    self._lost[question.key] = question.to_recover
                if outcome.ended:
                    wait = 0.0
                if outcome.stop or not outcome.retryable or tries >= self.limits.attempts:
                    window.unknown += outcome.kind == "unknown"
                    return outcome.detail, None
                if outcome.retry_after is None:
                    longest = self.limits.backoff_s * 2 ** (tries - 1)
                    longest = min(self.limits.backoff_cap_s, longest)
                    await self._pause(random.uniform(0, longest))  # noqa: S311
            elif admission.kind == "cached":
                self._count_stored(question, window, admission.outcome)
                return "", None
            elif admission.kind == "quarantined":
                window.stop(f"bound_violation: {admission.why}")
                return f"teacher stopped: {window.stopped}", None
            elif admission.kind == "refused":
                if first_pass:
                    return _LATER, None  # other recoveries make room
                if not recovery and (
                    not self._tight or room > self._room(question.to_recover, alone=True)
                ):
                    if self._tight:  # a larger one is under way; this one may fit after it
                        await self._wait()
                    self._tight = True
                    continue
                self._refused(admission.scope, question, room)
                return f"{NO_MONEY}{admission.scope}", None
            else:  # busy or wait: a call in flight will change that
                await self._wait()

    def _room(self, amount: Pico, *, alone: bool = False) -> Pico:
        """Return what a call must leave free, so that what may be lost can be recovered.

        With ``alone``, as if no other call were under way.
        """
        self._largest = max(self._largest, amount)
        share = TIGHT_SHARE if self._tight else HEADROOM_SHARE
        others = () if alone else self._flying.values()
        most = max([amount, *others, *self._lost.values()]) if self._tight else self._largest
        return Pico(max(most, min(HEADROOM_CALLS * most, self.ceiling // share)))

    def free(self) -> dict[str, Pico]:
        """Return scope -> what may still be spent, of the scopes that every call is charged to."""
        every = self.calls.scopes(Call("", "", "", "", {}))
        shared = [name for name in every if not name.startswith(("teacher:", "partition:"))]
        scopes = self.commits.ledger.status()
        return {
            name: Pico(scope.ceiling - scope.spent - scope.held)
            for name in shared
            if (scope := scopes.get(name)) and scope.ceiling is not None
        }

    def close(self, scope: str, needed: Pico, day: str) -> None:
        """Buy nothing more: a scope has no room to begin a state, for which this had to be free."""
        self.stopped_at.setdefault(scope, day)
        self.too_dear[scope] = NOTHING, needed

    def _refused(self, scope: str, question: Question, room: Pico) -> None:
        """Record the least worst case that a scope refused: only cheaper calls go on."""
        amount = question.amount
        self.stopped_at.setdefault(scope, question.call.day)
        if scope not in self.too_dear or amount < self.too_dear[scope][0]:
            self.too_dear[scope] = amount, Pico(amount + room)

    async def _chat(
        self,
        question: Question,
        teacher: Teacher,
        window: TeacherWindow,
        attempt: str,
        price: TokenPrice,
    ) -> Outcome:
        """Send once, and let the teacher's window learn from the outcome."""
        window.calls += 1
        sent = window.now()
        try:
            outcome = await self.calls.send(self._wire(teacher), attempt, question.body, price)
        except asyncio.CancelledError:
            window.unknown += 1
            raise
        if outcome.kind in ("billed", "unpriced"):
            window.succeeded(outcome.latency_ms)
        elif outcome.kind == "refused":
            window.unreachable = False
        else:
            window.failed(
                outcome.detail,
                busy=outcome.status in BUSY_STATUSES,
                retry_after=outcome.retry_after,
                sent=sent,
            )
            window.unreachable = outcome.unreachable
        return outcome

    async def _settle(
        self,
        question: Question,
        teacher: Teacher,
        window: TeacherWindow,
        attempt: str,
        outcome: Outcome,
    ) -> None:
        """Write an outcome to the ledger, durable on return, and count it; judge it last."""
        within = await self.calls.settle(self._wire(teacher), attempt, outcome)
        self._flying.pop(attempt, None)
        if not within:
            window.stop("bound_violation: a bill passed its worst case")
        window.refused += outcome.kind == "refused"
        if outcome.kind in ("billed", "unpriced"):
            window.bought += 1
            window.recovered += bool(outcome.source_id)
            window.unreadable += not outcome.readable
            window.cost = Pico(window.cost + (outcome.cost or 0))
            window.prompt_tokens += outcome.prompt_tokens
            window.cached_tokens += outcome.cached_tokens
            if self.answers:
                self.answers.add(question.call, outcome.body)
        if outcome.stop == "account" and teacher.endpoint is None:
            self.account = outcome.detail
            for one in self.windows.values():
                one.stopped_account = not one.stopped or one.stopped_account
                one.stop(outcome.detail)
        elif outcome.stop:
            window.stop(outcome.detail)

    def _wire(self, teacher: Teacher) -> Wire:
        return self.wires[self.questions.teacher_set.endpoint_of(teacher).name]

    def _may_fetch_again(self, teacher: Teacher, outcome: Outcome, tries: int) -> bool:
        """Return True if the whole of a cut reply may be had for nothing: once, or as a hit."""
        if outcome.source_id:
            return tries < self.limits.attempts
        endpoint = self.questions.teacher_set.endpoint_of(teacher)
        return tries == 1 and endpoint.api == "openrouter" and endpoint.recovery_cache_s > 0

    def _count_stored(self, question: Question, window: TeacherWindow, outcome: str) -> None:
        """Count a reply that the ledger had before."""
        window.cached += outcome == "billed"
        window.refused += outcome == "refused"
        if self.answers and outcome == "billed":
            self.answers.add_stored(question.key, question.call)

    def _closed(self, window: TeacherWindow, question: Question) -> str:
        """Return why nothing more may be asked here, or an empty string."""
        if self.stop.is_set():
            return "interrupted"
        if self.account:
            return f"the endpoint refuses the account: {self.account}"
        if window.stopped:
            return f"teacher stopped: {window.stopped}"
        scopes = self.calls.scopes(question.call) if self.too_dear else ()
        for name, (least, _) in self.too_dear.items():
            late = self.whole_days and self.stopped_at[name] != question.call.day
            if name in scopes and (late or question.amount >= least):
                return f"{NO_MONEY}{name}"
        return ""

    async def _wait(self) -> None:
        """Wait until some money or a claim may be free."""
        await self._pause(_POLL_S)
        now = asyncio.get_running_loop().time()
        if now >= self._adopt_at:  # the process that is waited for may have died
            self._adopt_at = now + _ADOPT_EVERY_S
            await self.commits.do(operations.adopt_dead())
        await self.commits.changed(_LONGEST_POLL_S)

    async def _pause(self, seconds: float) -> None:
        """Sleep, or wake when the run is stopped."""
        if seconds <= 0:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stop.wait(), seconds)


def _refusal_row(question: Question) -> dict[str, Any]:
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
        **{k: v for k, v in call.meta.items() if k not in ("toolset", "settings")},
    }
