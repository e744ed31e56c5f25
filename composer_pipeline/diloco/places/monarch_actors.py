"""Replicas in actor processes of Monarch, on this machine. Linux.

Messages start a replica and ask it to leave; tensors go through the outer log. Tested with
``torchmonarch`` 0.7.0 on one machine; not run on several.

Monarch tells of a dead process some seconds late, so its end is read from the kernel. It ends an
actor's process when this one dies, even by SIGKILL.
"""

import asyncio
import contextlib
import logging
import os
import runpy
import select
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import monarch.actor
from monarch.actor import Actor, ActorError, concurrent_endpoint, endpoint, this_host

from composer_pipeline.diloco.heartbeat import GracefulExit
from composer_pipeline.diloco.places.job import LOST
from composer_pipeline.diloco.places.local import SUPERVISOR, Output, ReplicaCommand
from composer_pipeline.errors import ComposerError

logger = logging.getLogger(__name__)

#: Seconds for an actor's process to start, and to stop.
SPAWN_S, STOP_S = 120.0, 5.0
#: What Monarch raises of a dead actor (a RuntimeError), of a failed message and of a late answer.
_FAILURES = (ActorError, RuntimeError, TimeoutError)


@dataclass(frozen=True)
class MonarchActors:
    """The place of one slot or of several, in an actor process for each attempt.

    Args:
        command: ``python -m MODULE ARGUMENTS…``; the module runs in the actor.
        logs: folder that gets ``slot-<n>.log`` with the output of all attempts.
    """

    command: ReplicaCommand
    logs: Path

    def launch(self, slot: int, attempt: int, env: Mapping[str, str]) -> "MonarchActor":
        """Start an actor process that runs the command with ``env`` in its environment."""
        # The default ends this process when an actor's dies.
        monarch.actor.unhandled_fault_hook = lambda failure: logger.info("%s", failure)
        own = {name: value for name, value in env.items() if name != SUPERVISOR}
        return MonarchActor(self.command, self.logs / f"slot-{slot}.log", own)

    def find(self, slot: int) -> None:
        """Return ``None``: an actor's process does not outlive its supervisor."""


class MonarchActor(Output):
    """A running or ended replica in an actor process of its own."""

    def __init__(self, command: ReplicaCommand, log: Path, env: Mapping[str, str]) -> None:
        super().__init__(log)
        self._procs = this_host().spawn_procs(per_host={"procs": 1})
        self._host = self._procs.spawn("replica", Host)
        try:
            pid = self._host.pid.call_one().get(timeout=SPAWN_S)
        except _FAILURES as failure:
            raise ComposerError(f"Monarch started no actor process: {failure}") from None
        # A descriptor: the number of a process that is gone may be another's.
        self._process = os.pidfd_open(pid)
        env, cwd = {**command.env, **env}, str(command.cwd or Path.cwd())
        self._end = self._host.run.call_one([*command.argv[2:]], env, cwd, str(log))
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the replica's exit code, ``LOST`` where its process has ended without one."""
        if self._code is None:
            gone = self._gone()  # before the message, which a process that ends has sent
            try:
                self._code = self._end.get(timeout=0)
            except TimeoutError:
                self._code = LOST if gone else None
            except _FAILURES as failure:
                logger.info("%s", failure)
                self._code = LOST
        return self._code

    def cancel(self) -> None:
        """Send the message to leave, which lets a started upload finish."""
        if not self._gone():
            self._host.leave.broadcast()

    def kill(self) -> None:
        """Send SIGKILL to the process."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def close(self) -> None:
        """Stop the actor, which ends its process, and close the output."""
        super().close()
        if not self._gone():
            with contextlib.suppress(*_FAILURES):
                self._procs.stop().get(timeout=STOP_S)
        os.close(self._process)

    def _gone(self) -> bool:
        return bool(select.select([self._process], [], [], 0)[0])


class Host(Actor):
    """Runs one replica in a thread of its process."""

    @endpoint
    async def pid(self) -> int:
        """Return the number of this process."""
        return os.getpid()

    @concurrent_endpoint
    async def run(self, argv: list[str], env: dict[str, str], cwd: str, log: str) -> int:
        """Run a module with its arguments and return its exit code."""
        os.environ.update(env)
        os.chdir(cwd)
        output = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = argv
        replica = _Replica()
        replica.start()
        await asyncio.to_thread(replica.join)
        return replica.code

    @endpoint
    async def leave(self) -> None:
        """End the replica, after an upload in progress."""
        GracefulExit.leave()


class _Replica(threading.Thread):
    """Runs the module of ``sys.argv``; ``code`` is 1 after an exception, which is printed."""

    code = 1

    def run(self) -> None:
        try:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
            self.code = 0
        except SystemExit as end:
            self.code = int(end.code or 0)
