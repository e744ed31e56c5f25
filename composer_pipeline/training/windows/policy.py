"""What of a prompt stays when it does not fit.

Belongs here: which turns are kept, which of their texts are shortened, and how far. Does not
belong here: rendering and exact counts (``training.windows.window``).

The policy knows what the agent knew, never the action to come. Kept in any case are the system
message, the task (the first message) and the last turn; then, as far as the budget goes,

1. the latest read of each file that the last turns touched, wherever it stands;
2. the turns before the last one, the newest first, with their long texts shortened in place;
3. room that is left lengthens those texts again, the newest first.

What does not fit even when shortened is left out in whole turns, the oldest first: a call and
its results stay together. A mark says how many turns are missing.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from composer_pipeline.actions import PATH_ARGUMENTS
from composer_pipeline.training.windows.files import READERS, paths_of
from composer_pipeline.training.windows.messages import Message, calls_of
from composer_pipeline.training.windows.texts import Texts

#: Stands where turns were left out.
LEFT_OUT = "[{} earlier turns are left out here]"
#: Turns whose files count as touched, and how many files at most.
TOUCHED_TURNS, TOUCHED_FILES = 8, 6
#: A text of an old turn is shortened to this many tokens before a turn is left out.
STUB = 24
#: The user's own words are never shortened further than this.
USER_STUB = 160
#: Shares of the budget: system message, task, last turn, reads of touched files, near turns.
SYSTEM_SHARE, TASK_SHARE, LAST_SHARE, READ_SHARE, NEAR_SHARE = 0.2, 0.2, 0.35, 0.15, 0.15
NEAR_TURNS = 3
_FULL = 1 << 30


@dataclass(frozen=True)
class Overhead:
    """Tokens that a template spends around a message, and around a call with its result."""

    message: int
    call: int


class _Turn:
    """A turn with the sizes of its texts, so that its cost at any length is a sum."""

    def __init__(self, texts: Texts, messages: list[Message], overhead: Overhead) -> None:
        self.messages = messages
        self.fixed = 0
        self.sizes: list[int] = []
        self.least = USER_STUB if messages[0]["role"] == "user" else STUB
        for message in messages:
            self.fixed += overhead.message if message["role"] != "tool" else 0
            self.sizes.append(texts.count(message["content"]))
            for name, arguments in calls_of(message):
                self.fixed += overhead.call + texts.count(name)
                for key, value in arguments.items():
                    self.fixed += 3 + texts.count(key)
                    self.sizes.append(texts.count(json.dumps(value)))  # templates escape it

    def cost(self, length: int) -> int:
        """Return tokens when no text is longer than ``length``."""
        length = max(length, self.least)
        return self.fixed + sum(min(size, length) for size in self.sizes)

    def longest(self, tokens: int) -> int:
        """Return the largest length whose cost is at most ``tokens``, 0 when there is none."""
        if self.cost(_FULL) <= tokens:
            return _FULL
        low, high = self.least, max(self.sizes, default=self.least)
        if self.cost(low) > tokens:
            return 0
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.cost(middle) <= tokens else (low, middle)
        return low


def fit(
    texts: Texts,
    overhead: Overhead,
    system: Message,
    turns: Sequence[list[Message]],
    budget: int,
) -> tuple[list[Message], int]:
    """Return the messages that stay and their tokens, estimated, without tools.

    Args:
        texts: counts and shortens.
        overhead: what the template adds.
        system: the plain system message.
        turns: plain turns, oldest first.
        budget: tokens that the estimate stays below.
    """
    head = _Turn(texts, [system], overhead)
    head.least = 1
    length = head.longest(int(budget * SYSTEM_SHARE)) or 1
    kept = [_shortened(texts, system, length)]
    sized = [_Turn(texts, turn, overhead) for turn in turns]
    lengths = _lengths(sized, budget - head.cost(length)) if turns else {}
    before = -1
    for at in sorted(lengths):
        if at - before > 1:
            _mark(kept, at - before - 1)
        _append(kept, [_shortened(texts, message, lengths[at]) for message in turns[at]])
        before = at
    return kept, head.cost(length) + sum(sized[at].cost(n) for at, n in lengths.items())


def _lengths(turns: list[_Turn], budget: int) -> dict[int, int]:
    """Return turn number to the length of its texts, for the turns that stay."""
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
        lengths[last] = 1  # whether that fits is for the caller to see
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


def _latest_reads(turns: Sequence[_Turn]) -> list[int]:
    """Return the turns with the latest read of each file touched last, newest touch first."""
    touched: list[str] = []
    for turn in reversed(turns[-TOUCHED_TURNS:]):
        for message in turn.messages:
            touched += [path for path in paths_of(message) if path not in touched]
    reads: dict[str, int] = {}
    for at, turn in enumerate(turns):
        for path in _read_in(turn.messages):
            reads[path] = at
    found = (reads[path] for path in touched[:TOUCHED_FILES] if path in reads)
    return list(dict.fromkeys(found))


def _read_in(messages: Iterable[Message]) -> Iterable[str]:
    for message in messages:
        for name, arguments in calls_of(message):
            if name in READERS:
                for key in PATH_ARGUMENTS:
                    if isinstance(arguments.get(key), str):
                        yield arguments[key]


def _shortened(texts: Texts, message: Message, length: int) -> Message:
    if message["role"] == "user":
        length = max(length, USER_STUB)
    if length == _FULL:
        return message
    out = {**message, "content": texts.shortened(message["content"], length)}
    if message.get("tool_calls"):
        out["tool_calls"] = [_short_call(texts, call, length) for call in message["tool_calls"]]
    return out


def _short_call(texts: Texts, call: dict[str, Any], length: int) -> dict[str, Any]:
    function = call["function"]
    arguments = {
        key: texts.shortened(value, length)
        if isinstance(value, str) and key not in PATH_ARGUMENTS
        else value
        for key, value in function["arguments"].items()
    }
    return {**call, "function": {**function, "arguments": arguments}}


def _mark(kept: list[Message], missing: int) -> None:
    """Say at the end of the message before it that turns are missing."""
    said = f"{kept[-1]['content']}\n\n{LEFT_OUT.format(missing)}".strip()
    kept[-1] = {**kept[-1], "content": said}


def _append(kept: list[Message], turn: list[Message]) -> None:
    """Add a turn; two messages of the user in a row, which templates refuse, become one."""
    if kept[-1]["role"] == turn[0]["role"] == "user":
        joined = f"{kept[-1]['content']}\n\n{turn[0]['content']}"
        kept[-1] = {**kept[-1], "content": joined}
        turn = turn[1:]
    kept += turn
