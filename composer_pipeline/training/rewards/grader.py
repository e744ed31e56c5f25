"""A reward put together from its named parts.

Belongs here: weights, the gate, and the sum. Does not belong here: what a part is worth
(``training.rewards.parts``).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from composer_pipeline.training.rewards.case import Case
from composer_pipeline.training.rewards.parts import PARTS, Scored


class Grade(NamedTuple):
    """What an answer is worth, and what each part said; parts with nothing to say are left out."""

    value: float
    parts: dict[str, Scored]


class Grader:
    """Grades answers by weighted parts.

    ``validity`` is a gate: what it refuses is worth minus its weight, and no other part is asked.

    Args:
        weights: part to its weight; see ``PARTS``.
    """

    def __init__(self, weights: Mapping[Any, float]) -> None:
        self.weights: dict[str, float] = dict(weights)

    def grade(self, answer: Mapping[str, Any], case: Case) -> Grade:
        """Return the weighted sum of the parts that have something to say.

        Args:
            answer: an assistant message in chat form.
            case: the state; :func:`~composer_pipeline.training.rewards.case.case_of` with the
                same parts.
        """
        found: dict[str, Scored] = {}
        # The gate first, whatever the order of the weights.
        for name in sorted(self.weights, key=lambda name: name != "validity"):
            said = PARTS[name](answer, case)
            if said is None:
                continue
            found[name] = said
            if name == "validity" and said.value < 0:
                break
        return Grade(sum(self.weights[name] * said.value for name, said in found.items()), found)
