"""Where rows of a lake were written to outside of it."""

import json
import os
from collections.abc import Iterable
from errno import EISDIR
from pathlib import Path

from composer_pipeline.files import make_folder, writing
from composer_pipeline.lake.store import Lake

FILE = "exports.json"


def remember_exports(lake: Lake, paths: Iterable[Path], what: str) -> None:
    """Put files on the list before they are written, and make their folders."""
    absolute = {path.absolute() for path in paths}
    for path in absolute:
        with writing(f"{what} {path}"):
            make_folder(path.parent)
            if path.is_dir():
                raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
    known = set(json.loads(lake.get_bytes(FILE))) if lake.exists(FILE) else set()
    if more := set(map(str, absolute)) - known:
        lake.put_bytes(FILE, json.dumps(sorted(known | more), indent=1).encode())


def exports(lake: Lake) -> list[Path]:
    """Return the files of the list that are still there."""
    if not lake.exists(FILE):
        return []
    return [path for path in map(Path, json.loads(lake.get_bytes(FILE))) if path.is_file()]


def prune_exports(lake: Lake) -> None:
    """Take files that are no longer there off the list: a name may tell what was in one."""
    if lake.exists(FILE):
        left = sorted(map(str, exports(lake)))
        lake.put_bytes(FILE, json.dumps(left, indent=1).encode())
