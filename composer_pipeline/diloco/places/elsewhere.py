"""What jobs of every service have in common: looks now and then, patience, refusals in a sentence.

Belongs here: when a job is looked at, when it counts as lost, and how a client's failure is told.
Does not belong here: any one service (``hf_jobs``, ``kubernetes_jobs``, ``modal_sandboxes``).
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from composer_pipeline.diloco.places.port import LOST
from composer_pipeline.errors import InputError

logger = logging.getLogger(__name__)

#: Seconds between two looks at a job, and how long a service that fails is asked again.
LOOK_S, PATIENCE_S = 5.0, 300.0
#: Lines of a job's output that are searched for its sentence.
TAIL_LINES = 50


class JobElsewhere:
    """A job of a service. One that cannot be reached for ``PATIENCE_S`` has lost it.

    Args:
        look_s: seconds between two looks at it.
        failures: what the service's client raises where it refuses or cannot be reached.
    """

    def __init__(self, look_s: float, failures: tuple[type[Exception], ...]) -> None:
        self._look_s, self._failures = look_s, failures
        self._code: int | None = None
        self._look_at = 0.0
        self._answered = time.monotonic()

    @property
    def id(self) -> str:
        """The service's name of it."""
        raise NotImplementedError

    def _look(self) -> int | None:
        """Return the exit code as the service has it now; raises the client's failures."""
        raise NotImplementedError

    def poll(self) -> int | None:
        """Return the exit code; asks the service at most every ``look_s`` seconds."""
        now = time.monotonic()
        if self._code is None and now >= self._look_at:
            self._look_at = now + self._look_s
            try:
                self._code = self._look()
                self._answered = now
            except self._failures as error:
                if now - self._answered >= PATIENCE_S:
                    logger.warning("job %s is given up: %s", self.id, type(error).__name__)
                    self._code = LOST
        return self._code

    def lines(self) -> list[str]:
        """Return nothing: what a replica elsewhere says lies in the run's log."""
        return []

    def kill(self) -> None:
        """Do nothing more than ``cancel`` did, where the service has no other way."""

    def close(self) -> None:
        """Do nothing."""

    def unread(self, error: Exception) -> str:
        """Return what is said of a job whose output cannot be had."""
        return f"job {self.id}, whose output cannot be read ({type(error).__name__})"

    def goes_on(self, error: Exception) -> None:
        """Warn of a job that could not be ended."""
        logger.warning("job %s may go on: it cannot be ended (%s)", self.id, type(error).__name__)


@contextmanager
def refusals(
    service: str, what: str, failures: tuple[type[Exception], ...], why: Callable[[Exception], str]
) -> Iterator[None]:
    """Turn a client's failures into a sentence, without the request's headers.

    Args:
        service: as a person calls it.
        what: was to be done, after "did not".
        failures: what the client raises.
        why: says the reason of one; empty: its kind.

    Raises:
        InputError: in place of them.
    """
    try:
        yield
    except failures as error:
        raise InputError(
            f"{service} did not {what}: {why(error) or type(error).__name__}"
        ) from None
