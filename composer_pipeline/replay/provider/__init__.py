"""OpenRouter-shaped HTTP: one request, its upper bound, what its answer means for money.

Does not belong here: the ledger, retries, and the order of calls.
"""

from composer_pipeline.replay.provider.bounds import (
    CACHE_WRITE,
    Anchor,
    anchor,
    anchored_tokens,
    worst_case,
)
from composer_pipeline.replay.provider.client import Wire
from composer_pipeline.replay.provider.http import MOST_BYTES, ask, new_session
from composer_pipeline.replay.provider.keys import KeyService, KeyUnread, MintedKey, own_usage
from composer_pipeline.replay.provider.outcome import (
    BUSY_STATUSES,
    Outcome,
    TokenPrice,
    is_page,
    settled_as_it_is,
)
from composer_pipeline.replay.provider.reading import choices_of, read_json, read_reply
from composer_pipeline.replay.provider.request import Request, serialise, settings_sent

__all__ = [
    "BUSY_STATUSES",
    "CACHE_WRITE",
    "MOST_BYTES",
    "Anchor",
    "KeyService",
    "KeyUnread",
    "MintedKey",
    "Outcome",
    "Request",
    "TokenPrice",
    "Wire",
    "anchor",
    "anchored_tokens",
    "ask",
    "choices_of",
    "is_page",
    "new_session",
    "own_usage",
    "read_json",
    "read_reply",
    "serialise",
    "settings_sent",
    "settled_as_it_is",
    "worst_case",
]
