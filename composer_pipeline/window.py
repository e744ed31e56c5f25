"""What of a long prompt is kept: the task, the latest reads of touched files, and whole turns.

One policy for all: what a model is trained on is cut by the tokens of its own tokenizer, what a
teacher is asked by bytes, since its tokenizer is not known.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from composer_pipeline.actions import PATH_ARGUMENTS, chat_calls
from composer_pipeline.tool_names import chat_steps

Message = dict[str, Any]
#: Replaces the middle of a shortened text.
CUT = "\n[…]\n"


def paths_of(message: Message) -> Iterator[str]:
    """Yield the files that calls of a plain message name in path arguments."""
    for step in chat_steps(message):
        for key in PATH_ARGUMENTS:
            value = step.arguments.get(key)
            if isinstance(value, str) and value.strip("./"):
                yield value


def without_middle(text: str, stop: int, start: int) -> str:
    """Return a text without its middle, which begins and ends between words.

    A part of a word is another word: of `noreply@example.com` the address of somebody.
    """
    head, tail = text[:stop], text[start:]
    if text[stop : stop + 1].strip():
        head = _LAST_WORD.sub("", head) or head
    if text[start - 1 : start].strip():
        tail = _FIRST_WORD.sub("", tail) or tail
    return head + CUT + tail


_LAST_WORD, _FIRST_WORD = re.compile(r"\S{1,100}\Z"), re.compile(r"\A\S{1,100}")


def _read_in(message: Message) -> Iterator[str]:
    for step in chat_steps(message):
        path = step.arguments.get("file_path", step.arguments.get("notebook_path"))
        if step.name in ("Read", "NotebookRead") and isinstance(path, str):
            yield path


#: Replaces turns that were left out.
LEFT_OUT = "[{} earlier turns are left out here]"
#: Turns whose files count as touched, and how many files at most.
TOUCHED_TURNS, TOUCHED_FILES = 8, 6
#: Texts of an old turn are shortened to so many tokens before the turn is left out.
STUB = 24
#: The user's messages are never shortened further than this.
USER_STUB = 160
#: Shares of the budget: system message, task, last turn, reads of touched files, near turns.
SYSTEM_SHARE, TASK_SHARE, LAST_SHARE, READ_SHARE, NEAR_SHARE = 0.2, 0.2, 0.35, 0.15, 0.15
NEAR_TURNS = 3
_FULL = 1 << 30


@dataclass(frozen=True)
class Overhead:
    """Tokens that a template adds around a message, and around a call with its result."""

    message: int
    call: int


def turns_of(messages: Iterable[Message]) -> list[list[Message]]:
    """Return messages in turns; results belong to their call's turn."""
    turns: list[list[Message]] = []
    for message in messages:
        if message["role"] == "tool" and turns:
            turns[-1].append(message)
        else:
            turns.append([message])
    return turns


class Texts(Protocol):
    """Counts and shortens texts, in the tokens of one tokenizer or in an estimate of them."""

    def count(self, text: str) -> int:
        """Return the tokens of a text, about."""

    def shortened(self, text: str, tokens: int) -> str:
        """Return head and tail of a text, about so many tokens, with :data:`CUT` between."""


class Turn:
    """A turn with the sizes of its texts, so that its cost at any length is a sum."""

    def __init__(self, texts: Texts, messages: list[Message], overhead: Overhead) -> None:
        self.messages = messages
        #: Files that the turn read.
        self.reads = [path for message in messages for path in _read_in(message)]
        self.fixed = 0
        self.sizes: list[int] = []
        self.least = USER_STUB if messages[0]["role"] == "user" else STUB
        for message in messages:
            self.fixed += overhead.message if message["role"] != "tool" else 0
            self.sizes.append(texts.count(message["content"]))
            for name, arguments in chat_calls(message):
                self.fixed += overhead.call + texts.count(name)
                for key, value in arguments.items():
                    self.fixed += 3 + texts.count(key)
                    size = texts.count(json.dumps(value))  # templates escape it
                    if _is_shortened(key, value):
                        self.sizes.append(size)
                    else:
                        self.fixed += size

        self.sizes.sort()
        self.total = self.fixed + sum(self.sizes)

    def cost(self, length: int) -> int:
        """Return the tokens of the turn with each text shortened to ``length``."""
        if length == _FULL:
            return self.total
        length = max(length, self.least)
        return self.fixed + sum(min(size, length) for size in self.sizes)

    def longest(self, tokens: int) -> int:
        """Return the largest length whose cost is at most ``tokens``, or 0."""
        if self.total <= tokens:
            return _FULL
        left = tokens - self.fixed
        for at, size in enumerate(self.sizes):
            more = len(self.sizes) - at
            if size * more > left:
                length = left // more
                return length if length >= self.least else 0
            left -= size
        return 0


