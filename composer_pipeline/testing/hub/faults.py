"""The stand-in's bad days: planned faults, rate limits, and a head that lags.

Does not belong here: the Hub's rightful refusals (``endpoints``).
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Fault:
    """What becomes of one request.

    Attributes:
        status: the answer in place of the right one; 0 answers nothing at all.
        retry_after: seconds that the answer asks to wait.
        done: the request is carried out, and its answer lost.
        message: what a refusal says.
    """

    status: int = 0
    retry_after: float | None = None
    done: bool = False
    message: str = ""


#: A status, a connection that is reset before anything is done, or after.
Planned = int | Literal["reset", "lost"] | Fault


def fault_of(planned: Planned) -> Fault:
    """Return the fault that a short form stands for."""
    if isinstance(planned, Fault):
        return planned
    if isinstance(planned, int):
        return Fault(status=planned)
    return Fault(done=planned == "lost")


@dataclass
class RateLimit:
    """At most so many requests in a window of seconds."""

    requests: int
    window_s: float
    _taken: deque[float] = field(default_factory=deque)

    def ask(self, now: float) -> float:
        """Take a place and return 0, or return the seconds until there is one."""
        while self._taken and self._taken[0] <= now - self.window_s:
            self._taken.popleft()
        if len(self._taken) < self.requests:
            self._taken.append(now)
            return 0.0
        return self._taken[0] + self.window_s - now
