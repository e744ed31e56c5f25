"""Endpoints that read: what there is, trees, and the bytes of files.

Does not belong here: anything that changes a repository (``repositories``, ``uploads``).
"""

import json
import re
from typing import Any
from urllib.parse import parse_qs

from composer_pipeline.testing.hub.handler import Handler
from composer_pipeline.testing.hub.repository import is_lfs, oid_of


def info(self: Handler, repo: str, revision: str = "main", **_: Any) -> None:
    """A repository: its head, its files, and who may see it."""
    commit = self.commit_at(repo, revision)
    if commit:
        names = [{"rfilename": name} for name in sorted(commit.files)]
        said = {"id": repo, "sha": commit.oid, "siblings": names, "tags": []}
        found = self.repos[repo]
        self.json({**said, "private": found.private, "gated": found.gated and "manual"})


def auth_check(self: Handler, repo: str, **_: Any) -> None:
    """Say whether the token may read the files."""
    found = self.repo_of(repo)
    if found and not self.closed(found):
        self.json({})


def _entry(name: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data)}
    entry["oid"] = oid_of("", data)
    if is_lfs(name):
        entry["lfs"] = {"oid": oid_of(name, data), "size": len(data), "pointerSize": 134}
    return entry


def tree(
    self: Handler, repo: str, revision: str, query: dict[str, list[str]], path: str | None, **_: Any
) -> None:
    """The files and folders below a folder."""
    commit = self.commit_at(repo, revision)
    if not commit:
        return
    folder = (path or "").strip("/")
    prefix = f"{folder}/" if folder else ""
    below = {k: v for k, v in sorted(commit.files.items()) if k.startswith(prefix)}
    if prefix and not below:
        self.error(404, f"{path} does not exist", "EntryNotFound")
        return
    recursive = query.get("recursive", ["false"])[0].lower() == "true"
    out: dict[str, dict[str, Any]] = {}
    for name, data in below.items():
        parts = name.removeprefix(prefix).split("/")
        for depth in range(1, len(parts)):
            above = prefix + "/".join(parts[:depth])
            if recursive or depth == 1:
                out[above] = {"type": "directory", "path": above, "size": 0, "oid": "0" * 40}
        if recursive or len(parts) == 1:
            out[name] = _entry(name, data)
    self.json(list(out.values()))


def paths_info(self: Handler, repo: str, revision: str, body: bytes, **_: Any) -> None:
    """What some paths are; those that are not there are left out."""
    commit = self.commit_at(repo, revision)
    if not commit:
        return
    text = body.decode()
    asked = json.loads(text) if text.startswith("{") else parse_qs(text)
    out = []
    for name in asked.get("paths", []):
        if name in commit.files:
            out.append(_entry(name, commit.files[name]))
        elif any(path.startswith(f"{name}/") for path in commit.files):
            out.append({"type": "directory", "path": name, "size": 0, "oid": "0" * 40})
    self.json(out)


def resolve(self: Handler, repo: str, revision: str, path: str, **_: Any) -> None:
    """The bytes of a file, or of a range of it."""
    commit = self.commit_at(repo, revision)
    if not commit or self.closed(self.repos[repo]):
        return
    if path not in commit.files:
        self.error(404, "Entry not found", "EntryNotFound")
        return
    data = commit.files[path]
    headers = {
        "X_Repo_Commit": commit.oid,
        "ETag": f'"{oid_of(path, data)}"',
        "X_Linked_Size": str(len(data)),
        "Accept_Ranges": "bytes",
    }
    wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
    if wanted and self.command == "GET":
        low, high = wanted.groups()
        start = int(low) if low else max(0, len(data) - int(high))
        end = min(int(high), len(data) - 1) if low and high else len(data) - 1
        headers["Content_Range"] = f"bytes {start}-{end}/{len(data)}"
        self.send(206, data[start : end + 1], **headers)
    else:
        self.send(200, data, Content_Length=str(len(data)), **headers)
