"""Reading JSON Lines that a user names.

Belongs here: one object a line, with the file and line of what is wrong. Does not belong
here: session files, which are read tolerantly (``traces.reading.records``).
"""

import json
from collections.abc import Iterator
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
