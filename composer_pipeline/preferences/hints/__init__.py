"""What would have helped: hints from errors in the trace, and from what teachers did."""

from composer_pipeline.preferences.hints.from_disagreement import SOURCE, consensus_hint
from composer_pipeline.preferences.hints.from_errors import build_hints

__all__ = ["SOURCE", "build_hints", "consensus_hint"]
