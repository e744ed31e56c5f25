"""The style of an action in numbers: lengths, orders, quotes, blanks; not what it does.

Does not belong here: what a classifier makes of them (``preferences.quality.separability``).
"""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from composer_pipeline.json_values import strings

FEATURES = (
    "log_length",
    "has_text",
    "calls",
    "arguments",
    "keys_sorted",
    "keys_reversed",
    "keys_as_usual",
    "single_quotes",
    "double_quotes",
    "newlines",
    "spaces",
    "absolute_paths",
    "final_newline",
    "non_ascii",
)


_ABSOLUTE = re.compile(r"(?:^|[\s=\"'(])(?:/|~/)[\w.-]")


def style_of(
    messages: Sequence[Mapping[str, Any]], usual: Mapping[str, tuple[str, ...]]
) -> list[float]:
    """Return the numbers of an action, in the order of :data:`FEATURES`."""
    text = "".join(str(message.get("content") or "") for message in messages)
    calls = _calls(messages)
    keys = [(name, list(arguments)) for name, arguments in calls]
    body = "\n".join([s for _, arguments in calls for s in strings(arguments)] or [text])
    size = max(1, len(body))
    several = [(name, order) for name, order in keys if len(order) > 1]
    return [
        math.log1p(len(text) + sum(len(json.dumps(a)) for _, a in calls)),
        float(bool(text.strip())),
        float(len(calls)),
        float(sum(len(order) for _, order in keys)),
        _share([order == sorted(order) for _, order in several]),
        _share([order == sorted(order, reverse=True) for _, order in several]),
        _share([_in_order(order, usual.get(name, ())) for name, order in several]),
        body.count("'") / size,
        body.count('"') / size,
        body.count("\n") / size,
        body.count(" ") / size,
        float(len(_ABSOLUTE.findall(body))),
        float(body.endswith("\n")),
        sum(not char.isascii() for char in body) / size,
    ]


def usual_orders(sides: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, tuple[str, ...]]:
    """Return tool to its keys by their mean position over all actions, chosen or not."""
    places: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for messages in sides:
        for name, arguments in _calls(messages):
            for position, key in enumerate(arguments):
                places[name][key].append(position)
    return {
        name: tuple(sorted(of, key=lambda key: (_most_common(of[key]), key)))
        for name, of in places.items()
    }


def _most_common(values: Sequence[int]) -> int:
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value))


def _in_order(keys: Sequence[str], usual: Sequence[str]) -> bool:
    return list(keys) == [key for key in usual if key in keys]


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.5


def _calls(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    return [
        (call["function"]["name"], call["function"]["arguments"])
        for message in messages
        for call in message.get("tool_calls") or ()
    ]
