"""What a run will need before it starts: memory by part, steps, hours.

``shape`` reads a model's config.json, ``memory`` predicts bytes, ``loads`` says what a recipe puts
into one forward, ``fitting`` finds what to lower, ``plan`` asks the trainer and reports. Counting
rows and timing steps are the trainer's (``trainers.trl.plan``). Imports no torch.
"""

from composer_pipeline.training.planning.fitting import require_fit
from composer_pipeline.training.planning.loads import Load, RowSize, assumed_rows, loads_of
from composer_pipeline.training.planning.memory import Memory, peak
from composer_pipeline.training.planning.plan import PlanReport, plan
from composer_pipeline.training.planning.shape import ModelShape

__all__ = [
    "Load",
    "Memory",
    "ModelShape",
    "PlanReport",
    "RowSize",
    "assumed_rows",
    "loads_of",
    "peak",
    "plan",
    "require_fit",
]
