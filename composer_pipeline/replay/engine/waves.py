"""What is asked in which wave: recoveries first, then everything, or what a selector names.

Belongs here: which (state, teacher) is started when, and how many at once. Does not belong
here: one call's life (``replay.engine.caller``), the order within a wave
(``replay.engine.order``), and the run as a whole (``replay.engine.run``).
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from composer_pipeline.replay.engine.answers import Answered
from composer_pipeline.replay.engine.caller import Caller
from composer_pipeline.replay.engine.order import Queue, Unit, units
from composer_pipeline.replay.engine.task_group import Tasks
from composer_pipeline.replay.selection import DaysFirst, Selector, by_day
from composer_pipeline.replay.teachers import Teacher

if TYPE_CHECKING:
    from composer_pipeline.trace_states import TraceState

#: Recoveries at a time, before anything new is asked.
RECOVERIES = 4


class Waves:
    """Starts the calls of one run.

    Args:
        caller: gets the answers.
        tasks: where the calls run.
        stop: set when nothing more may be asked.
        selector: chooses what to ask, wave by wave; everything at once when ``None``.
        answered: what came back, for the selector.
        days_first: which day is asked to its end before the next one begins.
        day_done: called with a day when nothing more will be asked of it; only where
            ``days_first`` says which is first, and never while a call is under way.
    """

    def __init__(
        self,
        caller: Caller,
        tasks: Tasks,
        stop: asyncio.Event,
        selector: Selector | None = None,
        answered: Answered | None = None,
        *,
        days_first: DaysFirst = "",
        day_done: Callable[[str], None] | None = None,
    ) -> None:
        self.caller = caller
        self.questions = caller.questions
        self.lanes = caller.lanes
        self.tasks = tasks
        self.stop = stop
        self.selector = selector
        self.answered = answered
        self._days_first = days_first
        self._day_done = day_done
        days = by_day(self.questions.states, days_first) if days_first else []
        #: Days that are not done, the next one first.
        self._open_days = [states[0].day for states in days]
        #: (state_id, teacher) that were asked, or will be.
        self.asked: set[tuple[str, str]] = set()
        self._recovered: set[tuple[str, str]] = set()

    async def recover(self) -> None:
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
            self.lanes[teacher.name].asked += (state.state_id, teacher.name) in self._recovered

    async def ask(self) -> None:
        """Ask everything, or wave after wave until the selector names nothing new."""
        if self.selector is None or self.answered is None:
            await self._ask_everything()
        else:
            await self._ask_selected(self.selector, self.answered)
        self._finish_days()

    async def _ask_everything(self) -> None:
        days = by_day(self.questions.states, self._days_first)
        waves = []
        for states in days:
            wave = {
                teacher.name: {s.state_id for s in states if teacher.asks(s.state_id)}
                for teacher in self.questions.teachers
            }
            waves.append(wave)
            for name, ids in wave.items():
                self.asked.update((state_id, name) for state_id in ids)
        self.asked.update(self._recovered)
        for name, lane in self.lanes.items():
            lane.asked = sum(who == name for _, who in self.asked)
        for states, wave in zip(days, waves, strict=True):
            if self.stop.is_set():
                return
            self._finish_days(states[0].day if states else "")
            await self._wave(wave)

    async def _ask_selected(self, selector: Selector, answered: Answered) -> None:
        states, teachers = self.questions.states, self.questions.teachers
        named = self.asked
        named.update(self._recovered)
        while not self.stop.is_set():
            wanted: dict[str, set[str]] = {teacher.name: set() for teacher in teachers}
            days = set()
            before = len(named)
            for state, teacher in selector.next_wave(states, teachers, answered.of):
                if not teacher.asks(state.state_id):
                    continue
                pair = (state.state_id, teacher.name)
                if pair not in named:
                    self.lanes[teacher.name].asked += 1
                    wanted[teacher.name].add(state.state_id)
                    days.add(state.day)
                named.add(pair)
            if len(named) == before:
                return
            self._finish_days(next(day for day in [*self._open_days, *days] if day in days))
            await self._wave(wanted)

    def _finish_days(self, up_to: str = "") -> None:
        """Tell the days before one, or all, that nothing more is asked of them."""
        while self._open_days and self._open_days[0] != up_to and not self.stop.is_set():
            day = self._open_days.pop(0)
            if self._day_done:
                self._day_done(day)

    async def _wave(self, wanted: dict[str, set[str]]) -> None:
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
        while not self.stop.is_set():
            await room.acquire()
            item = await queue.next()
            if item is None:
                return
            self.tasks.spawn(self._one(teacher, queue, room, *item))
            await asyncio.sleep(0)

    async def _one(
        self,
        teacher: Teacher,
        queue: Queue,
        room: asyncio.Semaphore,
        state: "TraceState",
        unit: Unit,
    ) -> None:
        try:
            await self.caller.answer(state, teacher, unit)
        finally:
            queue.done(unit)
            room.release()
