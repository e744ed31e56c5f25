"""The Hugging Face Hub: one commit, read back and tagged, and a past without what was withdrawn.

Belongs here: requests, retries, and what the Hub's refusals mean. Does not belong here: the files
of a dataset (``publishing.publish``) or model (``publishing.model``), and what may be published
(``publishing.gates``).
"""

from composer_pipeline.publishing.hub.bring import Brought, bring
from composer_pipeline.publishing.hub.check import by_split, check_published, row_changes, rows_at
from composer_pipeline.publishing.hub.client import Hub, Remote
from composer_pipeline.publishing.hub.history import Purged, purge
from composer_pipeline.publishing.hub.kept_text import keep_text
from composer_pipeline.publishing.hub.names import check_repo, token_of

__all__ = [
    "Brought",
    "Hub",
    "Purged",
    "Remote",
    "bring",
    "by_split",
    "check_published",
    "check_repo",
    "keep_text",
    "purge",
    "row_changes",
    "rows_at",
    "token_of",
]
