"""How close an action is to another, graded.

Belongs here: a pure function of two chat messages. Does not belong here: which action is the right
one, and what else counts (``training.rewards.parts``).
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Any

#: Shares of a tool call's score: the tool, its argument names, its argument values.
NAME, KEYS, VALUES = 0.2, 0.3, 0.5
_COMMAND_KEYS = frozenset({"command", "cmd"})
_EXACT = re.compile(r"(^|_)(path|file|id|url)s?$")
#: SequenceMatcher is cubic at worst: longer strings are compared by words, at their ends.
_MAX_CHARS, _MAX_WORDS = 500, 400


def action_match(candidate: Mapping[str, Any], consensus: Mapping[str, Any]) -> float:
    """Return how close an action is to the consensus action, in [0, 1].

    A call scores 0.2 for the tool, 0.3·Jaccard of the argument names and 0.5·mean value
    similarity; names with an empty value count only where the consensus leaves them empty
    too. Another tool scores 0. Calls are compared in order and averaged over the longer
    list, so that missing and surplus calls cost. Text answers are compared as strings; text
    against a call scores 0.

    Args:
        candidate: an assistant message in chat form.
        consensus: the assistant message to match.
    """
    left, right = calls_of(candidate), calls_of(consensus)
    if bool(left) != bool(right):
        return 0.0
    if not right:
        a, b = str(candidate.get("content") or ""), str(consensus.get("content") or "")
        return _similar(" ".join(a.split()), " ".join(b.split()))
    scores = [_call(a, b) for a, b in zip(left, right, strict=False)]
    return sum(scores) / max(len(left), len(right))


def calls_of(message: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return a chat message's calls as name and arguments; what is no object has the key ``""``."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                arguments = {"": arguments}
        calls.append((str(function.get("name")), arguments if isinstance(arguments, dict) else {}))
    return calls


def _call(candidate: tuple[str, dict[str, Any]], wanted: tuple[str, dict[str, Any]]) -> float:
    if candidate[0] != wanted[0]:
        return 0.0
    have, want = candidate[1], wanted[1]
    # An empty value for an argument that should have one is no argument: an empty Edit
    # must not collect the credit for naming the right arguments.
    keys = {key for key in have if not _empty(have[key]) or _empty(want.get(key, ""))}
    union = keys | set(want)
    if not union:
        return 1.0
    values = [_value(key, have[key], want[key]) if key in want else 0.0 for key in keys]
    return NAME + KEYS * len(keys & set(want)) / len(union) + VALUES * sum(values) / len(union)


def _empty(value: Any) -> bool:
    return value is None or value == "" or value == [] or value == {}


def _value(key: str, have: Any, want: Any) -> float:
    if not (isinstance(have, str) and isinstance(want, str)):
        return float(have == want)
    if key in _COMMAND_KEYS:
        return _token_f1(have, want)
    if _EXACT.search(key):
        return float(normal_path(have) == normal_path(want))
    return _similar(have.strip(), want.strip())


def normal_path(text: str) -> str:
    """Return a path without what does not change it."""
    text = re.sub(r"/+", "/", text.strip())
    return text.removeprefix("./").rstrip("/") or text


def _token_f1(have: str, want: str) -> float:
    a, b = Counter(have.split()), Counter(want.split())
    common = (a & b).total()
    if common == 0:
        return float(a == b)
    return 2 * common / (a.total() + b.total())


def _similar(a: str, b: str) -> float:
    if a == b:
        return 1.0
    if max(len(a), len(b)) <= _MAX_CHARS:
        return SequenceMatcher(None, a, b, autojunk=False).ratio()
    return SequenceMatcher(None, _words(a), _words(b), autojunk=False).ratio()


def _words(text: str) -> list[str]:
    words = text.split()
    half = _MAX_WORDS // 2
    return words if len(words) <= _MAX_WORDS else words[:half] + words[-half:]
