"""A replay: asking each teacher about its states, within the ceiling, and surviving anything.

A run goes: adopt what dead processes left; settle generations whose cost can be asked; send
again, byte for byte, what may have been paid for (the provider's response cache gives the
reply for nothing); then ask round after round, each teacher in the order that its provider's
prompt cache likes; then sweep what is still unknown against the key's usage; then write the
``replies`` partitions from the ledger. Running it again asks nothing twice.
"""

import asyncio
import contextlib
import os
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.money import NOTHING, Pico, ceiling_of
from composer_pipeline.reports import Progress
from composer_pipeline.teachers.caller import Answers, Caller
from composer_pipeline.teachers.catalogue import preflight
from composer_pipeline.teachers.client import RunKey, open_wires
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.group_commit import Commits
from composer_pipeline.teachers.ledger.ledger import Ledger, check_shared, ledger_target
from composer_pipeline.teachers.paid_call import PaidCalls
from composer_pipeline.teachers.questions import Questions
from composer_pipeline.teachers.queue import Queue, Tasks, Unit, units
from composer_pipeline.teachers.rate_limit import Reachability, TeacherWindow
from composer_pipeline.teachers.replies import (
    ReplyChecks,
    ReplyRecords,
    check_ledger,
    forget_unreadable,
    paid_replies_are_safe,
    write_replies,
)
from composer_pipeline.teachers.report import (
    OnDay,
    OnProgress,
    ReplayReport,
    Snapshot,
    replay_report,
    snapshot,
)
from composer_pipeline.teachers.request import worst_case
from composer_pipeline.teachers.selection import DaysFirst, Fits, Selector, by_day
from composer_pipeline.teachers.teachers import Teacher, TeacherSet

if TYPE_CHECKING:
    from composer_pipeline.states.state import TraceState

#: Recoveries at a time, before anything new is asked.
RECOVERIES = 4
#: Seconds between two progress snapshots.
TICK_S = 1.0


