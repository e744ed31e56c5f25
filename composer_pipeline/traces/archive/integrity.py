"""Whether the archive still holds what it held: no session shrank, no bytes are gone.

Belongs here: comparing the manifest with its high-water mark and with the blobs. Does not
belong here: writing either.
"""

import json
from collections.abc import Iterable

from composer_pipeline.lake import Lake
from composer_pipeline.traces.archive.blobs import blob_name

#: Path to (size, sha256) of every archived file at the last check that found nothing.
HIGH_WATER = "checks/raw_sessions_high_water.json"


def forget_files(lake: Lake, paths: Iterable[str]) -> None:
    """Take files out of the high-water mark: they are gone on purpose."""
    if lake.exists(HIGH_WATER):
        before, gone = json.loads(lake.get_bytes(HIGH_WATER)), set(paths)
        kept = {path: value for path, value in before.items() if path not in gone}
        lake.put_bytes(HIGH_WATER, json.dumps(kept, sort_keys=True).encode())


def shrunk_or_lost(lake: Lake) -> list[str]:
    """Return the archived files that are shorter than at the last check, or lack bytes.

    Where there is none, the manifest of now is what the next check compares with.
    """
    now = {
        path: [int(size), sha]
        for path, size, sha in lake.query("SELECT path, size, sha256 FROM raw_files")
    }
    before = json.loads(lake.get_bytes(HIGH_WATER)) if lake.exists(HIGH_WATER) else {}
    bad = {path for path, (size, _) in before.items() if now.get(path, [-1])[0] < size}
    pieces = "SELECT path, unnest(coalesce(pieces, [sha256])) FROM raw_files"
    bad |= {path for path, sha in lake.query(pieces) if not lake.exists(blob_name(sha))}
    if not bad:
        lake.put_bytes(HIGH_WATER, json.dumps(now, sort_keys=True).encode())
    return sorted(bad)
