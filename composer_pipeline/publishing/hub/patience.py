"""How long trouble that may pass is waited for.

Does not belong here: what trouble is (``trouble``).
"""

import time
from typing import NoReturn

from composer_pipeline.errors import ComposerError
from composer_pipeline.publishing.hub.trouble import Trouble
from composer_pipeline.reports import Progress

#: Seconds after which one step that keeps failing is given up.
LIMIT_S = 120.0
_LONGEST_S = 30.0


class Patience:
    """Waits between the attempts of one step.

    Args:
        subject: what a sentence of it begins with.
        progress: called as ("waiting for the Hub", seconds waited, limit).
        limit_s: seconds after which it is given up.

    Attributes:
        waited_s: seconds so far.
    """

    def __init__(
        self, subject: str, progress: Progress | None = None, limit_s: float = LIMIT_S
    ) -> None:
        self._subject, self._progress, self._limit_s = subject, progress, limit_s
        self._since: float | None = None
        self.waited_s = 0.0
        self._next = 1.0

    def bear(self, trouble: Trouble) -> None:
        """Wait, if it may pass and there is time for it.

        Raises:
            ComposerError: it does not pass by itself, or not in time.
        """
        if not trouble.passing:
            raise ComposerError(f"{self._subject}: {trouble.said}") from None
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        spent = max(now - self._since, self.waited_s)
        wait = max(self._next, trouble.wait_s or 0.0)
        if spent + wait > self._limit_s:
            self._give_up(trouble)
        if self._progress:
            self._progress("waiting for the Hub", int(spent), int(self._limit_s))
        time.sleep(wait)
        self.waited_s += wait
        self._next = min(_LONGEST_S, 2 * self._next)

    def _give_up(self, trouble: Trouble) -> NoReturn:
        if trouble.wait_s and trouble.wait_s > self._limit_s:
            more = f"and asks to wait {trouble.wait_s:.0f} s"
        else:
            more = f"for {self._limit_s:.0f} s; nothing is half-done, publish again"
        raise ComposerError(f"{self._subject}: {trouble.said}, {more}") from None
