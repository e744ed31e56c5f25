"""Lines of a log with a wrong type in one field."""

import json
from collections.abc import Iterator
from typing import Any

_WRONG: tuple[Any, ...] = (None, True, 7, "odd", [], [None, 7], {}, {"odd": [1]})


def _changed(value: Any) -> Iterator[Any]:
    """Yield a value with each part replaced by each wrong type, and without it."""
    yield from _WRONG
    if isinstance(value, dict):
        for name, inner in value.items():
            yield {key: item for key, item in value.items() if key != name}
            yield from ({**value, name: other} for other in _changed(inner))
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from ([*value[:at], other, *value[at + 1 :]] for other in _changed(inner))


def logs_with_wrong_types(data: bytes) -> Iterator[bytes]:
    """Yield the log with one field of one line changed, for each field and each wrong type."""
    lines = data.splitlines()
    for at, line in enumerate(lines):
        for value in _changed(json.loads(line)):
            yield b"\n".join([*lines[:at], json.dumps(value).encode(), *lines[at + 1 :]])
