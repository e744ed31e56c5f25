"""What the shipped loss must reach on the small world."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.report import difference
from composer_pipeline.evaluation.results import BASE, StateResult

#: Measure of every bar: the greedy answer is the right action, argument for argument.
MEASURE = "exact"
#: What SDPO must add where no teacher was asked.
GAIN = 0.15
#: What the whole loss may lose against SFT on the consensus where every state has teachers.
BEHIND_SFT = 0.02
#: What may be lost where the base is right.
REGRESSION = 0.05


class Estimate(Protocol):
    """A mean with its interval over sessions; no interval where there are too few of them."""

    @property
    def mean(self) -> float:
        """The mean over states."""
        ...

    @property
    def low(self) -> float | None:
        """The lower end."""
        ...

    @property
    def high(self) -> float | None:
        """The upper end."""
        ...

    @property
    def excludes_zero(self) -> bool:
        """Whether the difference may be claimed."""
        ...


Results = Mapping[str, Sequence[StateResult]]


def compared(results: Results, arm: str, other: str, kind: str) -> Estimate:
    """Return the paired difference of two arms at a kind of states."""
    for name in (arm, other):
        if name not in results:
            raise InputError(f"no results of arm {name!r}; there are {', '.join(results)}")
    found = difference(results[arm], results[other], kind, MEASURE)
    if found is None:
        raise InputError(f"no state of kind {kind} that arms {arm!r} and {other!r} both have")
    return found


def broken_at_half_coverage(results: Results, arm: str, without: str) -> list[str]:
    """Return the bars that an arm breaks where teachers answer half of the bug types."""
    gain = compared(results, arm, without, "hard_uncovered")
    said = []
    if gain.mean < GAIN or gain.low is None or gain.low <= 0:
        said.append(f"uncovered states: {_points(gain)} over {without}, not {GAIN:.0%}")
    return said + broken_against_base(results, arm)


def broken_at_full_coverage(results: Results, arm: str, sft: str) -> list[str]:
    """Return the bars that an arm breaks where teachers answer everything."""
    behind = compared(results, arm, sft, "hard")
    said = []
    if behind.mean < -BEHIND_SFT:
        said.append(f"hard states: {_points(behind)} against {sft}, not -{BEHIND_SFT:.0%}")
    return said + broken_against_base(results, arm)


def broken_against_base(results: Results, arm: str, allowed: float = REGRESSION) -> list[str]:
    """Return where an arm is worse than its base by more than ``allowed``."""
    found = {kind: compared(results, arm, BASE, kind) for kind in ("easy", "recovery")}
    return [
        f"{kind} states: {_points(lost)} against the base, not -{allowed:.0%}"
        for kind, lost in found.items()
        if lost.mean < -allowed
    ]


def _points(found: Estimate) -> str:
    if found.low is None or found.high is None:
        return f"{found.mean:+.1%}"
    return f"{found.mean:+.1%} ({found.low:+.1%} to {found.high:+.1%})"
