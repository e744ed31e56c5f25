"""Small files at the lake's root that are no table: exports, and what was withdrawn.

Does not belong here: what is done because of them (``care``, ``traces.archive``, ``publishing``).
"""

from composer_pipeline.lake.notes.exports import exports, prune_exports, remember_exports
from composer_pipeline.lake.notes.withdrawn import (
    Withdrawal,
    Withdrawn,
    add_withdrawal,
    digest_of,
    remove_withdrawal,
    withdrawals,
)

__all__ = [
    "Withdrawal",
    "Withdrawn",
    "add_withdrawal",
    "digest_of",
    "exports",
    "prune_exports",
    "remember_exports",
    "remove_withdrawal",
    "withdrawals",
]
