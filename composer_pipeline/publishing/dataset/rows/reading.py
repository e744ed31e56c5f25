"""What people read first in a row: the task and the actions in words; and how long it is.

Belongs here: texts made of messages. Does not belong here: which columns there are
(``lake.tables``).
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from composer_pipeline.training.windows import RowCutter

#: Characters of a task; it stands whole in the prompt.
TASK_CHARS = 2000
_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>\s*", re.DOTALL)

Row = dict[str, Any]


class _Head(msgspec.Struct):
    role: str
    content: Any = ""


def task_of(prompt: Iterable[str]) -> str:
    """Return the first words of the user in a prompt of JSON texts, without reminders."""
    for text in prompt:
        head = msgspec.json.decode(text, type=_Head)
        if head.role == "user" and (words := _words(str(head.content))):
            return words
    return ""


def task_of_messages(messages: Iterable[Row]) -> str:
    """Return :func:`task_of` of a state's own messages, whose content is text or blocks."""
    for message in messages:
        content = message["content"]
        blocks = [{"text": content}] if isinstance(content, str) else content
        texts = [str(block.get("text", "")) for block in blocks if isinstance(block, dict)]
        if message["role"] == "user" and (words := _words("\n\n".join(filter(None, texts)))):
            return words
    return ""


def _words(text: str) -> str:
    return _REMINDER.sub("", text).strip()[:TASK_CHARS]


class Lengths:
    """Tokens of texts, about; nothing without a tokenizer.

    Args:
        cutter: counts, with the tokenizer of the build.
    """

    def __init__(self, cutter: RowCutter | None) -> None:
        self._cutter = cutter

    def of(self, *columns: Iterable[str] | None) -> int | None:
        """Return the tokens of columns of JSON texts."""
        if self._cutter is None:
            return None
        return self._cutter.tokens(text for texts in columns for text in texts or ())
