"""What a commit has to change, from what the repository holds.

Does not belong here: requests (``publishing.hub``).
"""

import hashlib
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path

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
    size = content.stat().st_size if isinstance(content, Path) else len(content)
    sha, blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size)  # noqa: S324
    with content.open("rb") if isinstance(content, Path) else BytesIO(content) as stream:
        while part := stream.read(1 << 20):
            sha.update(part)
            blob.update(part)
    return sha.hexdigest(), blob.hexdigest()
