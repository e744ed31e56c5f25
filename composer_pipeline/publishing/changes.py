"""What a commit has to change, from what the repository holds.

Does not belong here: requests (``publishing.hub``).
"""

import hashlib
from collections.abc import Mapping


def plan_changes(files: Mapping[str, bytes], remote: Mapping[str, str]) -> dict[str, str]:
    """Return path to ``add``, ``replace`` or ``delete``, sorted by path.

    Args:
        files: what the repository shall hold.
        remote: path to SHA-256 (LFS) or git blob id of what it holds. Files that are not
            ours (outside ``data/``) are left alone.
    """
    changes = {}
    for path, data in files.items():
        if path not in remote:
            changes[path] = "add"
        elif remote[path] not in (hashlib.sha256(data).hexdigest(), _git_blob(data)):
            changes[path] = "replace"
    for path in remote:
        if path not in files and path.startswith("data/") and path.endswith(".parquet"):
            changes[path] = "delete"
    return dict(sorted(changes.items()))


def _git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324
