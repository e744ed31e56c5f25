"""A Hugging Face Hub on the loopback interface that the real client libraries talk to.

Belongs here: the endpoints that ``huggingface_hub``, ``datasets`` and ``transformers`` call to
create a dataset or model repository, commit to it, tag it and read it back, with the Hub's own
refusals.
Does not belong here: any knowledge of what this project publishes.

Set ``HF_ENDPOINT`` to :attr:`LoopbackHub.endpoint` and ``HF_HUB_DISABLE_XET=1`` before the
client is imported, or pass ``endpoint=`` to it. The process keeps everything in memory.

Right as on the Hub: private repositories need the token; a commit whose ``parentCommit``
is not the head is a 412 and changes nothing; a PUT whose bytes differ from the announced
SHA-256 is a 400; a commit naming an LFS object that never arrived is a 400; Parquet and
safetensors are LFS and text is not; missing things are 404 with ``X-Error-Code``; the files of
a gated repository are a 403 with it. Datasets and models are kept apart.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml


@dataclass
class Commit:
    """A commit: its id, its message, and the whole tree as path to bytes."""

    oid: str
    message: str
    files: dict[str, bytes]


@dataclass
class Repo:
    """A repository; ``commits`` starts with the Hub's own initial commit.

    ``gated``: everybody sees that it exists, and nobody reads its files.
    """

    private: bool
    gated: bool = False
    commits: list[Commit] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def head(self) -> Commit:
        """The newest commit."""
        return self.commits[-1]

    def find(self, revision: str) -> Commit | None:
        """Return the commit that ``main``, a tag or an id names."""
        oid = self.head.oid if revision == "main" else self.tags.get(revision, revision)
        return next((commit for commit in self.commits if commit.oid == oid), None)

    def add(self, message: str, files: dict[str, bytes]) -> Commit:
        """Append a commit with this tree."""
        seed = f"{len(self.commits)}:{message}:{sorted(files)}"
        self.commits.append(Commit(hashlib.sha1(seed.encode()).hexdigest(), message, files))  # noqa: S324
        return self.head


class LoopbackHub:
    """The server; a context manager.

    Args:
        token: the only token that is accepted.

    Attributes:
        repos: ``owner/name`` to dataset repository.
        models: ``owner/name`` to model repository.
        requests: (method, path) of every request, in order.
        faults: (kind, status) pairs; each answers the next request of its kind with
            that status. Kinds: create, preupload, batch, put, commit, tag.
        before_commit: called with the repository before a commit is judged, for a
            publisher that was faster.
    """

    def __init__(self, token: str = "hf_loopback") -> None:  # noqa: S107
        self.token = token
        self.repos: dict[str, Repo] = {}
        self.models: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.faults: list[tuple[str, int]] = []
        self.before_commit: Callable[[Repo], None] | None = None
        self.lock = threading.RLock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.hub = self  # type: ignore[attr-defined]
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "LoopbackHub":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fault(self, kind: str) -> int | None:
        """Take the planned fault of this kind, if there is one."""
        with self.lock:
            for i, (wanted, status) in enumerate(self.faults):
                if wanted == kind:
                    del self.faults[i]
                    return status
        return None


def is_lfs(path: str) -> bool:
    """Say whether the Hub would keep this file as an LFS object."""
    return path.endswith((".parquet", ".arrow", ".safetensors", ".png"))


def oid_of(path: str, data: bytes) -> str:
    """Return the id that the Hub gives a file: SHA-256 for LFS, git's SHA-1 otherwise."""
    if is_lfs(path):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    #: Whether the request is about models; datasets otherwise.
    _models = False

    @property
    def hub(self) -> LoopbackHub:
        return self.server.hub  # type: ignore[attr-defined,no-any-return]

    @property
    def repos(self) -> dict[str, Repo]:
        return self.hub.models if self._models else self.hub.repos

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Keep quiet."""

    # -- answers ---------------------------------------------------------------

    def _send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), Content_Type="application/json")

    def _error(self, status: int, message: str, code: str = "") -> None:
        headers = {"X_Error_Message": message} | ({"X_Error_Code": code} if code else {})
        body = json.dumps({"error": message}).encode()
        self._send(status, body, Content_Type="application/json", **headers)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    # -- dispatch --------------------------------------------------------------

    def _dispatch(self) -> None:
        body = self._body()
        url = urlsplit(self.path)
        path = unquote(url.path)
        self.hub.requests.append((self.command, path))
        for method, pattern, kind, handler in _ROUTES:
            match = re.fullmatch(pattern, path)
            if match and self.command in method.split("|"):
                status = self.hub.fault(kind) if kind else None
                if status is not None:
                    self._error(status, f"planned fault on {kind}")
                    return
                found = match.groupdict()
                self._models = (found.pop("kind", None) or "models").startswith("models")
                with self.hub.lock:
                    handler(self, body=body, query=parse_qs(url.query), **found)
                return
        self._error(404, f"no such endpoint: {self.command} {path}", "EntryNotFound")

    do_GET = do_HEAD = do_POST = do_PUT = _dispatch  # noqa: N815

    def _authorised(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {self.hub.token}"

    def _repo(self, repo: str, *, write: bool = False) -> Repo | None:
        found = self.repos.get(repo)
        if found is not None and (self._authorised() or (not found.private and not write)):
            return found
        # As on the Hub: a private repository does not exist for those who cannot see it.
        self._error(404 if self._authorised() else 401, "Repository Not Found", "RepoNotFound")
        return None

    def _at(self, repo: str, revision: str) -> Commit | None:
        found = self._repo(repo)
        commit = found.find(revision) if found else None
        if found and commit is None:
            self._error(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    # -- endpoints -------------------------------------------------------------

    def create(self, body: bytes, **_: Any) -> None:
        if not self._authorised():
            self._error(401, "Invalid username or password.")
            return
        wanted = json.loads(body)
        name = f"{wanted['organization']}/{wanted['name']}"
        self._models = wanted.get("type", "model") == "model"
        url = f"{self.hub.endpoint}/{'' if self._models else 'datasets/'}{name}"
        if name in self.repos:
            self._json({"error": "You already created this repo", "url": url}, 409)
            return
        # As on the Hub: public unless the client asks for something else.
        repo = Repo(private=wanted.get("visibility") == "private" or bool(wanted.get("private")))
        repo.add("initial commit", {".gitattributes": b"*.parquet filter=lfs\n"})
        self.repos[name] = repo
        self._json({"url": url, "name": name, "id": name})

    def validate_yaml(self, body: bytes, **_: Any) -> None:
        text = json.loads(body)["content"]
        parts = text.split("---\n")
        try:
            ok = text.startswith("---\n") and isinstance(yaml.safe_load(parts[1]), dict)
        except yaml.YAMLError:
            ok = False
        if ok:
            self._json({"errors": [], "warnings": []})
        else:
            self._json({"errors": [{"message": "Invalid metadata in README.md."}]}, 400)

    def info(self, repo: str, revision: str = "main", **_: Any) -> None:
        commit = self._at(repo, revision)
        if commit:
            names = [{"rfilename": name} for name in sorted(commit.files)]
            said = {"id": repo, "sha": commit.oid, "siblings": names, "tags": []}
            found = self.repos[repo]
            self._json({**said, "private": found.private, "gated": found.gated and "manual"})

    def auth_check(self, repo: str, **_: Any) -> None:
        found = self._repo(repo)
        if found and not self._gated(found):
            self._json({})

    def _gated(self, found: Repo) -> bool:
        if found.gated:
            self._error(403, "Access to this repository is restricted.", "GatedRepo")
        return found.gated

    def preupload(self, repo: str, revision: str, body: bytes, **_: Any) -> None:
        found = self._repo(repo, write=True)
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
        self._json({"files": files})

    def batch(self, repo: str, body: bytes, **_: Any) -> None:
        if not self._repo(repo, write=True):
            return
        objects = []
        for wanted in json.loads(body)["objects"]:
            entry = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.hub.blobs:
                href = f"{self.hub.endpoint}/lfs/{wanted['oid']}"
                verify = f"{self.hub.endpoint}/lfs/{wanted['oid']}/verify"
                entry["actions"] = {"upload": {"href": href}, "verify": {"href": verify}}
            objects.append(entry)
        self._json({"transfer": "basic", "objects": objects})

    def put(self, oid: str, body: bytes, **_: Any) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            self._error(400, "the bytes do not have the announced SHA-256")
            return
        self.hub.blobs[oid] = body
        self._send(200)

    def verify(self, oid: str, body: bytes, **_: Any) -> None:
        known = self.hub.blobs.get(oid)
        ok = known is not None and len(known) == json.loads(body)["size"]
        self._send(200 if ok else 404)

    def commit(self, repo: str, revision: str, body: bytes, **_: Any) -> None:
        found = self._repo(repo, write=True)
        if not found:
            return
        if self.hub.before_commit:
            self.hub.before_commit(found)
        entries = [json.loads(line) for line in body.splitlines() if line]
        header = entries[0]["value"]
        if header.get("parentCommit", found.head.oid) != found.head.oid:
            self._error(412, "A commit has happened since. Please refresh and try again.")
            return
        files = dict(found.head.files)
        for entry in entries[1:]:
            kind, value = entry["key"], entry["value"]
            name = value["path"]
            if kind == "file":
                files[name] = base64.b64decode(value["content"])
            elif kind == "lfsFile" and value["oid"] in self.hub.blobs:
                files[name] = self.hub.blobs[value["oid"]]
            elif kind == "deletedFile" and name in files:
                del files[name]
            elif kind == "deletedFolder":
                files = {k: v for k, v in files.items() if not k.startswith(f"{name}/")}
            else:
                self._error(400, f"{kind} {name}: not there")
                return
        commit = found.add(header["summary"], files)
        url = f"{self.hub.endpoint}/{'' if self._models else 'datasets/'}{repo}/commit/{commit.oid}"
        self._json({"success": True, "commitOid": commit.oid, "commitUrl": url, "hookOutput": ""})

    def tag(self, repo: str, revision: str, body: bytes, **_: Any) -> None:
        found = self._repo(repo, write=True)
        commit = found.find(revision) if found else None
        if found and commit is None:
            self._error(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        elif found and commit:
            name = json.loads(body)["tag"]
            if name in found.tags:
                self._error(409, "Tag reference exists already")
                return
            found.tags[name] = commit.oid
            self._json({})

    def tree(
        self, repo: str, revision: str, query: dict[str, list[str]], path: str | None, **_: Any
    ) -> None:
        commit = self._at(repo, revision)
        if not commit:
            return
        folder = (path or "").strip("/")
        prefix = f"{folder}/" if folder else ""
        below = {k: v for k, v in sorted(commit.files.items()) if k.startswith(prefix)}
        if prefix and not below:
            self._error(404, f"{path} does not exist", "EntryNotFound")
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
                out[name] = {"type": "file", "path": name, "size": len(data)}
                out[name]["oid"] = oid_of("", data)
                if is_lfs(name):
                    lfs = {"oid": oid_of(name, data), "size": len(data), "pointerSize": 134}
                    out[name]["lfs"] = lfs
        self._json(list(out.values()))

    def resolve(self, repo: str, revision: str, path: str, **_: Any) -> None:
        commit = self._at(repo, revision)
        if not commit or self._gated(self.repos[repo]):
            return
        if path not in commit.files:
            self._error(404, "Entry not found", "EntryNotFound")
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
            self._send(206, data[start : end + 1], **headers)
        else:
            self._send(200, data, Content_Length=str(len(data)), **headers)


_ID = r"(?P<repo>[^/]+/[^/]+?)"
_REV = r"(?P<revision>[^/]+)"
_API = rf"/api/(?P<kind>datasets|models)/{_ID}"
#: A model's pages have no folder of their own.
_PAGE = rf"/(?P<kind>datasets/)?{_ID}"
_ROUTES: list[tuple[str, str, str, Callable[..., None]]] = [
    ("POST", r"/api/repos/create", "create", _Handler.create),
    ("POST", r"/api/validate-yaml", "", _Handler.validate_yaml),
    ("POST", rf"{_API}/preupload/{_REV}", "preupload", _Handler.preupload),
    ("POST", rf"{_PAGE}\.git/info/lfs/objects/batch", "batch", _Handler.batch),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", "put", _Handler.put),
    ("POST", r"/lfs/(?P<oid>[0-9a-f]{64})/verify", "", _Handler.verify),
    ("POST", rf"{_API}/commit/{_REV}", "commit", _Handler.commit),
    ("POST", rf"{_API}/tag/{_REV}", "tag", _Handler.tag),
    ("GET", rf"{_API}/revision/{_REV}", "", _Handler.info),
    ("GET", rf"{_API}/tree/{_REV}(?:/(?P<path>.*))?", "", _Handler.tree),
    ("GET", rf"{_API}/auth-check", "", _Handler.auth_check),
    ("GET", _API, "", _Handler.info),
    ("GET|HEAD", rf"{_PAGE}/resolve/{_REV}/(?P<path>.+)", "", _Handler.resolve),
]
