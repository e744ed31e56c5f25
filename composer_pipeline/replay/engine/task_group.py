"""The tasks of a run: started, waited for, drained.

Belongs here: what happens to tasks when a run is stopped or one of them fails. Does not
belong here: what they do.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

Task = asyncio.Task[None]


class Tasks:
    """Tasks that end together. The first that raises stops the others.

    Args:
        stop: set by whoever wants the run to end, and here when a task fails.
        drain_s: how long tasks may go on once ``stop`` is set.
        on_stop: called then, before the wait.
    """

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
        """Wait for all tasks; once stopped, give them the drain time and cancel them.

        Args:
            drivers: tasks that only start others; they are cancelled at once.

        Raises:
            BaseException: what the first failed task raised.
        """
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
