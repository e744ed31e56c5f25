"""In which order a teacher is asked, and how much is under way at once.

The order is the largest lever on cost. If the provider keeps the last prompt of a session
(``chain``), a session's states go one after another, each prompt extending the one before.
If it caches prefixes by itself (``longest_first``), the longest prompt of a chain goes first
and the others, all prefixes of it, follow side by side.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from composer_pipeline.teachers.request import Anchor
from composer_pipeline.teachers.teachers import PromptCache

if TYPE_CHECKING:
    from composer_pipeline.states.state import TraceState


class Unit:
    """States that are asked in one order: one after another, or the first before the rest."""

    def __init__(self, states: "Iterable[TraceState]", *, order: PromptCache) -> None:
        self.left = deque(states)
        self.order = order
        self.queued = False
        #: Chain -> the last prompt whose tokens the teacher counted.
        self.anchors: dict[str, Anchor] = {}
        self._running = 0
        self._began = self._warm = False

    @property
    def ready(self) -> bool:
        """Whether the next state may be asked now."""
        if not self.left:
            return False
        if self.order == "chain":
            return self._running == 0
        return self.order == "none" or self._warm or not self._began

    def take(self) -> "TraceState":
        """Take the next state."""
        self._began = True
        self._running += 1
        return self.left.popleft()

    def give_back(self) -> None:
        """Count one of the states taken as answered."""
        self._running -= 1
        self._warm = True


def units(chains: "Sequence[Sequence[TraceState]]", order: PromptCache) -> "list[Unit]":
    """Cut sessions, each in time order, into units for a teacher's prompt cache."""
    if order == "chain":
        return [Unit(chain, order=order) for chain in chains]
    if order == "none":
        return [Unit((state for chain in chains for state in chain), order=order)]
    cut = []
    for session in chains:
        by_chain: dict[str, list[TraceState]] = {}
        for state in session:
            by_chain.setdefault(state.chain_id, []).append(state)
        for states in by_chain.values():
            longest_first = sorted(states, key=lambda s: (-s.n_messages, s.state_id))
            cut.append(Unit(longest_first, order=order))
    return cut


class Queue:
    """What one teacher is asked in a wave: units under way first, then new ones."""

    def __init__(self, cut: "Iterable[Unit]") -> None:
        self._fresh = deque(unit for unit in cut if unit.left)
        self._ready: deque[Unit] = deque()
        self._running = 0
        self._changed = asyncio.Event()

    async def next(self) -> "tuple[TraceState, Unit] | None":
        """Wait for what may be asked next and return it; ``None`` if nothing is left."""
        while True:
            if self._ready or self._fresh:
                unit = self._ready.popleft() if self._ready else self._fresh.popleft()
                unit.queued = False
                state = unit.take()
                self._running += 1
                if unit.ready:
                    unit.queued = True
                    self._ready.appendleft(unit)
                return state, unit
            if not self._running:
                return None
            self._changed.clear()
            await self._changed.wait()

    def done(self, unit: Unit) -> None:
        """Count a state of a unit as answered."""
        unit.give_back()
        self._running -= 1
        if unit.ready and not unit.queued:
            unit.queued = True
            self._ready.append(unit)
        self._changed.set()


class ByteGate:
    """Limits the bytes held at once; a body that is larger than the limit goes alone."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def acquire(self, size: int) -> None:
        """Hold ``size`` bytes, first come, first served."""
        if not self._waiters and self._fits(size):
            self.held += size
            return
        future = asyncio.get_running_loop().create_future()
        self._waiters.append((size, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.release(size)
            raise

    def _fits(self, size: int) -> bool:
        return self.held == 0 or self.held + size <= self.most

    def release(self, size: int) -> None:
        """Give ``size`` bytes back."""
        self.held -= size
        while self._waiters:
            wanted, future = self._waiters[0]
            if future.cancelled():
                self._waiters.popleft()
            elif self._fits(wanted):
                self._waiters.popleft()
                self.held += wanted
                future.set_result(None)
            else:
                break


Task = asyncio.Task[None]


class Tasks:
    """Tasks that end together: once ``stop`` is set, they may go on for ``drain_s``."""

    def __init__(self, stop: asyncio.Event, drain_s: float, on_stop: Callable[[], None]) -> None:
        self.stop = stop
        self._drain_s = drain_s
        self._on_stop = on_stop
        self._tasks: set[Task] = set()
        self._idle = asyncio.Event()
        self._error: BaseException | None = None

    def spawn(self, job: Coroutine[Any, Any, None]) -> Task:
        """Start a task."""
        task = asyncio.ensure_future(job)
        self._tasks.add(task)
        self._idle.clear()
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: Task) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._idle.set()
        if not task.cancelled() and (error := task.exception()):
            self._error = self._error or error
            self.stop.set()

    async def finish(self, drivers: Iterable[Task] = ()) -> None:
        """Wait for all tasks, or for ``stop`` and the drain time; raise the first failure."""
        if not self._tasks:
            return
        ends = {asyncio.ensure_future(self._idle.wait()), asyncio.ensure_future(self.stop.wait())}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._tasks:
                for driver in drivers:
                    driver.cancel()
                self._on_stop()
                await asyncio.wait(set(self._tasks), timeout=self._drain_s)
        finally:
            left = {*self._tasks, *ends}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        if self._error:
            raise self._error