def fit(
    texts: Texts, overhead: Overhead, system: Message, turns: Sequence[Turn], budget: int
) -> tuple[list[Message], int]:
    """Return the messages that fit a token budget and their estimated tokens, without tools."""
    head = Turn(texts, [system], overhead)
    head.least = 1
    length = head.longest(int(budget * SYSTEM_SHARE)) or 1
    kept = [_shortened(texts, system, length)]
    lengths = _lengths(turns, budget - head.cost(length)) if turns else {}
    before = -1
    for at in sorted(lengths):
        if at - before > 1:
            _mark(kept, at - before - 1)
        _append(kept, [_shortened(texts, message, lengths[at]) for message in turns[at].messages])
        before = at
    return kept, head.cost(length) + sum(turns[at].cost(n) for at, n in lengths.items())


def _lengths(turns: Sequence[Turn], budget: int) -> dict[int, int]:
    # Turn number to the length of its texts, for the turns that are kept.
    last = len(turns) - 1
    lengths: dict[int, int] = {}
    left = budget

    def keep(at: int, allowance: float) -> bool:
        nonlocal left
        before = turns[at].cost(lengths[at]) if at in lengths else 0
        allowance = max(allowance, turns[at].cost(0))
        length = turns[at].longest(int(min(allowance, left + before)))
        if length > lengths.get(at, 0):
            lengths[at] = length
            left += before - turns[at].cost(length)
        return length > 0

    if not keep(last, budget * (LAST_SHARE if last else 1.0)):
        lengths[last] = 1  # the caller checks whether that fits
        left -= turns[last].cost(1)
    if last:
        keep(0, budget * TASK_SHARE)
    reads = _latest_reads(turns)
    for at in reads:
        keep(at, budget * READ_SHARE / len(reads))
    for at in range(last - 1, max(last - 1 - NEAR_TURNS, 0), -1):
        keep(at, budget * NEAR_SHARE / NEAR_TURNS)
    for at in range(last - 1, 0, -1):
        if at not in lengths and not keep(at, 0):
            break
    for at in (last, *reads, *sorted(lengths, reverse=True)):
        keep(at, budget)
    return lengths


def _latest_reads(turns: Sequence[Turn]) -> list[int]:
    # The turns with the latest read of each recently touched file, the newest touch first.
    touched: list[str] = []
    for turn in reversed(turns[-TOUCHED_TURNS:]):
        for message in turn.messages:
            touched += [path for path in paths_of(message) if path not in touched]
    reads: dict[str, int] = {}
    for at, turn in enumerate(turns):
        for path in turn.reads:
            reads[path] = at
    found = (reads[path] for path in touched[:TOUCHED_FILES] if path in reads)
    return list(dict.fromkeys(found))


def _shortened(texts: Texts, message: Message, length: int) -> Message:
    if message["role"] == "user":
        length = max(length, USER_STUB)
    if length == _FULL:
        return message
    out = {**message, "content": texts.shortened(message["content"], length)}
    if message.get("tool_calls"):
        out["tool_calls"] = [_short_call(texts, call, length) for call in message["tool_calls"]]
    return out


def _is_shortened(key: str, value: Any) -> bool:
    return isinstance(value, str) and key not in PATH_ARGUMENTS


def _short_call(texts: Texts, call: dict[str, Any], length: int) -> dict[str, Any]:
    function = call["function"]
    arguments = {
        key: texts.shortened(value, length) if _is_shortened(key, value) else value
        for key, value in function["arguments"].items()
    }
    return {**call, "function": {**function, "arguments": arguments}}


def _mark(kept: list[Message], missing: int) -> None:
    content = f"{kept[-1]['content']}\n\n{LEFT_OUT.format(missing)}".strip()
    kept[-1] = {**kept[-1], "content": content}


def _append(kept: list[Message], turn: list[Message]) -> None:
    # Templates refuse two user messages in a row.
    if kept[-1]["role"] == turn[0]["role"] == "user":
        joined = f"{kept[-1]['content']}\n\n{turn[0]['content']}"
        kept[-1] = {**kept[-1], "content": joined}
        turn = turn[1:]
    kept += turn
