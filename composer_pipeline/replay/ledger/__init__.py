"""The books: exact, crash-safe, shared by processes and machines. They know no provider.

Does not belong here: HTTP, prices of models, and what a reply means.
"""

from composer_pipeline.replay.ledger import rules
from composer_pipeline.replay.ledger.group_commit import Commits
from composer_pipeline.replay.ledger.ledger import (
    Ledger,
    budget_report,
    existing_ledger,
    open_ledger,
    standing_ceilings,
)
from composer_pipeline.replay.ledger.place import check_scope, check_shared, ledger_target
from composer_pipeline.replay.ledger.values import (
    Admission,
    Asked,
    Bill,
    CacheHit,
    Call,
    NotQuiescent,
    Reply,
    ScopeStatus,
    SweepMismatch,
)

__all__ = [
    "Admission",
    "Asked",
    "Bill",
    "CacheHit",
    "Call",
    "Commits",
    "Ledger",
    "NotQuiescent",
    "Reply",
    "ScopeStatus",
    "SweepMismatch",
    "budget_report",
    "check_scope",
    "check_shared",
    "existing_ledger",
    "ledger_target",
    "open_ledger",
    "rules",
    "standing_ceilings",
]
