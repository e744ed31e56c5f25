"""How fast one teacher is asked: a window that grows on success and shrinks on refusal.

Belongs here: flow control of one teacher in one process, and its running figures. Does not
belong here: money (``replay.ledger``).

Additive increase, multiplicative decrease: OpenRouter sends no rate headers on success, so
only its refusals show the limit.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

START_WINDOW = 8.0
SHRINK = 0.7
#: Failures in a row, retries included, after which a teacher counts as down.
MAX_FAILURES_IN_A_ROW = 8


class Lane:
    """Slots, pauses, stop reason and counters of one teacher."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.window = min(START_WINDOW, float(cap))
        self.stopped = ""
        self.unreachable = False
        self.calls = self.bought = self.recovered = self.cached = self.refused = self.unknown = 0
        self.cost = 0
        self.latencies: list[float] = []
        self.errors: dict[str, int] = {}
        self._inflight = 0
        self._streak = 0
        self._resume_at = 0.0
        self._shrunk_at = 0.0
        self._free = asyncio.Condition()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold one of the window's slots, after any pause is over."""
        async with self._free:
            while self._inflight >= int(self.window):
                await self._free.wait()
            self._inflight += 1
        try:
            while (pause := self._resume_at - time.monotonic()) > 0 and not self.stopped:
                await asyncio.sleep(min(pause, 0.2))
            yield
        finally:
            async with self._free:
                self._inflight -= 1
                self._free.notify_all()

    def succeeded(self, latency_ms: float) -> None:
        """Count a reply and widen the window by one for each window of replies."""
        self._streak = 0
        self.latencies.append(latency_ms)
        self.window = min(float(self.cap), self.window + 1 / max(1.0, self.window))

    def failed(self, detail: str, *, busy: bool, retry_after: float | None) -> None:
        """Count a failure; shrink the window and pause where the teacher asked for it."""
        self.errors[detail] = self.errors.get(detail, 0) + 1
        self._streak += 1
        now = time.monotonic()
        if busy and now - self._shrunk_at > 0.5:  # once for the calls that were in flight
            self.window = max(1.0, self.window * SHRINK)
            self._shrunk_at = now
        if retry_after:
            jitter = random.uniform(1.0, 1.2)  # noqa: S311
            self._resume_at = max(self._resume_at, now + retry_after * jitter)

    @property
    def down(self) -> bool:
        """Whether the teacher failed too often in a row to go on asking."""
        return self._streak >= MAX_FAILURES_IN_A_ROW

    def percentile(self, share: float) -> float | None:
        """Return a latency percentile in milliseconds (nearest rank), or ``None``."""
        if not self.latencies:
            return None
        ordered = sorted(self.latencies)
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)
