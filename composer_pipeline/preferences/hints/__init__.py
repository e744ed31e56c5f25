"""What would have helped: hints from errors and from what teachers did, and recoveries."""

from composer_pipeline.preferences.hints.from_disagreement import SOURCE, consensus_hint
from composer_pipeline.preferences.hints.from_errors import build_hints, hints_origin
from composer_pipeline.preferences.hints.recovery import recoveries, succeeded

__all__ = [
    "SOURCE",
    "build_hints",
    "consensus_hint",
    "hints_origin",
    "recoveries",
    "succeeded",
]