def replay(
    lake: Lake,
    teacher_set: TeacherSet | str | os.PathLike[str],
    *,
    max_usd: Decimal | str | int,
    days: Sequence[str] | None = None,
    sessions: Collection[str] | None = None,
    states: Collection[str] | None = None,
    teachers: Sequence[str] | None = None,
    run_id: str | None = None,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    max_states: int | None = None,
    only_on_active_path: bool = False,
    selector: Selector | None = None,
    on_progress: OnProgress | None = None,
    again: str = "",
    budget: str = "",
    days_first: DaysFirst = "",
    on_day: OnDay | None = None,
) -> ReplayReport:
    """Buy the teachers' replies that are missing, and write the lake's partitions.

    Args:
        lake: has the states; gets the ``replies``.
        teacher_set: who is asked, and where: a set, its file, or the name of a shipped one.
        max_usd: ceiling of this run in USD. With a ``run_id`` that was used before, it is
            the ceiling of all runs of that name together.
        days: days of the states; all when ``None``.
        sessions: only states of these sessions; all when ``None``.
        states: only these states, by id; all when ``None``. Excludes ``max_states``.
        teachers: names of teachers; all when ``None``.
        run_id: name of the run's scope; a new one when ``None``.
        ledger: an open ledger, its path or its PostgreSQL URL; in the lake when ``None``.
        progress: called as (teacher, done, total) after each answer.
        max_states: only so many states, failed actions first, then by time.
        only_on_active_path: leave out abandoned branches.
        selector: chooses what to ask, round by round; everything at once when ``None``.
        on_progress: called with a :class:`Snapshot` about once a second and at the end.
        again: ``unreadable`` asks again about replies that were paid for and cannot be read;
            while the provider's response cache has them, that costs nothing.
        budget: a scope that several runs share, ``backfill:…`` or ``root:…``. ``max_usd`` is
            then the ceiling of all of them together: a higher one raises it, a lower one
            changes nothing.
        days_first: ``oldest`` or ``newest``: a day is bought from all its teachers before the
            next one begins, and once a ceiling has refused a call nothing is bought for another
            day. So a ceiling leaves whole days. All at once, which is quicker, when empty.
        on_day: with ``days_first``, called when a day is done and its partitions are written,
            before the next one begins.

    Returns:
        The report. A ceiling that refused calls is in ``exhausted_scope``; teachers that
        could not go on are in ``stopped()``.

    Raises:
        InputError: a ceiling that is not above 0, a missing API key, an unknown teacher, a
            lake without states, a bucket lake without a ledger path.
        ComposerError: the endpoint cannot be reached, refuses the account or makes no key,
            or a signal ended the run. Replies that were paid for are in the ledger and the lake.
        StorageError: a disk is full or read-only. Replies that were paid for are in the ledger;
            running again delivers them without paying.
    """
    teacher_set = TeacherSet.of(teacher_set)
    ceiling = ceiling_of(max_usd, "max_usd")
    if again not in ("", "unreadable"):
        raise InputError(f"--again takes unreadable, not {again!r}")
    budget = check_shared(budget) if budget else ""
    teacher_set.check_keys()
    questions = Questions(
        lake, teacher_set, days=days, sessions=sessions, states=states, teachers=teachers,
        max_states=max_states, only_on_active_path=only_on_active_path,
    )  # fmt: skip
    lake.check_writable()
    named = (sessions, states, max_states) != (None, None, None)
    whole = not (named or only_on_active_path)
    with paid_replies_are_safe():
        records = ReplyRecords(lake, questions, questions.days if whole else [])
        questions.pin_tools()
    opened = ledger if isinstance(ledger, Ledger) else Ledger(ledger_target(lake, ledger))
    try:
        opened.check_clock()
        check_ledger(lake, opened)
        if again:
            forget_unreadable(lake, opened, [t.name for t in questions.teachers], questions.days)
        name = run_id or uuid.uuid4().hex
        questions.catalogue_checks = preflight(lake, teacher_set, questions.teachers)
        opened.do(operations.set_ceiling(f"run:{name}", Decimal(max_usd)))
        if budget:
            shared = opened.do(operations.raise_ceiling(budget, Decimal(max_usd)))
            ceiling = ceiling if shared is None else min(ceiling, shared)
        run = _Run(
            questions,
            opened,
            name,
            ceiling,
            budget=budget,
            progress=progress,
            on_progress=on_progress,
            selector=selector,
            checks=partial(ReplyChecks, lake) if selector else None,
            days_first=days_first,
        )
        controls = {teacher.name: teacher.control for teacher in questions.teachers}
        figures: dict[str, dict[str, dict[str, int]]] = {}

        def write(days: Sequence[str]) -> None:
            with paid_replies_are_safe():
                figures.update(
                    write_replies(lake, opened, list(controls), days, run.caller.refusals, controls)
                )

        def day_done(day: str) -> None:
            write([day])
            if on_day:
                on_day(day, run.missing().get(day, {}))

        run.day_done = day_done
        asyncio.run(run.main(teacher_set.endpoint.key()))
        with paid_replies_are_safe():
            # A day that is done is not written twice, unless the bill made its costs exact.
            write([day for day in questions.selected_days if run.sweep or day not in figures])
            report = run.report(figures)
            failure = run.failure(report)
            cut_short = failure or report.exhausted_scope
            tried = {
                n for n, window in run.windows.items() if not (cut_short or window.unreachable)
            }
            records.write(figures, run.asked, run.caller.settled, report.why(), tried=tried)
    finally:
        if opened is not ledger:
            opened.close()
    if failure:
        raise ComposerError(failure)
    return report


