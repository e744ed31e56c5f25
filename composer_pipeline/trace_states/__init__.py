"""TraceStates back from the lake: prefixes rebuilt from chains and messages.

The one way in which later rooms read states. Does not belong here: how the tables are
written (``traces.parse``).
"""

from composer_pipeline.trace_states.load import (
    Path,
    following,
    list_states,
    load_state,
    load_states,
)
from composer_pipeline.trace_states.message_text import block_text, blocks_of
from composer_pipeline.trace_states.on_demand import StatesOnDemand
from composer_pipeline.trace_states.reader import StateReader
from composer_pipeline.trace_states.state import Message, TraceState, Unseen, action_of, draw
from composer_pipeline.trace_states.whole_sessions import WholeSession, whole_sessions

__all__ = [
    "Message",
    "Path",
    "StateReader",
    "StatesOnDemand",
    "TraceState",
    "Unseen",
    "WholeSession",
    "action_of",
    "block_text",
    "blocks_of",
    "draw",
    "following",
    "list_states",
    "load_state",
    "load_states",
    "whole_sessions",
]
