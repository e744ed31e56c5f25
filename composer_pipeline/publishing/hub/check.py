"""What the Hub holds, read back: files, rows, and what a publication changes in rows.

Belongs here: reading Parquet by ranges, so that little is loaded. Does not belong here: what may
be published (``publishing.gates``) and when it is committed (``bring``).
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.errors import ComposerError
from composer_pipeline.publishing.changes import Content, hashes_of
from composer_pipeline.publishing.hub.client import Entry, Hub, RemoteFile

#: Columns that tell one row of a configuration from another, the first that there is.
_IDS = ("pair_id", "reply_id", "state_id")
_BUFFER = 1 << 16


def check_published(hub: Hub, head: str, files: Mapping[str, Content]) -> dict[str, int]:
    """Compare a commit with what was sent; return the rows of each Parquet file in it.

    Each file is known by its hash, and each Parquet file is opened through the Hub.

    Raises:
        ComposerError: something is missing or another.
    """
    tree = hub.tree(head, made=True)
    rows = {}
    for path, content in files.items():
        entry = tree.get(path)
        if entry is None or entry.oid not in hashes_of(content):
            raise ComposerError(
                f"{hub.subject}: {path} of commit {head[:8]} is not what was sent; publish again"
            )
        if path.endswith(".parquet"):
            rows[path] = _remote(hub, path, head, entry).metadata.num_rows
            sent = pq.read_metadata(_local(content)).num_rows
            if rows[path] != sent:
                raise ComposerError(
                    f"{hub.subject}: {path} of commit {head[:8]} has {rows[path]} rows in place of"
                    f" {sent}; publish again"
                )
    return rows


def rows_at(hub: Hub, revision: str) -> dict[str, int]:
    """Return the rows of each configuration and split at a revision, from the files' footers."""
    return by_split(
        {
            path: _remote(hub, path, revision, entry).metadata.num_rows
            for path, entry in hub.tree(revision).items()
            if path.endswith(".parquet")
        }
    )


def by_split(by_path: Mapping[str, int]) -> dict[str, int]:
    """Add up numbers by configuration and split, from paths ``data/pairs/train….parquet``."""
    total: dict[str, int] = {}
    for path, number in by_path.items():
        parts = path.removesuffix(".parquet").split("/")
        name = f"{parts[-2]}/{parts[-1].split('-')[0]}" if len(parts) > 1 else path
        total[name] = total.get(name, 0) + number
    return total


def row_changes(
    hub: Hub | None,
    revision: str,
    there: Mapping[str, Entry],
    files: Mapping[str, Content],
    changes: Mapping[str, str],
) -> dict[str, dict[str, int]]:
    """Return how many rows are ``added`` and ``removed`` in each file of a plan, by path.

    Rows are told apart by their id; a row whose other columns alone differ is neither.

    Args:
        hub: asked for the ids of files that were there; ``None`` where nothing was.
        revision: at which they were.
        there: the files at that revision.
        files: what the repository shall hold.
        changes: path to ``add``, ``replace`` or ``delete``.
    """
    found = {}
    for path in (path for path in changes if path.endswith(".parquet")):
        new = _ids(pq.ParquetFile(_local(files[path]))) if path in files else Counter[str]()
        old = Counter[str]()
        if hub and path in there:
            try:
                old = _ids(_remote(hub, path, revision, there[path]))
            except pa.ArrowInvalid:  # somebody's file, which goes
                old = Counter()
        added, removed = (new - old).total(), (old - new).total()
        found[path] = {"added": added, "removed": removed}
    return found


def _local(content: Content) -> pa.NativeFile:
    return pa.OSFile(str(content)) if isinstance(content, Path) else pa.BufferReader(content)


def _remote(hub: Hub, path: str, revision: str, entry: Entry) -> pq.ParquetFile:
    file = RemoteFile(hub, path, revision, entry.size)
    return pq.ParquetFile(pa.PythonFile(file, mode="r"), buffer_size=_BUFFER)


def _ids(file: pq.ParquetFile) -> Counter[str]:
    names = [name for name in _IDS if name in file.schema_arrow.names][:1]
    counted: Counter[str] = Counter()
    # One thread: one of Arrow's must not hold a file of Python's when the process ends.
    for batch in file.iter_batches(columns=names, use_threads=False) if names else ():
        counted.update(str(value) for value in batch.column(0).to_pylist())
    return counted
