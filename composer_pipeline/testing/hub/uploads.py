"""Endpoints of an upload: what is LFS, objects by LFS and by Xet, and the commit.

Does not belong here: repositories and their refs (``repositories``), reading (``reading``).
"""

import base64
import hashlib
import json
import time
from typing import Any

import yaml

from composer_pipeline.testing.hub.handler import Handler
from composer_pipeline.testing.hub.repository import Repo, is_lfs, oid_of


def validate_yaml(self: Handler, body: bytes, **_: Any) -> None:
    """Judge the front matter of a card."""
    text = json.loads(body)["content"]
    parts = text.split("---\n")
    try:
        ok = text.startswith("---\n") and isinstance(yaml.safe_load(parts[1]), dict)
    except yaml.YAMLError:
        ok = False
    if ok:
        self.json({"errors": [], "warnings": []})
    else:
        self.json({"errors": [{"message": "Invalid metadata in README.md."}]}, 400)


def preupload(self: Handler, repo: str, body: bytes, **_: Any) -> None:
    """Say for each file whether it is an LFS object, and what the head has under its name."""
    found = self.repo_of(repo, write=True)
    if not found:
        return
    have = found.head.files
    files = [
        {
            "path": name,
            "uploadMode": "lfs" if is_lfs(name) else "regular",
            "shouldIgnore": False,
            "oid": oid_of(name, have[name]) if name in have else None,
        }
        for name in (entry["path"] for entry in json.loads(body)["files"])
    ]
    self.json({"files": files})


def batch(self: Handler, repo: str, body: bytes, **_: Any) -> None:
    """Say where to put the objects that are missing."""
    if not self.repo_of(repo, write=True):
        return
    objects = []
    for wanted in json.loads(body)["objects"]:
        entry = {"oid": wanted["oid"], "size": wanted["size"]}
        if wanted["oid"] not in self.hub.blobs:
            href = f"{self.hub.endpoint}/lfs/{wanted['oid']}"
            entry["actions"] = {"upload": {"href": href}, "verify": {"href": f"{href}/verify"}}
        objects.append(entry)
    self.json({"transfer": "basic", "objects": objects})


def put(self: Handler, oid: str, body: bytes, **_: Any) -> None:
    """Take an object whose bytes are what was announced."""
    if hashlib.sha256(body).hexdigest() != oid:
        self.error(400, "the bytes do not have the announced SHA-256")
        return
    self.hub.blobs[oid] = body
    self.send(200)


def verify(self: Handler, oid: str, body: bytes, **_: Any) -> None:
    """Say whether an object arrived whole."""
    known = self.hub.blobs.get(oid)
    ok = known is not None and len(known) == json.loads(body)["size"]
    self.send(200 if ok else 404)


def xet_token(self: Handler, repo: str, how: str, **_: Any) -> None:
    """Send ``hf_xet`` to a folder of this machine in place of a storage server."""
    if self.repo_of(repo, write=how == "write"):
        where = f"local://{self.hub.xet.folder}"
        until = int(time.time()) + 3600
        body = json.dumps({"casUrl": where, "exp": until, "accessToken": "loopback"}).encode()
        headers = {
            "X_Xet_Cas_Url": where,
            "X_Xet_Token_Expiration": str(until),
            "X_Xet_Access_Token": "loopback",
        }
        self.send(200, body, Content_Type="application/json", **headers)


def commit(self: Handler, repo: str, body: bytes, **_: Any) -> None:
    """Make one commit of everything, or none."""
    found = self.repo_of(repo, write=True)
    if not found:
        return
    if self.hub.before_commit:
        self.hub.before_commit(found)
    entries = [json.loads(line) for line in body.splitlines() if line]
    header = entries[0]["value"]
    if header.get("parentCommit", found.head.oid) != found.head.oid:
        self.error(412, "A commit has happened since. Please refresh and try again.")
        return
    files = dict(found.head.files)
    for entry in entries[1:]:
        said = _apply(self, files, entry["key"], entry["value"])
        if said:
            self.error(400, said)
            return
    _keep_pushed(found, files)
    made = found.add(header["summary"], files, self.hub.clock())
    url = f"{self.hub.endpoint}/{'' if self.models else 'datasets/'}{repo}/commit/{made.oid}"
    self.json({"success": True, "commitOid": made.oid, "commitUrl": url, "hookOutput": ""})


def _apply(self: Handler, files: dict[str, bytes], kind: str, value: dict[str, Any]) -> str:
    """Change a tree by one line of a commit; return why it cannot be, or nothing."""
    name = value["path"]
    if kind == "file":
        files[name] = base64.b64decode(value["content"])
    elif kind == "lfsFile":
        data = self.hub.object(value["oid"])
        if data is None or len(data) != value.get("size", len(data)):
            return f"{name}: the object {value['oid']} never arrived"
        files[name] = data
    elif kind == "deletedFile" and name in files:
        del files[name]
    elif kind == "deletedFolder":
        for path in [path for path in files if path.startswith(f"{name.rstrip('/')}/")]:
            del files[path]
    else:
        return f"{kind} {name}: not there"
    return ""


def _keep_pushed(found: Repo, files: dict[str, bytes]) -> None:
    """Remember the objects of a tree: a squash leaves them in the repository's storage."""
    for path, data in files.items():
        if is_lfs(path):
            found.pushed[oid_of(path, data)] = {"filename": path, "size": len(data)}
