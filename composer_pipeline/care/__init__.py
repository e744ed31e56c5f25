"""A lake looked after: what is in it, whether it is whole, and what shall no longer be in it.

Does not belong here: the environment (``doctor``), and what a stage writes.
"""

from composer_pipeline.care.currency import (
    Why,
    coverage,
    days_with_votes,
    families,
    missing_replies,
    stale_files,
    stale_hints,
    stale_normalized,
    stale_pairs,
    stale_replies,
    stale_states,
    unusable_share,
)
from composer_pipeline.care.forget import ForgetReport, forget
from composer_pipeline.care.holdings import days_held, empty_days, rows_of
from composer_pipeline.care.nights import TRIES, harvest_days, pairs_days, replay_days
from composer_pipeline.care.redact_again import redact_again
from composer_pipeline.care.status import StatusReport, status
from composer_pipeline.care.verify import VerifyReport, verify
from composer_pipeline.care.who import of_project
from composer_pipeline.care.withdraw import WithdrawReport, withdraw
from composer_pipeline.care.wrong_rows import doubled_rows, wrong_columns

__all__ = [
    "TRIES",
    "ForgetReport",
    "StatusReport",
    "VerifyReport",
    "Why",
    "WithdrawReport",
    "coverage",
    "days_held",
    "days_with_votes",
    "doubled_rows",
    "empty_days",
    "families",
    "forget",
    "harvest_days",
    "missing_replies",
    "of_project",
    "pairs_days",
    "redact_again",
    "replay_days",
    "rows_of",
    "stale_files",
    "stale_hints",
    "stale_normalized",
    "stale_pairs",
    "stale_replies",
    "stale_states",
    "status",
    "unusable_share",
    "verify",
    "withdraw",
    "wrong_columns",
]
