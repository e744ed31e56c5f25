"""Reading JSON that others wrote: lines that a user names, and values of any shape.

Belongs here: JSON Lines with the file and line of what is wrong; getters that take any value
and answer only with the type asked for; all strings of a value. Does not belong here:
session files, which are read tolerantly (``traces.reading.records``), and rules of one format.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from composer_pipeline.errors import InputError


def json_objects(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for each line of ``text`` that is not blank.

    Args:
        path: where the text is from, for messages.
        text: the file's content.

    Raises:
        InputError: a line is no JSON, or no object; names the file and the line.
    """
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}:{number}: not JSON: {error.msg}") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number}: not a JSON object")
        yield number, row


def mapping(value: Any) -> dict[str, Any]:
    """Return the value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def mapping_at(value: Any, key: str) -> dict[str, Any]:
    """Return the object at a key of an object, else an empty one."""
    return mapping(mapping(value).get(key))


def text(value: Any) -> str | None:
    """Return the value where it is text."""
    return value if isinstance(value, str) else None


def integer(value: Any) -> int | None:
    """Return the value where it is a whole number; a flag is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def flag(value: Any) -> bool | None:
    """Return the value where it is true or false."""
    return value if isinstance(value, bool) else None


def strings(value: Any) -> Iterator[str]:
    """Yield every text inside a JSON value, in order; the names of fields are none."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
