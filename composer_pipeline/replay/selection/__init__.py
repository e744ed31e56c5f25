"""Whom to ask next, and when enough has been asked. It knows no money and no HTTP."""

from composer_pipeline.replay.selection.curtailed import CurtailedSelector
from composer_pipeline.replay.selection.selector import DaysFirst, Selector, by_day
from composer_pipeline.replay.selection.stopping import (
    Cluster,
    Decide,
    Price,
    ask_order,
    choose,
    clusters_of,
    has_vote,
    how_many,
    spokesmen,
)

__all__ = [
    "Cluster",
    "CurtailedSelector",
    "DaysFirst",
    "Decide",
    "Price",
    "Selector",
    "ask_order",
    "by_day",
    "choose",
    "clusters_of",
    "has_vote",
    "how_many",
    "spokesmen",
]
