"""How fast one teacher is asked: a window that grows on success and shrinks on refusal.

Additive increase, multiplicative decrease, after a start that doubles until the first refusal:
OpenRouter sends no rate headers on success, so only its refusals show the limit. A teacher of
whose last twenty calls half or more failed is left alone for a pause (the breaker is *open*),
then asked one call at a time (*half open*) until one succeeds; the other teachers go on.
"""

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Literal

from composer_pipeline.money import NOTHING

START_WINDOW = 8.0
SHRINK = 0.7
#: The breaker opens when so many of the last calls are known and this share of them failed.
BREAKER_CALLS, BREAKER_SHARE = 20, 0.5
#: Failed probes in a row after which a teacher is given up for this run.
MAX_PROBES = 5
#: Latencies kept for the percentiles: the latest, so that memory is bounded.
KEPT_LATENCIES = 4096
#: Seconds without any connection after which a run ends that has bought nothing.
PATIENCE_S = 20.0


class TeacherWindow:
    """Slots, pauses, breaker, stop reason and counters of one teacher."""

    def __init__(
        self,
        cap: int,
        *,
        breaker_pause_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cap = cap
        self.size = min(START_WINDOW, float(cap))
        self.stopped = ""
        #: Whether it stopped because the endpoint refuses the account.
        self.stopped_account = False
        self.breaker: Literal["closed", "open", "half-open"] = "closed"
        self.unreachable = False
        self.asked = self.done = 0
        self.calls = self.bought = self.recovered = self.cached = self.refused = self.unknown = 0
        self.unreadable = 0
        self.cost = NOTHING
        self.prompt_tokens = self.cached_tokens = 0
        self.latencies: deque[float] = deque(maxlen=KEPT_LATENCIES)
        self.errors: dict[str, int] = {}
        self.inflight = 0
        self.now = clock
        self._breaker_pause_s = breaker_pause_s
        self._results: deque[bool] = deque(maxlen=BREAKER_CALLS)
        self._failed_probes = 0
        self._closing = False
        self._resume_at = 0.0
        self._shrunk_at = 0.0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self) -> None:
        """Take one of the window's slots after any pause; first come, first served."""
        # The slots of a stopped teacher are free, so that callers that wait see why.
        if not self._waiters and self._open():
            self.inflight += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._wake()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Give a slot back."""
        self.inflight -= 1
        self._wake()

    def stop(self, why: str) -> None:
        """Ask this teacher nothing more in this run, and release all that wait for a slot."""
        self.stopped = self.stopped or why
        self._wake()

    def close(self) -> None:
        """Release all that wait for a slot, so that they see that the run is over."""
        self._closing = True
        self._wake()

    def _open(self) -> bool:
        if self.stopped or self._closing:
            return True
        if self.now() < self._resume_at:
            return False
        if self.breaker == "open":
            self.breaker = "half-open"
        return self.inflight < (1 if self.breaker == "half-open" else int(self.size))

    def _wake(self) -> None:
        while self._waiters and self._open():
            waiter = self._waiters.popleft()
            if not waiter.done():
                self.inflight += 1
                waiter.set_result(None)
        pause = self._resume_at - self.now()
        if self._waiters and pause > 0 and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(pause, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._wake()

    def succeeded(self, latency_ms: float) -> None:
        """Count a reply and widen the window: by one per window of replies."""
        self.latencies.append(latency_ms)
        self.unreachable = False
        if self.breaker == "closed":
            self._results.append(True)
            # Until the first refusal by one per reply, which doubles it in a round trip.
            step = 1.0 if self._shrunk_at == 0.0 else 1 / max(1.0, self.size)
            self.size = min(float(self.cap), self.size + step)
            return
        # A slow success from before the breaker opened also shows that the teacher is back.
        self.breaker = "closed"
        self._failed_probes = 0
        self._results.clear()

    def failed(
        self, detail: str, *, busy: bool, retry_after: float | None, sent: float = 0.0
    ) -> None:
        """Count a failure; shrink the window if ``busy``, and pause for ``retry_after``."""
        # Of the calls in flight when the window last shrank (by when they were ``sent``), no other
        # shrinks it again.
        self.errors[detail] = self.errors.get(detail, 0) + 1
        now = self.now()
        if busy and sent >= self._shrunk_at:
            self.size = max(1.0, self.size * SHRINK)
            self._shrunk_at = now
        if retry_after:
            # Never earlier than asked; spread, so that the calls do not come back at once.
            jitter = random.uniform(1.0, 1.2)  # noqa: S311
            self._resume_at = max(self._resume_at, now + retry_after * jitter)
        if self.breaker == "half-open":
            self._failed_probes += 1
            if self._failed_probes >= MAX_PROBES:
                self.stop(f"too many failures, the last: {detail}")
            self._trip(now)
        elif self.breaker == "closed":
            self._results.append(False)
            failures = self._results.count(False)
            full = len(self._results) == BREAKER_CALLS
            if full and failures >= BREAKER_SHARE * BREAKER_CALLS:
                self._trip(now)

    def _trip(self, now: float) -> None:
        self.breaker = "open"
        pause = self._breaker_pause_s * random.uniform(0.8, 1.2)  # noqa: S311
        self._resume_at = max(self._resume_at, now + pause)

    def percentile(self, share: float) -> float | None:
        """Return a latency percentile in milliseconds (nearest rank), or ``None``."""
        if not self.latencies:
            return None
        ordered = sorted(self.latencies)
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)

    @property
    def cache_read_share(self) -> float | None:
        """Share of the prompt tokens that the provider read from its prompt cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


class Reachability:
    """Whether any teacher answers at all; a run that reaches none ends soon and says so."""

    def __init__(
        self, windows: Sequence[TeacherWindow], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._windows = windows
        self._clock = clock
        self._since: float | None = None

    def lost(self) -> bool:
        """Return True if each call of the run failed to connect, for :data:`PATIENCE_S`."""
        tried = [one for one in self._windows if one.calls]
        if not tried or any(one.bought or not one.unreachable for one in tried):
            self._since = None
            return False
        now = self._clock()
        if self._since is None:
            self._since = now
        return now - self._since >= PATIENCE_S

    def why(self) -> str:
        """Return what most calls failed with."""
        errors = sum((Counter(one.errors) for one in self._windows), Counter[str]())
        return errors.most_common(1)[0][0] if errors else "no connection"
