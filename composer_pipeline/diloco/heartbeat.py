"""Heartbeats of one attempt of a slot, the ages of all of them, and SIGTERM. No torch.

Ages compare last-modified times that the store itself wrote, so the clocks of the replicas'
machines do not matter. A thread beats, because an inner step may take longer than the
timeout; a process that hangs is left behind by the grace time instead.
"""

import datetime as dt
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ClassVar

from composer_pipeline.diloco.log import Heartbeat, OuterLog
from composer_pipeline.errors import ComposerError

logger = logging.getLogger(__name__)

#: Exit code after SIGTERM: 128 + 15.
EXIT_TERMINATED = 143


class HeartbeatSender:
    """Heartbeats of ``(slot, attempt)`` every ``interval_s`` seconds until ``stop``."""

    def __init__(self, log: OuterLog, slot: int, attempt: int, interval_s: float) -> None:
        self.log, self.slot, self.attempt = log, slot, attempt
        self.round, self.wasted_tokens = 0, 0
        self._interval, self._beats = interval_s, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"diloco-pulse-{slot}", daemon=True)

    def start(self) -> None:
        """Beat once in the caller's thread, then in the background; repeated calls do nothing."""
        if self._thread.ident is None:
            self._beat()
            self._thread.start()

    def stop(self) -> None:
        """Stop beating; the last heartbeat stays and ages."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def leave(self) -> None:
        """Stop beating and remove the heartbeat, so that nobody waits for it to age."""
        self.stop()
        if self._beats:
            self.log.store.delete(f"members/{self.slot}/{self.attempt}.json")

    def _beat(self) -> None:
        self._beats += 1
        beat = Heartbeat(self.slot, self.attempt, self.round, self._beats, self.wasted_tokens)
        self.log.beat(beat)

    def _run(self) -> None:
        import obstore.exceptions

        while not self._stop.wait(self._interval):
            try:
                self._beat()
            except (OSError, ComposerError, obstore.exceptions.BaseError) as error:
                # The timeout allows for a lost beat; the next one may get through.
                logger.warning("heartbeat of slot %d failed: %s", self.slot, error)

    def ages(self) -> tuple[dict[int, float], dt.datetime]:
        """Return the seconds since each slot's last beat, and the store's present time."""
        me = self.slot, self.attempt
        members = self.log.members()
        if me not in members:  # removed, or not listed yet
            self._beat()
            members = self.log.members(f"members/{self.slot}/{self.attempt}.json")
        now = members[me]
        ages: dict[int, float] = {}
        for (slot, _attempt), seen in members.items():
            age = (now - seen).total_seconds()
            ages[slot] = min(age, ages.get(slot, age))
        return ages, now


class GracefulExit:
    """SIGTERM ends the process at once, or after an upload in progress."""

    #: That of a replica outside of the main thread, where Python allows no signal handler.
    _of_thread: "ClassVar[GracefulExit | None]" = None

    def __init__(self) -> None:
        self._busy, self.terminated = 0, False

    def install(self) -> None:
        """Handle SIGTERM; outside of the main thread, wait for ``leave`` instead."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_signal)
        else:
            GracefulExit._of_thread = self

    @classmethod
    def leave(cls) -> None:
        """End the process of a replica in another thread as SIGTERM would."""
        if cls._of_thread is None or not cls._of_thread._busy:
            os._exit(EXIT_TERMINATED)
        cls._of_thread.terminated = True

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let the block finish before SIGTERM ends the process."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
        if self.terminated and not self._busy:
            sys.exit(EXIT_TERMINATED)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.terminated = True
        if not self._busy:
            sys.exit(EXIT_TERMINATED)
