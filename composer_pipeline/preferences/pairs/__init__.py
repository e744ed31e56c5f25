"""A pair is made here: candidates, the rules that keep them, and why a state made none."""

from composer_pipeline.preferences.pairs.benchmarks import Benchmarks
from composer_pipeline.preferences.pairs.build import build_pairs
from composer_pipeline.preferences.pairs.contamination import contaminated_sessions, is_strong
from composer_pipeline.preferences.pairs.explain import explain
from composer_pipeline.preferences.pairs.filters import drop
from composer_pipeline.preferences.pairs.origin import pairs_origin
from composer_pipeline.preferences.pairs.pair_row import RECORDED, pair_row, prompt_of
from composer_pipeline.preferences.pairs.replies import cost_of_states, reply_age, usable_replies

__all__ = [
    "RECORDED",
    "Benchmarks",
    "build_pairs",
    "contaminated_sessions",
    "cost_of_states",
    "drop",
    "explain",
    "is_strong",
    "pair_row",
    "pairs_origin",
    "prompt_of",
    "reply_age",
    "usable_replies",
]
