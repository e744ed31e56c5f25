"""The port to a place where replicas run, and what all places on other machines share. No torch."""

import hashlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from composer_pipeline.errors import InputError

logger = logging.getLogger(__name__)

#: Exit code of a job that was cancelled, deleted or lost: restarted like one that was killed.
LOST = -9
#: Seconds between two polls of a job, and for which a failing service is retried.
LOOK_S, PATIENCE_S = 5.0, 300.0
#: Lines of a job's output that are searched for its last sentence.
TAIL_LINES = 50


class Job(Protocol):
    """One started attempt of a slot."""

    def poll(self) -> int | None:
        """Return its exit code, or ``None`` while it waits or runs; ``LOST`` if unknown."""

    def lines(self) -> list[str]:
        """Return the complete lines written since the last call, if the place has them."""

    def last_sentence(self) -> str:
        """Return its last sentence, for a person."""

    def cancel(self) -> None:
        """Ask it to end; returns at once. Does nothing where it has ended."""

    def kill(self) -> None:
        """End it; returns at once. Does nothing where it has ended."""

    def close(self) -> None:
        """Release this process's resources."""


class Place(Protocol):
    """Starts attempts of one slot or of several."""

    def launch(self, slot: int, attempt: int, env: Mapping[str, str]) -> Job:
        """Start a claimed attempt; ``env`` is for children, other machines know the log alone."""

    def find(self, slot: int) -> Job | None:
        """Return a slot's attempt that an earlier supervisor started and that still runs."""


def sentence(lines: Iterable[str]) -> str:
    """Return the last ``error: …`` of an output, else its last line that is not empty."""
    kept = [line.strip() for line in lines]
    errors = [line.removeprefix("error: ") for line in kept if line.startswith("error: ")]
    return (
        errors[-1] if errors else next((line for line in reversed(kept) if line), "no output")[:200]
    )


@dataclass(frozen=True)
class PlaceElsewhere:
    """Starts replicas on other machines, which know the run's log and nothing else.

    Each carries the labels ``composer-run`` (a hash of log and run id), ``composer-slot`` and
    ``composer-attempt``, by which another supervisor finds it again.

    Attributes:
        url: of the run's log, a bucket.
        run_id: the run in it.
        image: in which this project is installed.
        model: folder of the base model in the image, where the run's model is a folder.
        look_s: seconds between two polls of a job.
    """

    url: str
    run_id: str
    image: str = field(kw_only=True)
    model: str = field(default="", kw_only=True)
    look_s: float = field(default=LOOK_S, kw_only=True)
    #: The service's client, made at first use: importing it takes a while.
    _clients: list[Any] = field(default_factory=list, kw_only=True, repr=False, compare=False)

    def command(self, slot: int, attempt: int) -> list[str]:
        """Return the command that joins the run as an attempt of a slot."""
        command = ["python", "-m", "trainers.replica", "--log", self.url]
        command += ["--run-id", self.run_id, "--slot", str(slot), "--attempt", str(attempt)]
        return [*command, *(["--model", self.model] if self.model else [])]

    def labels(self, slot: int, attempt: int | None = None) -> dict[str, str]:
        """Return the labels of a slot's jobs, or of one attempt; they contain no address."""
        run = hashlib.sha256(f"{self.url} {self.run_id}".encode()).hexdigest()[:16]
        labels = {"composer-run": run, "composer-slot": str(slot)}
        return labels if attempt is None else {**labels, "composer-attempt": str(attempt)}


class JobElsewhere(ABC):
    """A job of a service, which counts as lost when it cannot be reached for ``PATIENCE_S``.

    Args:
        look_s: seconds between two polls.
        failures: what the service's client raises where it refuses or cannot be reached.
    """

    #: The service's name of it.
    id: str = ""

    def __init__(self, look_s: float, failures: tuple[type[Exception], ...]) -> None:
        self._look_s, self._failures = look_s, failures
        self._code: int | None = None
        self._look_at = 0.0
        self._answered = time.monotonic()

    @abstractmethod
    def _look(self) -> int | None:
        """Return the service's present exit code; raises the client's failures."""

    @abstractmethod
    def _output(self) -> str:
        """Return the end of the job's output; raises the client's failures."""

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
        """Return nothing: the output of a replica elsewhere is in the run's log."""
        return []

    def last_sentence(self) -> str:
        """Return the last sentence of the job's output, if the service has it."""
        try:
            return sentence(self._output().splitlines())
        except self._failures as error:
            return f"job {self.id}, whose output cannot be read ({type(error).__name__})"

    def kill(self) -> None:
        """Do nothing more than ``cancel``, unless the service has another way."""
        return

    def close(self) -> None:
        """Do nothing."""
        return

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Warn where the block cannot end the job."""
        try:
            yield
        except self._failures as error:
            kind = type(error).__name__
            logger.warning("job %s may go on: it cannot be ended (%s)", self.id, kind)


@contextmanager
def refusals(
    service: str, what: str, failures: tuple[type[Exception], ...], why: Callable[[Exception], str]
) -> Iterator[None]:
    """Turn a client's failures into ``<service> did not <what>: <why>``, without headers."""
    try:
        yield
    except failures as error:
        raise InputError(
            f"{service} did not {what}: {why(error) or type(error).__name__}"
        ) from None


def by_status(error: Exception, reasons: Mapping[int, str]) -> str:
    """Return the reason of an HTTP failure by its status, or an empty string without one."""
    response = getattr(error, "response", None)
    status = getattr(error, "status", None) or getattr(response, "status_code", None)
    return reasons.get(status, f"it answered {status}") if status else ""
