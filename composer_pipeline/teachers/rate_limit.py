"""How fast one teacher is asked: a window that grows on success and shrinks on refusal.

Belongs here: flow control of one teacher in one process, its circuit breaker, and its running
figures. Does not belong here: money (``replay.ledger.ledger``), and what is asked next
(``replay.engine.order``).

Additive increase, multiplicative decrease, after a start that doubles until the first
refusal: OpenRouter sends no rate headers on success, so only its refusals show the limit. A
teacher of whose last twenty calls half or more failed is left alone for a pause (the breaker
is *open*), then asked one call at a time (*half open*) until one succeeds; the other teachers
go on meanwhile.
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

Breaker = Literal["closed", "open", "half-open"]


#: Seconds without any connection after which a run ends that has bought nothing.
PATIENCE_S = 20.0


class Lane:
    """Slots, pauses, breaker, stop reason and counters of one teacher.

    Args:
        cap: most calls in flight.
        breaker_pause_s: seconds between opening the breaker and the first probe.
        clock: seconds of a monotonic clock.
    """

    def __init__(
        self,
        cap: int,
        *,
        breaker_pause_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cap = cap
        self.window = min(START_WINDOW, float(cap))
        self.stopped = ""
        #: Whether it stopped because the endpoint refuses the account, not for itself.
        self.stopped_account = False
        self.breaker: Breaker = "closed"
        self.unreachable = False
        self.asked = self.done = 0
        self.calls = self.bought = self.recovered = self.cached = self.refused = self.unknown = 0
        self.unreadable = 0
        self.cost = NOTHING
        self.prompt_tokens = self.cached_tokens = 0
        self.latencies: deque[float] = deque(maxlen=KEPT_LATENCIES)
        self.errors: dict[str, int] = {}
        self.inflight = 0
        self._clock = clock
        self._breaker_pause_s = breaker_pause_s
        self._results: deque[bool] = deque(maxlen=BREAKER_CALLS)
        self._failed_probes = 0
        self._closing = False
        self._resume_at = 0.0
        self._shrunk_at = 0.0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    # -- slots -------------------------------------------------------------------

    async def acquire(self) -> None:
        """Take one of the window's slots, after any pause is over; first come, first served.

        A stopped teacher's slots are free: who waits has to look why.
        """
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
        """Ask this teacher nothing more in this run; who waits for a slot goes on at once."""
        self.stopped = self.stopped or why
        self._wake()

    def close(self) -> None:
        """Let everybody who waits for a slot go on, to see that the run is over."""
        self._closing = True
        self._wake()

    def _open(self) -> bool:
        if self.stopped or self._closing:
            return True
        if self._clock() < self._resume_at:
            return False
        if self.breaker == "open":
            self.breaker = "half-open"
        return self.inflight < (1 if self.breaker == "half-open" else int(self.window))

    def _wake(self) -> None:
        while self._waiters and self._open():
            waiter = self._waiters.popleft()
            if not waiter.done():
                self.inflight += 1
                waiter.set_result(None)
        pause = self._resume_at - self._clock()
        if self._waiters and pause > 0 and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(pause, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._wake()

    # -- results -----------------------------------------------------------------

    def succeeded(self, latency_ms: float) -> None:
        """Count a reply and widen the window: by one for each window of replies.

        Until the teacher first refuses, by one for each reply, which doubles it in a round trip.
        """
        self.latencies.append(latency_ms)
        self.unreachable = False
        if self.breaker == "closed":
            self._results.append(True)
            step = 1.0 if self._shrunk_at == 0.0 else 1 / max(1.0, self.window)
            self.window = min(float(self.cap), self.window + step)
            return
        # A slow success of before also shows that the teacher is back.
        self.breaker = "closed"
        self._failed_probes = 0
        self._results.clear()

    def failed(
        self, detail: str, *, busy: bool, retry_after: float | None, sent: float = 0.0
    ) -> None:
        """Count a failure; shrink the window and pause where the teacher asked for it.

        Args:
            detail: what went wrong, for the report.
            busy: the teacher was told to slow down.
            retry_after: seconds it asked to be left alone.
            sent: when the call left, on the lane's clock. Of the calls that were in flight
                when the window last shrank, no other shrinks it again.
        """
        self.errors[detail] = self.errors.get(detail, 0) + 1
        now = self._clock()
        if busy and sent >= self._shrunk_at:
            self.window = max(1.0, self.window * SHRINK)
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

    def now(self) -> float:
        """Return the lane's clock, for ``sent`` of :meth:`failed`."""
        return self._clock()

    @property
    def down(self) -> bool:
        """Whether the teacher was given up after failed probes."""
        return self._failed_probes >= MAX_PROBES

    def percentile(self, share: float) -> float | None:
        """Return a latency percentile in milliseconds (nearest rank), or ``None``.

        Of the latest :data:`KEPT_LATENCIES` replies.
        """
        if not self.latencies:
            return None
        ordered = sorted(self.latencies)
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)

    @property
    def cache_read_share(self) -> float | None:
        """Return the share of prompt tokens that the provider read from its prompt cache."""
        if not self.prompt_tokens:
            return None
        return self.cached_tokens / self.prompt_tokens


class Reach:
    """Whether anybody answers at all. A run that reaches nobody ends soon, and says so.

    Args:
        lanes: of all teachers.
        clock: seconds of a monotonic clock.
    """

    def __init__(self, lanes: Sequence[Lane], clock: Callable[[], float] = time.monotonic) -> None:
        self._lanes = lanes
        self._clock = clock
        self._since: float | None = None

    def lost(self) -> bool:
        """Say whether each call of the run failed to connect, for :data:`PATIENCE_S` by now."""
        tried = [lane for lane in self._lanes if lane.calls]
        silent = bool(tried) and all(lane.unreachable and not lane.bought for lane in tried)
        if not silent:
            self._since = None
            return False
        self._since = self._clock() if self._since is None else self._since
        return self._clock() - self._since >= PATIENCE_S

    def why(self) -> str:
        """Return what most calls failed with."""
        errors: Counter[str] = Counter()
        for lane in self._lanes:
            errors.update(lane.errors)
        return errors.most_common(1)[0][0] if errors else "no connection"
