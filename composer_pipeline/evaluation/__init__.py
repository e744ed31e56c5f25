"""Does a model act better than its base on sessions that it never saw?

``states`` is the frozen set, ``evaluate`` the stage, ``worker`` the process that loads the model.
Does not belong here: training (``training``), and what is published of the result
(``publishing``).
"""

from composer_pipeline.evaluation.evaluate import evaluate
from composer_pipeline.evaluation.measure import BASE, Arm, Measured, measure
from composer_pipeline.evaluation.results import MEASURES, StateResult, read_results, write_results
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
    "BASE",
    "KINDS",
    "MEASURES",
    "Arm",
    "EvaluationState",
    "Kind",
    "Measured",
    "StateResult",
    "check_disjoint",
    "content_hash",
    "evaluate",
    "measure",
    "read_results",
    "read_states",
    "write_results",
    "write_states",
]
