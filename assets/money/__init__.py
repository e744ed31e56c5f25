"""Money in Dagster: which runs share a ceiling, what was spent, and what a purchase will cost.

Does not belong here: the ledger's arithmetic (``composer_pipeline.replay.ledger``) and buying
(``assets.replay``).
"""

from assets.money.budget import budget, budget_metadata, choose_ceiling, set_ceiling
from assets.money.plan import replay_plan, tell_bill
from assets.money.recording import DayRecorder, tell_ceiling
from assets.money.scopes import COST_TAG, REACHED_TAG, SCOPE_TAG, scope_of_run

__all__ = [
    "COST_TAG",
    "REACHED_TAG",
    "SCOPE_TAG",
    "DayRecorder",
    "budget",
    "budget_metadata",
    "choose_ceiling",
    "replay_plan",
    "scope_of_run",
    "set_ceiling",
    "tell_bill",
    "tell_ceiling",
]
