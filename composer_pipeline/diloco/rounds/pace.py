"""How many optimizer steps a slot makes in a round where machines differ in speed.

Belongs here: steps from what commits have measured, and measuring a step. Does not belong here:
looking at the log during a round (``replica``), and when a round is committed. No torch.

With ``pace: equal-time`` the fastest slot makes H steps, and each other one what fits into the same
time. That is a function of the commits alone, so a replica that starts again finds the same number.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from composer_pipeline.diloco.log import Commit
from composer_pipeline.diloco.spec import DiLoCoSpec

#: Rounds that merged something in one of which a slot must have been to count as the fastest: one
#: that is gone would make the rounds of the others short for ever, and one that starts again would
#: be waited for if it were forgotten at once.
REMEMBERED = 3


class Work(NamedTuple):
    """What a slot did in a round: its steps, and seconds of one (0: not measured)."""

    steps: int = 0
    seconds: float = 0.0


class Pace:
    """What commits say of the slots' speed.

    Args:
        spec: has the rule and H.
    """

    def __init__(self, spec: DiLoCoSpec) -> None:
        self._spec = spec
        self.clear()

    def clear(self) -> None:
        """Forget all commits."""
        self._seconds: dict[int, float] = {}
        self._late: deque[set[int]] = deque(maxlen=REMEMBERED)

    def note(self, commit: Commit) -> None:
        """Learn from the next commit."""
        measured = {part.slot: part.seconds for part in commit.included if part.seconds > 0}
        self._seconds |= measured
        if commit.included:
            self._late.append(set(measured))

    def steps(self, slot: int) -> int:
        """Return the steps of a slot in the next round: at least 1, and H where it has no time."""
        most, own = self._spec.inner_steps, self._seconds.get(slot)
        rivals = [self._seconds[other] for other in set().union(*self._late)]
        if self._spec.pace == "equal-steps" or own is None or not rivals:
            return most
        return max(1, min(most, int(most * (min(rivals) / own))))


#: What is known of a delta that nobody counted or measured.
UNKNOWN = Work()


class Stopwatch:
    """Measures the steps of one round in this process; what lies between rounds does not count.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._took: list[float] = []

    def start(self) -> None:
        """Begin with the first step; does nothing at the later ones."""
        if self._since is None:
            self._since = self._clock()

    def lap(self) -> None:
        """Note the end of a step; what is done before the next one counts to that."""
        now = self._clock()
        if self._since is not None:
            self._took.append(now - self._since)
        self._since = now

    def seconds(self) -> float:
        """Return the median time of a step (the first one of a process is long); 0 without any."""
        return statistics.median(self._took) if self._took else 0.0
