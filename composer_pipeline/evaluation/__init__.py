"""Does a model act better than its base on sessions that it never saw?

``states`` is the frozen set and ``of_lake`` makes one of a lake; ``measure`` runs models over it,
``summary`` makes means and intervals, ``verdict`` says whether that may be published, and
``evaluate`` is the stage. Does not belong here: training (``training``), and publishing
(``publishing``).
"""

from composer_pipeline.evaluation.evaluate import TRAINED, evaluate
from composer_pipeline.evaluation.measure import BASE, Arm, measure
from composer_pipeline.evaluation.of_lake import states_of_lake
from composer_pipeline.evaluation.report import HEAD, grid, pictures, table
from composer_pipeline.evaluation.results import StateResult, read_results, write_results
from composer_pipeline.evaluation.states import (
    EvaluationState,
    Kind,
    check_disjoint,
    content_hash,
    read_states,
    write_states,
)
from composer_pipeline.evaluation.summary import (
    difference,
    summarise,
)
from composer_pipeline.evaluation.verdict import cells_of, guarded, verdict

__all__ = [
    "BASE",
    "HEAD",
    "TRAINED",
    "Arm",
    "EvaluationState",
    "Kind",
    "StateResult",
    "cells_of",
    "check_disjoint",
    "content_hash",
    "difference",
    "evaluate",
    "grid",
    "guarded",
    "measure",
    "pictures",
    "read_results",
    "read_states",
    "states_of_lake",
    "summarise",
    "table",
    "verdict",
    "write_results",
    "write_states",
]
