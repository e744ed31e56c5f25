"""The port: what a supervisor asks of a place where replicas run.

Belongs here: the protocols, what every place of other machines starts and how it names a run, and
reading a replica's last sentence. Does not belong here: any one place.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Protocol

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
