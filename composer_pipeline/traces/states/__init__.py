"""Trajectories to rows: stored messages, chains, states, and how an action ended.

Does not belong here: reading files, and the graph of a file.
"""

from composer_pipeline.traces.states.counts import Facts, facts_of, total_of
from composer_pipeline.traces.states.extract import Extracted, Source, extract
from composer_pipeline.traces.states.identity import blake
from composer_pipeline.traces.states.message_store import MessageStore
from composer_pipeline.traces.states.state_rows import Rows

__all__ = [
    "Extracted",
    "Facts",
    "MessageStore",
    "Rows",
    "Source",
    "blake",
    "extract",
    "facts_of",
    "total_of",
]
