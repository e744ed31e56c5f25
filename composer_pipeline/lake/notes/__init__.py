"""Small files at the lake's root that are no table: exports, withdrawals, how each was made.

Does not belong here: what is done because of them (``care``, ``traces.archive``, ``publishing``).
"""

from composer_pipeline.lake.notes.exports import exports, prune_exports, remember_exports
from composer_pipeline.lake.notes.made import (
    Made,
    Origin,
    Stamps,
    changed,
    look,
    note,
    notes_of,
    noting,
)
from composer_pipeline.lake.notes.withdrawn import (
    Withdrawal,
    Withdrawn,
    add_withdrawal,
    digest_of,
    remove_withdrawal,
    withdrawals,
)

__all__ = [
    "Made",
    "Origin",
    "Stamps",
    "Withdrawal",
    "Withdrawn",
    "add_withdrawal",
    "changed",
    "digest_of",
    "exports",
    "look",
    "note",
    "notes_of",
    "noting",
    "prune_exports",
    "remember_exports",
    "remove_withdrawal",
    "withdrawals",
]
