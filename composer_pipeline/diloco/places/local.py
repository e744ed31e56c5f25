"""Replicas as child processes of this machine, in sessions of their own, with output in a file."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from composer_pipeline.diloco.places.job import sentence

#: Environment variable with a replica's supervisor, whose child it is.
SUPERVISOR = "COMPOSER_DILOCO_SUPERVISOR"
#: Bytes at the end of a replica's output that are searched for its last sentence.
TAIL_BYTES = 16_384


@dataclass(frozen=True)
class ReplicaCommand:
    """How to start one slot. ``env`` is added to this process's environment."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None


@dataclass(frozen=True)
class LocalCommand:
    """The place of one slot on this machine; ``log`` gets the output of all its attempts."""

    command: ReplicaCommand
    log: Path

    def launch(self, slot: int, attempt: int, env: Mapping[str, str]) -> "LocalProcess":
        """Start the command with ``env`` in its environment."""
        return LocalProcess(self.command, self.log, env)

    def find(self, slot: int) -> None:
        """Return ``None``: a child does not outlive its supervisor."""


class Output:
    """What a replica of this machine appends to ``log`` from now on."""

    def __init__(self, log: Path) -> None:
        self._log, self._partial = log, b""
        log.touch()
        self._tail = log.open("rb")
        self._tail.seek(0, os.SEEK_END)

    def lines(self) -> list[str]:
        """Return new complete lines of the output."""
        *lines, self._partial = (self._partial + self._tail.read()).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def last_sentence(self) -> str:
        """Return the last sentence of the output."""
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - TAIL_BYTES))
            return sentence(log.read().decode(errors="replace").splitlines())

    def close(self) -> None:
        """Close the output."""
        self._tail.close()


class LocalProcess(Output):
    """A running or ended child process, whose output is appended to ``log``."""

    def __init__(self, command: ReplicaCommand, log: Path, env: Mapping[str, str]) -> None:
        super().__init__(log)
        with log.open("ab") as output:
            # The file, not a pipe, so that a replica never blocks on or dies with this process.
            self._process = subprocess.Popen(
                list(command.argv),
                cwd=command.cwd,
                env={**os.environ, **command.env, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal."""
        return self._process.poll()

    def cancel(self) -> None:
        """Send SIGTERM to the process group."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process group."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        # A child that is not reaped yet keeps its group id from being reused.
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)
