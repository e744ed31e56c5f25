"""Rows of the dataset: what a pair, a state, a reply and a drop become."""

from composer_pipeline.publishing.dataset.rows.drops import drop_rows
from composer_pipeline.publishing.dataset.rows.message_texts import Digests, digest
from composer_pipeline.publishing.dataset.rows.pairs import WINDOW_TOKENS, pair_row, window_row
from composer_pipeline.publishing.dataset.rows.reading import Lengths
from composer_pipeline.publishing.dataset.rows.replies import answers_of_day, reply_rows
from composer_pipeline.publishing.dataset.rows.states import Asked, session_rows

__all__ = [
    "WINDOW_TOKENS",
    "Asked",
    "Digests",
    "Lengths",
    "answers_of_day",
    "digest",
    "drop_rows",
    "pair_row",
    "reply_rows",
    "session_rows",
    "window_row",
]
