"""What a commit has to change, from what the repository holds.

Does not belong here: requests (``publishing.hub``).
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import IO

#: The bytes of a file, or where they are: weights need not fit into memory.
Content = bytes | Path


def plan_changes(
    files: Mapping[str, Content], remote: Mapping[str, str], ours: Callable[[str], bool]
) -> dict[str, str]:
    """Return path to ``add``, ``replace`` or ``delete``, sorted by path.

    Args:
        files: what the repository shall hold.
        remote: path to SHA-256 (LFS) or git blob id of what it holds.
        ours: whether a path is one of a publication; other files are left alone.
    """
    changes = {}
    for path, content in files.items():
        if path not in remote:
            changes[path] = "add"
        elif remote[path] not in hashes_of(content):
            changes[path] = "replace"
    for path in remote:
        if path not in files and ours(path):
            changes[path] = "delete"
    return dict(sorted(changes.items()))


def hashes_of(content: Content) -> tuple[str, str]:
    """Return the two names that the Hub may have for a content: SHA-256 and git blob id."""
    if isinstance(content, bytes):
        return _hashes(BytesIO(content), len(content))
    now = content.stat()
    return _of_file(content, now.st_size, now.st_mtime_ns, now.st_ino)


@lru_cache(maxsize=1024)
def _of_file(path: Path, size: int, *_: int) -> tuple[str, str]:
    """Read a file once while it stays as it is: a publication asks for its hashes five times."""
    with path.open("rb") as stream:
        return _hashes(stream, size)


def _hashes(stream: IO[bytes], size: int) -> tuple[str, str]:
    sha, blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size)  # noqa: S324
    while part := stream.read(1 << 20):
        sha.update(part)
        blob.update(part)
    return sha.hexdigest(), blob.hexdigest()
