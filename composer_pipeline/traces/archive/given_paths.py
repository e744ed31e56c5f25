"""What a PATH of the command line stands for.

Belongs here: globs, home folders, standard input. Does not belong here: walking folders
(``traces.archive.discover``).
"""

import shutil
import sys
import tempfile
from pathlib import Path

from composer_pipeline.errors import InputError

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")

#: A PATH that stands for standard input.
STDIN = "-"


def expanded(given: Path | str) -> list[Path]:
    """Return what a PATH stands for: itself, the matches of a glob, or standard input."""
    if not str(given):
        raise InputError("an empty PATH names nothing")
    if str(given) == STDIN:
        return [_standard_input()]
    path = Path(given).expanduser()
    if path.exists() or not any(char in str(path) for char in "*?["):
        return [path]
    root = Path(path.anchor or ".")
    pattern = str(path.relative_to(path.anchor)) if path.anchor else str(path)
    found = sorted(f for f in root.glob(pattern) if f.is_dir() or f.name.endswith(SUFFIXES))
    if not found:
        raise InputError(f"{given} matches no session file (*.jsonl, *.jsonl.gz, *.jsonl.zst)")
    return found


def _standard_input() -> Path:
    """Copy standard input to a file that lasts as long as this process."""
    folder = tempfile.TemporaryDirectory(prefix="composer-pipeline-")
    _KEPT.append(folder)
    target = Path(folder.name, "stdin.jsonl")
    with target.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    return target


_KEPT: list[tempfile.TemporaryDirectory[str]] = []