class _Run:
    """One run in one event loop."""

    def __init__(
        self,
        questions: Questions,
        ledger: Ledger,
        run_id: str,
        ceiling: Pico,
        *,
        budget: str = "",
        progress: Progress | None = None,
        on_progress: OnProgress | None = None,
        selector: Selector | None = None,
        checks: Callable[[str], ReplyChecks] | None = None,
        days_first: DaysFirst = "",
    ) -> None:
        self.questions = questions
        self.teacher_set = questions.teacher_set
        self.limits = self.teacher_set.limits
        self.ledger = ledger
        self.run_id = run_id
        self.ceiling = ceiling
        self.budget = budget
        self.progress = progress
        self.selector = selector
        self.days_first = days_first
        #: Called with a day when nothing more will be asked of it, never while a call is under
        #: way; only where ``days_first`` says which is first.
        self.day_done: Callable[[str], None] | None = None
        self.on_progress = on_progress
        self.answers = Answers(ledger, checks) if checks else None
        self.windows = {
            teacher.name: TeacherWindow(
                teacher.concurrency, breaker_pause_s=self.limits.backoff_cap_s
            )
            for teacher in questions.teachers
        }
        self.reach = Reachability(list(self.windows.values()))
        self.interrupted = False
        self.phase = "starting"
        self.sweep = ""
        #: (state_id, teacher) that were asked, or will be.
        self.asked: set[tuple[str, str]] = set()
        self._recovered: set[tuple[str, str]] = set()
        #: (teacher, day) -> states it has answered.
        self._bought: dict[tuple[str, str], set[str]] = {}
        #: (state_id, teacher) -> worst case.
        self._worst: dict[tuple[str, str], Pico] = {}
        days = by_day(questions.states, days_first) if days_first else []
        #: Days that are not done, the next one first.
        self._open_days = [states[0].day for states in days]
        self._began = time.monotonic()

    async def main(self, api_key: str | None) -> None:
        self.stop = asyncio.Event()
        self.tasks = Tasks(self.stop, self.limits.drain_s, self._close_windows)
        loop = asyncio.get_running_loop()
        signals = [signal.SIGTERM, signal.SIGINT]
        if threading.current_thread() is not threading.main_thread():
            signals = []
        for number in signals:
            loop.add_signal_handler(number, self._interrupt, loop, signals)
        ticker = asyncio.ensure_future(self._tick())
        try:
            async with Commits(self.ledger) as commits:
                self.caller = Caller(
                    self.questions,
                    PaidCalls(commits, self.run_id, self.budget),
                    ceiling=self.ceiling,
                    windows=self.windows,
                    stop=self.stop,
                    progress=self.progress,
                    answers=self.answers,
                    whole_days=bool(self.days_first),
                )
                await self._run(api_key, commits)
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
            ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticker
        if self.on_progress:
            self.on_progress(self._snapshot())

    async def _run(self, api_key: str | None, commits: Commits) -> None:
        await commits.do(operations.adopt_dead())
        key = RunKey(
            self.teacher_set,
            self.ledger,
            run_id=self.run_id,
            ceiling=self.ceiling,
            budget=self.budget,
            api_key=api_key,
            stop=self.stop,
        )
        secret = await key.begin()
        try:
            async with open_wires(
                self.teacher_set, self.questions.teachers, secret
            ) as self.caller.wires:
                await self._settle_old(key)
                await self._recover()
                for name, check in self.questions.catalogue_checks.items():
                    if check.stop:
                        self.windows[name].stop(check.stop)
                self.phase = "asking"
                await self._ask()
        except BaseException:
            await key.abandon()
            raise
        self.phase = "reading the bill"
        self.sweep = await key.finish()

    def _interrupt(self, loop: asyncio.AbstractEventLoop, signals: list[signal.Signals]) -> None:
        """Start nothing more; what is in flight may finish. A second signal ends at once."""
        self.interrupted = True
        self.stop.set()
        for number in signals:
            loop.remove_signal_handler(number)

    def _close_windows(self) -> None:
        for window in self.windows.values():
            window.close()

    async def _settle_old(self, key: RunKey) -> None:
        """Settle what earlier runs may have paid for, where its cost is known without asking."""
        self.phase = "recovering"
        caller = self.caller
        wire = caller.wires[self.teacher_set.endpoint.name]
        for attempt, generation in self.ledger.unsettled_generations():
            cost = await wire.generation_cost(generation)
            if cost is not None:
                await caller.commits.do(operations.reconcile(attempt, cost))
        # Read before the sweep: what it settles has still to be fetched.
        caller.unknown = self.ledger.unknown_calls()
        for lost in self.ledger.unknown_attempts():
            since = caller.unknown_since.get(lost.key, 0)
            caller.unknown_since[lost.key] = max(since, lost.created_us)
        await key.sweep_old()

    # -- what is asked -----------------------------------------------------------

    async def _recover(self) -> None:
        """Fetch what earlier runs may have paid for, before anything is bought.

        A recovery that the ceiling refuses is tried again as long as others make room: asked
        beside new calls, one that is lost in its turn would leave no room for any.
        """
        caller = self.caller
        if not caller.unknown:
            return
        gate = asyncio.Semaphore(RECOVERIES)

        async def one(state: "TraceState", teacher: Teacher) -> None:
            async with gate:
                if await caller.answer(state, teacher, first_pass=True):
                    self._recovered.add((state.state_id, teacher.name))

        pairs = [
            (state, teacher)
            for state in self.questions.states
            for teacher in self.questions.teachers
            if (state.state_id, teacher.name) in caller.unknown
        ]
        left, before = pairs, len(pairs) + 1
        while left and len(left) < before:
            for state, teacher in left:
                self.tasks.spawn(one(state, teacher))
            await self.tasks.finish()
            before = len(left)
            left = [(s, t) for s, t in left if (s.state_id, t.name) not in self._recovered]
        for state, teacher in pairs:
            self.windows[teacher.name].asked += (state.state_id, teacher.name) in self._recovered

    async def _ask(self) -> None:
        """Ask everything, or round after round until the selector names nothing new."""
        if self.selector is None or self.answers is None:
            await self._ask_everything()
        else:
            await self._ask_selected(self.selector, self.answers)
        self._finish_days()

    async def _ask_everything(self) -> None:
        days = by_day(self.questions.states, self.days_first)
        rounds = []
        for states in days:
            wanted = {
                teacher.name: {s.state_id for s in states if teacher.asks(s.state_id)}
                for teacher in self.questions.teachers
            }
            rounds.append(wanted)
            for name, ids in wanted.items():
                self.asked.update((state_id, name) for state_id in ids)
        self.asked.update(self._recovered)
        for name, window in self.windows.items():
            window.asked = sum(teacher == name for _, teacher in self.asked)
        for states, wanted in zip(days, rounds, strict=True):
            if self.stop.is_set():
                return
            self._finish_days(states[0].day if states else "")
            await self._ask_round(wanted)

    async def _ask_selected(self, selector: Selector, answers: Answers) -> None:
        states, teachers = self.questions.states, self.questions.teachers
        named = self.asked
        named.update(self._recovered)
        closed = False
        while not self.stop.is_set():
            wanted: dict[str, set[str]] = {teacher.name: set() for teacher in teachers}
            days = set()
            before = len(named)
            short: list[tuple[str, Pico, str]] = []
            fits = (lambda *_: True) if closed else self._fits(short)
            wave = selector.next_wave(states, teachers, answers.of, fits)
            for state, teacher in wave:
                if not teacher.asks(state.state_id):
                    continue
                pair = (state.state_id, teacher.name)
                if pair not in named:
                    self.windows[teacher.name].asked += 1
                    wanted[teacher.name].add(state.state_id)
                    days.add(state.day)
                named.add(pair)
            if short and not wave:
                closed = True  # what is left is counted, and nothing bought
                self.caller.close(*short[0])
                continue
            if len(named) == before:
                return
            self._finish_days(next(day for day in [*self._open_days, *days] if day in days))
            await self._ask_round(wanted)

    def _fits(self, short: list[tuple[str, Pico, str]]) -> Fits:
        """Return :data:`Fits` for a wave; another process may still spend the same money.

        ``short`` gets the scope that has no room, what had to be free there, and the state's day.
        """
        total, free = 0, self.caller.free()

        def fits(state: "TraceState", teachers: Sequence[Teacher]) -> bool:
            nonlocal total
            amounts = [self._may_cost(state, teacher) for teacher in teachers]
            worst = sum(amounts)
            if not worst:  # bought before: free, also where a lowered ceiling is overspent
                return True
            needed = Pico(worst + max(amounts))  # one may be lost and fetched again
            scope = next((name for name, left in free.items() if total + needed > left), "")
            if scope:
                short.append((scope, needed, state.day))
            else:
                total += worst
            return not scope

        return fits

    def _may_cost(self, state: "TraceState", teacher: Teacher) -> Pico:
        """Return the worst case of asking a teacher about a state; nothing where it answered."""
        partition, pair = (teacher.name, state.day), (state.state_id, teacher.name)
        if partition not in self._bought:
            self._bought[partition] = {state_id for state_id, _ in self.ledger.bought(*partition)}
        if pair not in self._worst:
            request = self.questions.request(state, teacher)
            endpoint = self.teacher_set.endpoint_of(teacher)
            # What it answered under other settings is another question.
            answered = state.state_id in self._bought[partition] and self.ledger.replied(
                [request.key(endpoint.name)]
            )
            self._worst[pair] = NOTHING if answered else worst_case(teacher, request.body)
        return self._worst[pair]

    def _finish_days(self, up_to: str = "") -> None:
        """Report the days before one, or all, as done."""
        while self._open_days and self._open_days[0] != up_to and not self.stop.is_set():
            day = self._open_days.pop(0)
            if self.day_done:
                self.day_done(day)

    async def _ask_round(self, wanted: dict[str, set[str]]) -> None:
        """Ask each teacher about its states, in its own order."""
        chains = self.questions.chains()
        drivers = set()
        for teacher in self.questions.teachers:
            ids = wanted[teacher.name]
            cut = units(
                [
                    [
                        state
                        for state in chain
                        if state.state_id in ids
                        and (state.state_id, teacher.name) not in self._recovered
                    ]
                    for chain in chains
                ],
                teacher.prompt_cache,
            )
            drivers.add(self.tasks.spawn(self._drive(teacher, Queue(cut))))
        await self.tasks.finish(drivers)

    async def _drive(self, teacher: Teacher, queue: Queue) -> None:
        """Start a teacher's calls, a bounded number of them at once."""
        # Twice the window's cap: calls that wait for a retry must not hold up the others.
        room = asyncio.Semaphore(2 * teacher.concurrency)

        async def one(state: "TraceState", unit: Unit) -> None:
            try:
                await self.caller.answer(state, teacher, unit)
            finally:
                queue.done(unit)
                room.release()

        while not self.stop.is_set():
            await room.acquire()
            item = await queue.next()
            if item is None:
                return
            self.tasks.spawn(one(*item))
            await asyncio.sleep(0)

    # -- progress and the report -------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self.on_progress:
                self.on_progress(self._snapshot())
            if self.reach.lost():
                self.stop.set()

    def _snapshot(self) -> Snapshot:
        scope = self.ledger.status()[f"run:{self.run_id}"]
        return snapshot(self.phase, time.monotonic() - self._began, self.windows, scope)

    def missing(self) -> dict[str, dict[str, int]]:
        """Return day -> teacher -> questions without an answer, where there are any."""
        day_of = {state.state_id: state.day for state in self.questions.states}
        had = Counter((teacher, day_of[state_id]) for state_id, teacher in self.asked)
        found: dict[str, dict[str, int]] = {}
        for (teacher, day), questions in sorted((had - self.caller.settled).items()):
            found.setdefault(day, {})[teacher] = questions
        return found

    def report(self, figures: dict[str, dict[str, dict[str, int]]]) -> ReplayReport:
        """Return the report; ``figures`` are of the partitions written."""
        return replay_report(
            run_id=self.run_id,
            endpoint=self.teacher_set.endpoint,
            states=len(self.questions.states),
            windows=self.windows,
            scopes=self.ledger.status(),
            too_dear=self.caller.too_dear,
            by_day_teacher=figures,
            skipped=self.caller.skipped,
            not_bought=self.caller.not_bought,
            sweep=self.sweep,
            missing=self.missing(),
            stopped_day=next(iter(self.caller.stopped_at.values()), ""),
        )

    def failure(self, report: ReplayReport) -> str:
        """Return why the run ended early or never began; empty where it did neither."""
        endpoint, refused = self.teacher_set.endpoint, self.caller.account
        if refused:
            check = f"check {endpoint.api_key_env} and its credit"
            return f"endpoint {endpoint.name} refuses the account ({refused}); {check}"
        if self.interrupted:
            asked = sum(window.asked for window in self.windows.values())
            return (
                f"replay was interrupted after {report.replies} of {asked} replies; run it again"
                " to go on"
            )
        down = all(window.unreachable for window in self.windows.values())
        if self.reach.lost() or (report.not_bought and not report.replies and down):
            return (
                f"endpoint {endpoint.url()} cannot be reached ({self.reach.why()}); nothing was"
                " bought, run again when it can"
            )
        return ""
