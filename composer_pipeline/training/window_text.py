"""Plain chat messages and turns, and texts counted and shortened by a tokenizer."""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from composer_pipeline.actions import chat_calls
from composer_pipeline.window import Message, paths_of, turns_of, without_middle

#: The system message of a window whose prompt has none; templates insert worse ones.
SYSTEM = "You are a coding agent."


class Dropped(Exception):
    """A row cannot be trained on; the message is the reason under which it is counted."""


def action_message(messages: Sequence[Message]) -> Message:
    """Return the single assistant message of an action as a plain message."""
    assistants = [message for message in messages if message.get("role") == "assistant"]
    if len(assistants) != 1:
        raise Dropped("action is not one assistant message")
    return plain_message(assistants[0])


def plain_message(message: Message) -> Message:
    """Return a message with text content and mappings as arguments."""
    out: Message = {"role": message["role"], "content": message.get("content") or ""}
    if message.get("tool_calls"):
        out["tool_calls"] = [
            tool_call(function["name"], _object(function.get("arguments") or {}))
            for function in (call.get("function", call) for call in message["tool_calls"])
        ]
    if message["role"] == "tool":
        out["name"] = message.get("name") or ""
    return out


def tool_call(name: str, arguments: Any) -> dict[str, Any]:
    """Return a tool call in chat form."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def split_turns(messages: Sequence[Message]) -> tuple[Message, list[list[Message]]]:
    """Return the plain system message and the turns; results belong to their call's turn."""
    plain = [plain_message(message) for message in messages]
    first = 1 if plain and plain[0]["role"] == "system" else 0
    system = plain[0] if first else {"role": "system", "content": SYSTEM}
    return system, turns_of(plain[first:])


def _object(arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None
    if not isinstance(arguments, dict):
        raise Dropped("tool arguments are not an object")
    return arguments


#: Most characters of a token, except for runs of blanks.
_MOST_CHARS = 12
#: Characters of each of the four samples by which a long text is measured.
_SAMPLE = 512
#: Texts whose length is cached: the states of a session share messages.
_REMEMBERED = 1 << 16


class Texts:
    """Counts and shortens texts for one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._lengths: dict[int, int] = {}
        self.shortened = lru_cache(maxsize=4096)(self._shortened)

    def ids(self, text: str) -> list[int]:
        """Tokenise rendered text, which already contains the special tokens."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def count(self, text: str) -> int:
        """Return the approximate number of tokens; of a long text only samples are tokenised."""
        if not text:
            return 0
        key = hash(text)
        if key not in self._lengths:
            if len(self._lengths) >= _REMEMBERED:
                self._lengths.clear()
            self._lengths[key] = self._measured(text)
        return self._lengths[key]

    def _measured(self, text: str) -> int:
        if len(text) <= 4 * _SAMPLE:
            return len(self.ids(text))
        starts = (len(text) * part // 4 for part in range(4))
        parts = [text[start : start + _SAMPLE] for start in starts]
        return sum(len(self.ids(part)) for part in parts) * len(text) // (4 * _SAMPLE)

    def _shortened(self, text: str, tokens: int) -> str:
        # Head and tail of the text, about ``tokens`` in total, with CUT between.
        half = max(1, (tokens - 4) // 2)
        if len(text) <= half:  # a token has at least one character, or a byte of one
            return text
        ends = half * _MOST_CHARS
        if len(text) <= 2 * ends:
            offsets = self._offsets(text)
            if len(offsets) <= tokens:
                return text
            return without_middle(text, offsets[half - 1][1], offsets[-half][0])
        # Only the ends of a long text are tokenised.
        head, tail = text[:ends], text[-ends:]
        first, last = self._offsets(head), self._offsets(tail)
        stop = first[min(half, len(first)) - 1][1]
        start = len(text) - ends + last[-min(half, len(last))][0]
        return without_middle(text, stop, start)

    def _offsets(self, text: str) -> Any:
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return found["offset_mapping"]


def shows(messages: Iterable[Message], path: str) -> bool:
    """Return True if a path occurs in a content or an argument of plain messages."""
    return any(
        path in message["content"] or any(_holds(args, path) for _, args in chat_calls(message))
        for message in messages
    )


def names_lost_file(action: Message, prompt: Sequence[Message], window: Sequence[Message]) -> bool:
    """Return True if an action names a file that the prompt showed but the window does not."""
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
