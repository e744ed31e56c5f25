"""Whether a table is as it was, by sizes and times alone; and which build its dataset is.

Belongs here: one hash over the files of a table, the name of a build. Does not belong here:
whether their bytes are whole (``lake.damage``).
"""

import hashlib
import json
import os
from pathlib import Path

from composer_pipeline.lake.place import BUILD
from composer_pipeline.lake.store import Lake


def build_id(lake: Lake) -> str:
    """Return the name of the build that the dataset tables are of; empty where there is none."""
    if not lake.exists(BUILD):
        return ""
    try:
        found = json.loads(lake.get_bytes(BUILD))
    except ValueError:
        return ""
    return str(found.get("id", "")) if isinstance(found, dict) else ""


def stamp(lake: Lake, table: str) -> str:
    """Return a hash of the names, sizes and times of a table's files; nothing is opened.

    Partitions are replaced whole, so another content has another stamp.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, about in sorted(file_stamps(lake, table).items()):
        digest.update(f"{name} {about}".encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()


def file_stamps(lake: Lake, table: str) -> dict[str, str]:
    """Return path -> size and time of each file of a table; nothing is opened."""
    return _local(lake, table) if lake.local else _remote(lake, table)


def _local(lake: Lake, table: str) -> dict[str, str]:
    found = {}
    for folder, _, names in os.walk(f"{lake.root}/{table}"):
        for name in names:
            about = Path(folder, name).stat()
            found[f"{folder}/{name}"] = f"{about.st_size} {about.st_mtime_ns} {about.st_ino}"
    return found


def _remote(lake: Lake, table: str) -> dict[str, str]:
    try:
        files = lake.fs.find(f"{lake.root}/{table}", detail=True)
    except FileNotFoundError:
        return {}
    times = ("e_tag", "ETag", "last_modified", "LastModified", "mtime", "created")
    return {
        str(name): f"{about.get('size')} {[str(about[key]) for key in times if key in about]}"
        for name, about in files.items()
    }
