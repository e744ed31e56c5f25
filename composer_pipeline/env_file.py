"""The file ``.env``: where the settings of a project are written down.

Belongs here: reading its lines, and changing some of them. Does not belong here: what the settings
mean (``settings``). Keys of services are read from the environment alone, never from here.
"""

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "COMPOSER_ENV_FILE"
_LINE = re.compile(r"\s*(?:export\s+)?([A-Z][A-Z0-9_]*)\s*=(.*)")


def env_file() -> Path:
    """Return the file: ``.env`` in the working folder, or ``COMPOSER_ENV_FILE``."""
    return Path(os.environ.get(VARIABLE) or ".env")


def load_env_file() -> None:
    """Take the ``COMPOSER_*`` lines into the environment, where a name is not set yet."""
    try:
        text = env_file().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    for line in text.splitlines():
        if (found := _LINE.fullmatch(line)) and found[1].startswith("COMPOSER_"):
            os.environ.setdefault(found[1], _value(found[2]))


def with_values(text: str, values: Mapping[str, str]) -> str:
    """Return the text of a file with some values; its other lines stay as they are."""
    left = dict(values)
    lines = []
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        name = found[1] if found else ""
        lines.append(f"{name}={shlex.quote(left.pop(name))}" if name in left else line)
    lines += [f"{name}={shlex.quote(value)}" for name, value in left.items()]
    return "\n".join(lines) + "\n"


def _value(text: str) -> str:
    try:
        return " ".join(shlex.split(text, comments=True))
    except ValueError:
        return text.strip()
