"""Do teachers agree? Who may vote, the vote, its rows, the paid judge of meaning.

Does not belong here: which votes become pairs (``preferences.pairs``).
"""

from composer_pipeline.preferences.agreement.compare import compare
from composer_pipeline.preferences.agreement.replay_vote import VoteDecision
from composer_pipeline.preferences.agreement.reply import Reply, loosest_terms
from composer_pipeline.preferences.agreement.semantic_judge import open_judge
from composer_pipeline.preferences.agreement.situations import home_of, situation_of
from composer_pipeline.preferences.agreement.vote import Vote, vote
from composer_pipeline.preferences.agreement.vote_rows import (
    AGENT,
    CONFIRMED,
    REASONS,
    ballot_row,
    level_of,
    reason_of,
    vote_figures,
)

__all__ = [
    "AGENT",
    "CONFIRMED",
    "REASONS",
    "Reply",
    "Vote",
    "VoteDecision",
    "ballot_row",
    "compare",
    "home_of",
    "level_of",
    "loosest_terms",
    "open_judge",
    "reason_of",
    "situation_of",
    "vote",
    "vote_figures",
]
