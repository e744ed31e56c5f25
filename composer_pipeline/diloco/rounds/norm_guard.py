"""Which changes are too large beside those of recent rounds.

Belongs here: the rule of ``norm_guard``, the same for everybody who has read the same commits. Does
not belong here: other reasons to leave a change out (``replica``). No torch.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping

from composer_pipeline.diloco.log import Commit
from composer_pipeline.diloco.spec import DiLoCoSpec

#: Norms of merged deltas that the guard compares with, and how many there must be.
RECENT_NORMS, FEWEST_NORMS = 16, 3


class NormGuard:
    """Remembers the norms of merged changes, by fragment: one says nothing of another's.

    Args:
        spec: has the rule and the number of fragments.
    """

    def __init__(self, spec: DiLoCoSpec) -> None:
        self._spec = spec
        self.norms = [deque[float](maxlen=RECENT_NORMS) for _ in range(spec.fragments)]

    def clear(self) -> None:
        """Forget all commits."""
        for norms in self.norms:
            norms.clear()

    def note(self, commit: Commit) -> None:
        """Learn from the next commit; one that merges several fragments tells of none."""
        numbers = self._spec.numbers(commit.fragment)
        if len(numbers) == 1:
            norms = (part.norm / _growth(part.steps) for part in commit.included if part.norm)
            self.norms[numbers[0]].extend(norms)

    def too_far(self, sizes: Mapping[int, float], steps: int) -> str:
        """Return why norms are too large beside those of recent rounds; empty where none is.

        Args:
            sizes: fragment (0-based) to the norm of its change.
            steps: optimizer steps that led to it; 0 where nobody counted.
        """
        return "; ".join(filter(None, (self._why(n, size, steps) for n, size in sizes.items())))

    def _why(self, fragment: int, size: float, steps: int) -> str:
        guard, known = self._spec.norm_guard, self.norms[fragment]
        if guard is None or len(known) < FEWEST_NORMS:
            return ""
        median = statistics.median(known) * _growth(steps)
        if size <= guard * median:
            return ""
        return f"its norm {size:.3g} is above {guard:g} times the median {median:.3g} of late ones"


def _growth(steps: int) -> float:
    """Return how much longer a change of so many steps is expected to be than that of one.

    Between steps of one direction (so many times) and steps that undo each other (not at all), so
    that replicas of different speed can be judged by each other. 1 where nobody counted.
    """
    return math.sqrt(steps or 1)
