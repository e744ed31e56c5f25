"""The checks of every asset.

The door of the folder: ``assets.definitions`` takes ``CHECKS``, and builds those of the
teachers, which their file names.
"""

from assets.checks.accounting import (
    dataset_accounted_for,
    pairs_accounted_for,
    states_accounted_for,
)
from assets.checks.budget import budget_check, budget_results
from assets.checks.integrity import (
    chosen_differs_from_rejected,
    no_group_in_two_splits,
    prefixes_complete,
    raw_sessions_never_shrink,
    state_ids_unique,
)
from assets.checks.quality import (
    chosen_not_told_by_style,
    not_worse_than_base,
)
from assets.checks.replies import build_reply_checks, replies_cover_states
from assets.checks.tables import build_table_checks
from assets.checks.teacher_file import teachers

CHECKS = [
    raw_sessions_never_shrink,
    state_ids_unique,
    prefixes_complete,
    chosen_differs_from_rejected,
    no_group_in_two_splits,
    states_accounted_for,
    pairs_accounted_for,
    dataset_accounted_for,
    chosen_not_told_by_style,
    replies_cover_states,
    not_worse_than_base,
    teachers,
]

__all__ = [
    "CHECKS",
    "budget_check",
    "budget_results",
    "build_reply_checks",
    "build_table_checks",
    "chosen_differs_from_rejected",
    "chosen_not_told_by_style",
    "dataset_accounted_for",
    "no_group_in_two_splits",
    "not_worse_than_base",
    "pairs_accounted_for",
    "prefixes_complete",
    "raw_sessions_never_shrink",
    "replies_cover_states",
    "state_ids_unique",
    "states_accounted_for",
    "teachers",
]
