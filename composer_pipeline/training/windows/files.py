"""Files that messages name.

Belongs here: paths in calls, and whether a text shows a path. Does not belong here: what is kept
because of them (``training.windows.policy``).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from composer_pipeline.actions import PATH_ARGUMENTS
from composer_pipeline.training.windows.messages import Message, calls_of, plain_message

#: Tools whose result is a file's content.
READERS = frozenset({"Read", "NotebookRead", "read_file", "view"})


def paths_of(message: Message) -> Iterator[str]:
    """Yield the files that the calls of a plain message name in arguments of their own."""
    for _, arguments in calls_of(message):
        for key in PATH_ARGUMENTS:
            value = arguments.get(key)
            if isinstance(value, str) and value.strip("./"):
                yield value


def shows(messages: Iterable[Message], path: str) -> bool:
    """Say whether a path stands in a content or an argument of plain messages."""
    return any(
        path in message["content"] or any(_holds(args, path) for _, args in calls_of(message))
        for message in messages
    )


def names_lost_file(action: Message, prompt: Sequence[Message], window: Sequence[Message]) -> bool:
    """Say whether an action names a file that the prompt showed and the window does not.

    Args:
        action: a plain assistant message.
        prompt: all messages that the agent saw.
        window: what is left of them.
    """
    missing = [path for path in dict.fromkeys(paths_of(action)) if not shows(window, path)]
    if not missing:
        return False
    whole = [plain_message(message) for message in prompt]
    return any(shows(whole, path) for path in missing)


def _holds(value: Any, path: str) -> bool:
    if isinstance(value, str):
        return path in value
    if isinstance(value, dict):
        return any(_holds(item, path) for item in value.values())
    return isinstance(value, list) and any(_holds(item, path) for item in value)
