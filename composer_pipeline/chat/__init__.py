"""A state as a chat request: messages, tools and replies in the shape that models speak.

Shared by replay, preferences and publishing. Belongs here: what a model is shown and how its
answer is read back. Does not belong here: whom to ask, what it costs, or HTTP.
"""

from composer_pipeline.actions import ERROR_PREFIX
from composer_pipeline.chat.arguments import ArgumentCheck
from composer_pipeline.chat.builder import (
    INTERRUPTED,
    ORPHAN_PREFIX,
    Builder,
    short_name,
)
from composer_pipeline.chat.day_tools import Toolsets, toolsets_of_day
from composer_pipeline.chat.growing import GrowingChain
from composer_pipeline.chat.installed_tools import read_installation
from composer_pipeline.chat.kept_tools import keep, kept_sets
from composer_pipeline.chat.messages import (
    Conversion,
    offered_tools,
    system_message,
    to_chat,
)
from composer_pipeline.chat.tool_schemas import Toolset
from composer_pipeline.chat.wire_form import (
    action_message,
    parse_reply_message,
    prompt_hash,
    wire_messages,
)

__all__ = [
    "ERROR_PREFIX",
    "INTERRUPTED",
    "ORPHAN_PREFIX",
    "ArgumentCheck",
    "Builder",
    "Conversion",
    "GrowingChain",
    "Toolset",
    "Toolsets",
    "action_message",
    "keep",
    "kept_sets",
    "offered_tools",
    "parse_reply_message",
    "prompt_hash",
    "read_installation",
    "short_name",
    "system_message",
    "to_chat",
    "toolsets_of_day",
    "wire_messages",
]
