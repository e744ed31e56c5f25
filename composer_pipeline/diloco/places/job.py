"""The port: what a supervisor asks of a place where replicas run.

Belongs here: the protocols, what every place of other machines starts and how it names a run, and
reading a replica's last sentence. Does not belong here: any one place.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from composer_pipeline.errors import InputError

#: Exit code of a job that was cancelled, deleted or lost: started again like one that was killed.
LOST = -9


class Job(Protocol):
    """One attempt of a slot that was started."""

    def poll(self) -> int | None:
        """Return its exit code, or ``None`` while it waits or runs; -9 where nobody knows it."""

    def lines(self) -> list[str]:
        """Return the whole lines that it has written since the last call, if the place has them."""

    def said(self) -> str:
        """Return its last sentence, for a person."""

    def cancel(self) -> None:
        """Ask it to end; returns at once. Does nothing where it has ended."""

    def kill(self) -> None:
        """End it; returns at once. Does nothing where it has ended."""

    def close(self) -> None:
        """Let go of what this process holds of it."""


class Place(Protocol):
    """Starts attempts of one slot or of several."""

    def launch(self, slot: int, attempt: int, env: Mapping[str, str]) -> Job:
        """Start an attempt.

        Args:
            slot: 0-based.
            attempt: 1-based, claimed.
            env: what the supervisor tells a child by environment; a place of other machines,
                which know the log alone, takes none of it.

        Raises:
            InputError: the place refuses it; says why.
        """

    def find(self, slot: int) -> Job | None:
        """Return the attempt of a slot that an earlier supervisor started and that still runs."""


def replica_command(url: str, run_id: str, slot: int, attempt: int, model: str) -> list[str]:
    """Return what a machine that knows nothing but the log runs to join as an attempt of a slot.

    Args:
        url: of the run's log.
        run_id: the run in it.
        slot: 0-based.
        attempt: 1-based, claimed.
        model: folder of the base model over there; empty where the run's is not a folder.
    """
    command = ["python", "-m", "trainers.trl.replica", "--log", url, "--run-id", run_id]
    command += ["--slot", str(slot), "--attempt", str(attempt)]
    return [*command, *(["--model", model] if model else [])]


def run_label(url: str, run_id: str) -> str:
    """Return a run's name among the jobs of a service: 16 hexadecimal digits, no address."""
    return hashlib.sha256(f"{url} {run_id}".encode()).hexdigest()[:16]


def sentence(lines: Iterable[str]) -> str:
    """Return the last ``error: …`` of an output, else its last line that says something."""
    kept = [line.strip() for line in lines]
    said = [line.removeprefix("error: ") for line in kept if line.startswith("error: ")]
    return said[-1] if said else next((line for line in reversed(kept) if line), "no output")[:200]


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
