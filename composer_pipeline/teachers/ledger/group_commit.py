"""Group commit: many calls in flight, few durable transactions.

A durable commit costs the disk one flush, whatever is in it. While one runs, the operations
of all other calls gather, and the next commit takes up to 512 of them.
"""

import asyncio
import contextlib
import threading
from collections import deque
from typing import Any, Self, TypeVar

from composer_pipeline.errors import ComposerError
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.transaction import BEAT_S, Operation
from composer_pipeline.teachers.ledger.values import Admission

T = TypeVar("T")

#: Operations in one transaction.
BATCH = 512
#: Operations in the queue; beyond, an admission waits for a place.
QUEUE = 4096

_Entry = tuple[Operation[Any], "asyncio.Future[Any]"]


class Commits:
    """Group commit for the coroutines of one event loop.

    ``async with Commits(ledger) as commits:``; leaving the block writes everything queued and
    leaves the ledger open. The ledger's own methods may be used meanwhile.

    A queued operation is carried out even if the waiting task is cancelled; but a cancelled
    ``reserve`` gives back what it was granted, since nobody will send it.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        #: How many transactions were written.
        self.commits = 0
        self._queue: deque[_Entry] = deque()
        self._ready = threading.Condition()
        self._closing = False
        self._defect: BaseException | None = None
        self._pending = 0
        self._drained = asyncio.Event()
        # Both wake those that wait, and are cleared at once.
        self._pulse = asyncio.Event()
        self._room = asyncio.Event()
        self._thread = threading.Thread(target=self._write, name="ledger", daemon=True)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Write what is queued, then end the thread."""
        try:
            while self._pending:
                self._drained.clear()
                await self._drained.wait()
        finally:  # where even this was cancelled, the thread still writes the queue
            with self._ready:
                self._closing = True
                self._ready.notify()
            self._thread.join()

    async def do(self, operation: Operation[T]) -> T:
        """Run an operation, durable on return; raise what :meth:`Ledger.do` raises."""
        while operation.admits and self._pending >= QUEUE:
            await self._room.wait()
        future = self._submit(operation)
        try:
            return await future
        except asyncio.CancelledError:
            # Cancelled between the answer and this line: the answer is lost otherwise.
            if future.done() and not future.cancelled() and not future.exception():
                self._give_back(future.result())
            raise

    async def changed(self, timeout_s: float) -> None:
        """Wait until something ended that may have freed money or a key, or for the time given."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._pulse.wait()

    # -- the queue -----------------------------------------------------------------

    def _submit(self, operation: Operation[T]) -> "asyncio.Future[T]":
        if self._closing or self._defect:
            raise ComposerError(f"ledger {self.ledger.name} is closed") from self._defect
        future: asyncio.Future[T] = self._loop.create_future()
        self._pending += 1
        with self._ready:
            self._queue.append((operation, future))
            self._ready.notify()
        return future

    def _give_back(self, result: object) -> None:
        if isinstance(result, Admission) and result.kind == "reserved":
            detail = "cancelled before it was sent"
            future = self._submit(operations.release(result.attempt, detail))
            # Nobody waits for it; where it fails, closing the ledger gives it up.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _resolve(self, entries: list[_Entry], results: list[Any]) -> None:
        """Answer the waiting tasks; runs in the loop."""
        for (operation, future), result in zip(entries, results, strict=True):
            if future.cancelled():
                self._give_back(result)
            elif isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
            if operation.ends:
                self._pulse.set()
        self._pulse.clear()
        self._pending -= len(entries)
        self._room.set()
        self._room.clear()
        if not self._pending:
            self._drained.set()

    def _write(self) -> None:
        """Write batches until closed; runs in the thread."""
        while True:
            with self._ready:
                if not self._queue and not self._closing:
                    self._ready.wait(BEAT_S)  # after which the empty batch is a heartbeat
                entries = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
                if not entries and self._closing:
                    return
            results: list[Any]
            try:
                results = self.ledger.apply([operation for operation, _ in entries])
                self.commits += bool(entries)
            except ComposerError as error:
                results = [type(error)(str(error)) for _ in entries]
            except BaseException as error:  # a defect: nobody may wait for ever
                self._defect = error
                with self._ready:
                    entries += self._queue
                    self._queue.clear()
                self._answer(entries, [error] * len(entries))
                raise
            self._answer(entries, results)

    def _answer(self, entries: list[_Entry], results: list[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed under us
            self._loop.call_soon_threadsafe(self._resolve, entries, results)
