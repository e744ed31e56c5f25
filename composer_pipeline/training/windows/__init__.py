"""Chat messages to token windows, under budgets.

``window`` is the way in; ``policy`` decides what of a long prompt stays, ``template`` what a chat
template takes, ``messages``, ``texts``, ``files`` and ``tools`` are what they speak of. Does not
belong here: the dataset's tables and what a row becomes (``training.data``). Imports no torch; a
tokenizer is passed in.
"""

from composer_pipeline.training.windows.files import names_lost_file
from composer_pipeline.training.windows.messages import Dropped, Message, action_message
from composer_pipeline.training.windows.shorter_rows import RowCutter
from composer_pipeline.training.windows.template import NO_THINKING, ChatTemplate
from composer_pipeline.training.windows.texts import CUT
from composer_pipeline.training.windows.window import TOOLS_SHARE, Windows, window_messages

__all__ = [
    "CUT",
    "NO_THINKING",
    "TOOLS_SHARE",
    "ChatTemplate",
    "Dropped",
    "Message",
    "RowCutter",
    "Windows",
    "action_message",
    "names_lost_file",
    "window_messages",
]
