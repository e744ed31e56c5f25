"""The port: what a supervisor asks of a place where replicas run.

Belongs here: the protocols, and reading a replica's last sentence. Does not belong here: any one
place.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol


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


def sentence(lines: Iterable[str]) -> str:
    """Return the last ``error: …`` of an output, else its last line that says something."""
    kept = [line.strip() for line in lines]
    said = [line.removeprefix("error: ") for line in kept if line.startswith("error: ")]
    return said[-1] if said else next((line for line in reversed(kept) if line), "no output")[:200]
