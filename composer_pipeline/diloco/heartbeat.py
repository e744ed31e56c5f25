"""The sign of life of one attempt, and who else is alive.

Belongs here: the beating thread and the ages of members. Does not belong here: what a
dead member means for a round (``replica``). No torch.

Ages compare last-modified times that the store itself wrote, so the clocks of the
replicas' machines do not matter. A thread beats, because an inner step may take
longer than the timeout; a process that hangs is left behind by the grace time instead.
"""

import datetime as dt
import logging
import threading

from composer_pipeline.diloco.log import Heartbeat, OuterLog
from composer_pipeline.errors import ComposerError

logger = logging.getLogger(__name__)


class Pulse:
    """Heartbeats of ``(slot, attempt)`` every ``interval_s`` until ``stop``.

    Args:
        log: where the heartbeats go.
        slot: 0-based slot.
        attempt: 1-based start of the slot.
        interval_s: seconds between two beats.
    """

    def __init__(self, log: OuterLog, slot: int, attempt: int, interval_s: float) -> None:
        self.log, self.slot, self.attempt = log, slot, attempt
        self.round, self.wasted_tokens = 0, 0
        self._interval, self._beats = interval_s, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"diloco-pulse-{slot}", daemon=True)

    def start(self) -> None:
        """Beat once in the caller's thread, then go on in the background."""
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """Stop beating; the last heartbeat stays and grows old."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

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
                # One lost beat is what the timeout is for; the next one may get through.
                logger.warning("heartbeat of slot %d failed: %s", self.slot, error)

    def ages(self) -> tuple[dict[int, float], dt.datetime]:
        """Return the seconds since each slot's last beat, and the store's present time.

        "Present" is this attempt's own last beat, so ages are exact to one interval.
        """
        members = self.log.members()
        now = members[self.slot, self.attempt]
        ages: dict[int, float] = {}
        for (slot, _attempt), seen in members.items():
            age = (now - seen).total_seconds()
            ages[slot] = min(age, ages.get(slot, age))
        return ages, now
