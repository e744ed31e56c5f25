"""Does a model act better than its base on sessions that it never saw?

``states`` is the frozen set, ``evaluate`` the stage, ``worker`` the process that loads the model.
Does not belong here: training (``training``), and what is published of the result
(``publishing``).
"""

from composer_pipeline.evaluation.evaluate import evaluate
from composer_pipeline.evaluation.states import (
    KINDS,
    EvaluationState,
    Kind,
    check_disjoint,
    content_hash,
    read_states,
    write_states,
)

__all__ = [
    "KINDS",
    "EvaluationState",
    "Kind",
    "check_disjoint",
    "content_hash",
    "evaluate",
    "read_states",
    "write_states",
]
