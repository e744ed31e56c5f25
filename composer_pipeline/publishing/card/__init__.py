"""The dataset card: README.md, its pictures and the chat template, from the data alone.

Belongs here: what a reader must know before training on the dataset. Does not belong here: which
files there are (``publishing.publish``), and what may be published (``publishing.gates``).
"""

from composer_pipeline.publishing.card.facts import (
    Facts,
    Source,
    facts_of,
    funnel,
    statistics_of,
    votes_by_tool,
)
from composer_pipeline.publishing.card.front import size_category
from composer_pipeline.publishing.card.page import card_files
from composer_pipeline.publishing.card.versions import with_history

__all__ = [
    "Facts",
    "Source",
    "card_files",
    "facts_of",
    "funnel",
    "size_category",
    "statistics_of",
    "votes_by_tool",
    "with_history",
]
