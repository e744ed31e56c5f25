"""When the stand-in begins and ends."""

import base64
import hashlib
import json
import re
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import yaml

from composer_pipeline.testing.hub.repository import Commit, Repo, is_lfs, oid_of


@dataclass(frozen=True)
class Fault:
    """What becomes of one request."""

    status: int = 0
    retry_after: float | None = None
    done: bool = False
    message: str = ""


#: A status, a connection that is reset before anything is done, or after.
Planned = int | Literal["reset", "lost"] | Fault


def fault_of(planned: Planned) -> Fault:
    """Return the fault that a short form stands for."""
    if isinstance(planned, Fault):
        return planned
    if isinstance(planned, int):
        return Fault(status=planned)
    return Fault(done=planned == "lost")


@dataclass
class RateLimit:
    """At most so many requests in a window of seconds."""

    requests: int
    window_s: float
    _taken: deque[float] = field(default_factory=deque)

    def ask(self, now: float) -> float:
        """Take a place and return 0, or return the seconds until there is one."""
        while self._taken and self._taken[0] <= now - self.window_s:
            self._taken.popleft()
        if len(self._taken) < self.requests:
            self._taken.append(now)
            return 0.0
        return self._taken[0] + self.window_s - now


_ENTRY = 48
_END = b"\xff" * 32
_VERIFIED, _WITH_SHA = 1 << 31, 1 << 30


@dataclass(frozen=True)
class Segment:
    """Chunks ``first`` to ``last`` (exclusive) of a xorb."""

    xorb: str
    first: int
    last: int


class XetFolder:
    """The folder of a ``casUrl``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._store = folder / "xet" / "xorbs"

    def get(self, sha256: str) -> bytes | None:
        """Return the bytes of a file that was uploaded whole, else ``None``."""
        for shard in sorted((self._store / "shards").glob("*.mdb")):
            for found, segments in _files(shard.read_bytes()):
                if found == sha256:
                    data = b"".join(self._chunks(segments))
                    return data if hashlib.sha256(data).hexdigest() == sha256 else None
        return None

    def stored_bytes(self) -> int:
        """Return how many bytes of xorbs there are: what was sent over the wire."""
        found = (self._store / "xorbs").glob("default.*")
        return sum(path.stat().st_size for path in found if path.suffix != ".tagset")

    def _chunks(self, segments: list[Segment]) -> Iterator[bytes]:
        for segment in segments:
            path = self._store / "xorbs" / f"default.{segment.xorb}"
            if not path.is_file():  # so the bytes will not have their digest
                return
            yield from _chunks_of(path.read_bytes(), segment.first, segment.last)


def _hex(raw: bytes) -> str:
    """Return a hash as xet writes it: four little-endian numbers."""
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", raw))


def _files(shard: bytes) -> Iterator[tuple[str, list[Segment]]]:
    at = _ENTRY  # behind the header
    while shard[at : at + 32] not in (_END, b""):
        flags, count = struct.unpack("<32xII", shard[at : at + 40])
        at += _ENTRY
        segments = []
        for _ in range(count):
            xorb, first, last = struct.unpack("<32s8xII", shard[at : at + _ENTRY])
            segments.append(Segment(_hex(xorb), first, last))
            at += _ENTRY
        if flags & _VERIFIED:
            at += _ENTRY * count
        if flags & _WITH_SHA:
            yield _hex(shard[at : at + 32]), segments
            at += _ENTRY


def _chunks_of(xorb: bytes, first: int, last: int) -> Iterator[bytes]:
    at = 0
    for number in range(last):
        packed = int.from_bytes(xorb[at + 1 : at + 4], "little")
        scheme = xorb[at + 4]
        size = int.from_bytes(xorb[at + 5 : at + 8], "little")
        if number >= first:
            data = xorb[at + 8 : at + 8 + packed]
            yield data if scheme == 0 else _unpack(scheme, data, size)
        at += 8 + packed


def _unpack(scheme: int, data: bytes, size: int) -> bytes:
    plain: bytes = pa.Codec("lz4").decompress(data, size, asbytes=True)
    if scheme == 1:
        return plain
    out, at = bytearray(size), 0  # 2: bytes grouped by their place modulo 4
    for place in range(4):
        length = len(range(place, size, 4))
        out[place::4] = plain[at : at + length]
        at += length
    return bytes(out)


class HubState:
    """Repositories, tokens, what came, and the bad days that are planned."""

    #: Where it answers.
    endpoint = ""

    def __init__(self, token: str, xet: XetFolder) -> None:
        self.token = token
        self.xet = xet
        self.tokens: dict[str, str] = {}
        self.repos: dict[str, Repo] = {}
        self.models: dict[str, Repo] = {}
        self.moved: dict[str, str] = {}
        self.hidden: set[str] = set()
        self.blobs: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.kinds: list[str] = []
        self.faults: list[tuple[str, Planned]] = []
        self.limits: dict[str, RateLimit] = {}
        self.lag_s = 0.0
        self.clock: Callable[[], float] = time.monotonic
        self.before_commit: Callable[[Repo], None] | None = None
        self.watch: Callable[[str, str], None] | None = None
        self.lock = threading.RLock()

    def fault(self, kind: str) -> Fault | None:
        """Take the planned fault of this kind, or that of its rate limit, if there is one."""
        with self.lock:
            for i, (wanted, planned) in enumerate(self.faults):
                if wanted == kind:
                    del self.faults[i]
                    return fault_of(planned)
            limit = self.limits.get(kind)
            wait = limit.ask(self.clock()) if limit else 0.0
        return Fault(429, retry_after=wait, message="You have been rate limited") if wait else None

    def object(self, oid: str) -> bytes | None:
        """Return the bytes of an object that arrived, by LFS or by Xet."""
        if oid not in self.blobs and (data := self.xet.get(oid)) is not None:
            self.blobs[oid] = data
        return self.blobs.get(oid)

    def seen(self, found: Repo, revision: str) -> Commit | None:
        """Return the commit of a revision as readers see it: the head of a branch may lag."""
        commit = found.find(revision)
        if self.lag_s and found.tip(revision):
            past = self.clock() - self.lag_s
            while commit and commit.at > past:
                commit = found.find(commit.parent)
        return commit


class Handler(BaseHTTPRequestHandler):
    """One connection: reads a request, finds its endpoint, and says who may what."""

    protocol_version = "HTTP/1.1"
    # Headers and body are two writes: the second would wait for the first one's receipt.
    disable_nagle_algorithm = True

    #: Whether the request is about models; datasets otherwise.
    models = False
    _lost = False

    @property
    def hub(self) -> HubState:
        """The server's state."""
        return self.server.hub  # type: ignore[attr-defined,no-any-return]

    @property
    def repos(self) -> dict[str, Repo]:
        """The repositories of the kind that the request is about."""
        return self.hub.models if self.models else self.hub.repos

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Keep quiet."""

    # -- answers ---------------------------------------------------------------

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Answer; ``_`` in a header's name stands for ``-``."""
        if self._lost:
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def json(self, value: Any, status: int = 200) -> None:
        """Answer with JSON."""
        self.send(status, json.dumps(value).encode(), Content_Type="application/json")

    def error(self, status: int, message: str, code: str = "", **more: str) -> None:
        """Answer with a refusal in the Hub's words and headers."""
        headers = {"X_Error_Message": message} | ({"X_Error_Code": code} if code else {})
        body = json.dumps({"error": message}).encode()
        self.send(status, body, Content_Type="application/json", **headers, **more)

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
        self._lost = False
        for method, pattern, kind, endpoint in self.server.routes:  # type: ignore[attr-defined]
            match = re.fullmatch(pattern, path)
            if match and self.command in method.split("|"):
                self.hub.requests.append((self.command, path))
                self.hub.kinds.append(kind)
                found = match.groupdict()
                self.models = (found.pop("kind", None) or "models").startswith("models")
                if not self._redirected(found.get("repo", ""), url.query):
                    call = {"body": body, "query": parse_qs(url.query), **found}
                    self._answer(kind, endpoint, call)
                return
        self.hub.requests.append((self.command, path))
        self.hub.kinds.append("unknown")
        self.error(404, f"no such endpoint: {self.command} {path}", "EntryNotFound")

    def _answer(self, kind: str, endpoint: Callable[..., None], call: dict[str, Any]) -> None:
        fault = self.hub.fault(kind)
        if self.hub.watch:
            self.hub.watch(kind, "before")
        if fault and fault.status:
            waits = {} if fault.retry_after is None else {"Retry_After": f"{fault.retry_after:g}"}
            self.error(fault.status, fault.message or f"planned fault on {kind}", **waits)
            return
        if fault is None or fault.done:
            self._lost = fault is not None
            with self.hub.lock:
                endpoint(self, **call)
            if self.hub.watch:
                self.hub.watch(kind, "after")
        if fault:
            self._reset()

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def _redirected(self, repo: str, query: str) -> bool:
        new = self.hub.moved.get(repo)
        if new:
            where = urlsplit(self.path).path.replace(repo, new, 1) + (f"?{query}" if query else "")
            self.send(307, Location=f"{self.hub.endpoint}{where}")
        return bool(new)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _dispatch  # noqa: N815

    # -- who may what ----------------------------------------------------------

    @property
    def role(self) -> str:
        """What the request's token may; empty without one."""
        word, _, token = (self.headers.get("Authorization") or "").partition(" ")
        if word != "Bearer":
            return ""
        return "write" if token == self.hub.token else self.hub.tokens.get(token, "")

    def writer(self) -> bool:
        """Return whether the token may write; refuse where it may not."""
        if not self.role:
            self.error(401, "Invalid username or password.")
        elif self.role == "read":
            self.error(403, "Forbidden: this token may only read.")
        elif self.role == "pull-requests":
            message = "Forbidden: pass `create_pr=1` as a query parameter to create a Pull Request"
            self.error(403, message)
        return self.role == "write"

    def repo_of(self, repo: str, *, write: bool = False) -> Repo | None:
        """Return a repository that the token may see, and write where that is asked."""
        found = self.repos.get(repo)
        if found is not None and (self.role or (not found.private and not write)):
            return found if not write or self.writer() else None
        # As on the Hub: a private repository does not exist for those who cannot see it.
        self.error(404 if self.role else 401, "Repository Not Found", "RepoNotFound")
        return None

    def commit_at(self, repo: str, revision: str) -> Commit | None:
        """Return the commit of a revision, as readers see it."""
        found = self.repo_of(repo)
        commit = self.hub.seen(found, revision) if found else None
        if found and commit is None:
            if revision == "main":  # it was created a moment ago
                self.error(404, "Repository Not Found", "RepoNotFound")
            else:
                self.error(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    def tip(self, found: Repo, branch: str) -> Commit | None:
        """Return the newest commit of a branch; refuse where there is no such branch."""
        commit = found.tip(branch)
        if commit is None:
            self.error(404, f"Invalid rev id: {branch}", "RevisionNotFound")
        return commit

    def closed(self, found: Repo) -> bool:
        """Return whether the files are gated; refuse where they are."""
        if found.gated:
            self.error(403, "Access to this repository is restricted.", "GatedRepo")
        return found.gated


def info(self: Handler, repo: str, revision: str = "main", **_: Any) -> None:
    """A repository: its head, its files, and who may see it."""
    commit = self.commit_at(repo, revision)
    if commit:
        names = [{"rfilename": name} for name in sorted(commit.files)]
        info = {"id": repo, "sha": commit.oid, "siblings": names, "tags": []}
        found = self.repos[repo]
        self.json({**info, "private": found.private, "gated": found.gated and "manual"})


def auth_check(self: Handler, repo: str, **_: Any) -> None:
    """Return whether the token may read the files."""
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


def create(self: Handler, body: bytes, **_: Any) -> None:
    """Make a repository; public unless the client asks for something else, as on the Hub."""
    if not self.writer():
        return
    wanted = json.loads(body)
    name = f"{wanted['organization']}/{wanted['name']}"
    self.models = wanted.get("type", "model") == "model"
    url = f"{self.hub.endpoint}/{'' if self.models else 'datasets/'}{name}"
    if name in self.repos or name in self.hub.hidden:
        self.json({"error": "You already created this repo", "url": url}, 409)
        return
    repo = Repo(private=_private(wanted) or False)
    now = self.hub.clock()
    repo.add("initial commit", {".gitattributes": b"*.parquet filter=lfs\n"}, now)
    self.repos[name] = repo
    self.json({"url": url, "name": name, "id": name})


def _private(wanted: dict[str, Any]) -> bool | None:
    if "visibility" in wanted:
        return bool(wanted["visibility"] == "private")
    return bool(wanted["private"]) if wanted.get("private") is not None else None


def settings(self: Handler, repo: str, body: bytes, **_: Any) -> None:
    """Change who sees it."""
    found = self.repo_of(repo, write=True)
    if found:
        wanted = json.loads(body)
        private = _private(wanted)
        found.private = found.private if private is None else private
        found.gated = bool(wanted.get("gated", found.gated))
        self.json({"private": found.private, "gated": found.gated and "manual"})


def refs(self: Handler, repo: str, query: dict[str, list[str]], **_: Any) -> None:
    """Branches, tags, and pull requests where they are asked for."""
    found = self.repo_of(repo)
    head = self.commit_at(repo, "main") if found else None
    if not found or not head:
        return

    def listed(names: dict[str, str], prefix: str) -> list[dict[str, str]]:
        return [
            {"name": name, "ref": f"{prefix}{name}", "targetCommit": oid}
            for name, oid in sorted(names.items())
        ]

    tips = {name: self.hub.seen(found, name) or head for name in ("main", *found.branches)}
    refs = {
        "branches": listed({name: tip.oid for name, tip in tips.items()}, "refs/heads/"),
        "tags": listed(found.tags, "refs/tags/"),
        "converts": [],
    }
    if query.get("include_prs"):
        refs["pullRequests"] = listed(found.pulls, "")
    self.json(refs)


def branch(self: Handler, repo: str, revision: str, body: bytes, **_: Any) -> None:
    """Make a branch that starts at a revision, main by default."""
    found = self.repo_of(repo, write=True)
    start = json.loads(body).get("startingPoint", "main")
    commit = found.find(start) if found else None
    if found and revision.startswith("refs/"):
        self.error(400, f"Invalid reference for a branch: {revision}")
    elif found and commit is None:
        self.error(404, f"Invalid rev id: {start}", "RevisionNotFound")
    elif found and found.tip(revision):
        self.error(409, "Reference already exists")
    elif found and commit:
        found.branches[revision] = commit.oid
        self.json({})


def tag(self: Handler, repo: str, revision: str, body: bytes, **_: Any) -> None:
    """Name a commit."""
    found = self.repo_of(repo, write=True)
    commit = found.find(revision) if found else None
    if found and commit is None:
        self.error(404, f"Invalid rev id: {revision}", "RevisionNotFound")
    elif found and commit:
        name = json.loads(body)["tag"]
        if name in found.tags:
            self.error(409, "Tag reference exists already")
            return
        found.tags[name] = commit.oid
        self.json({})


def untag(self: Handler, repo: str, revision: str, **_: Any) -> None:
    """Remove a name, and what only it reached."""
    found = self.repo_of(repo, write=True)
    if found and found.tags.pop(revision, None) is None:
        self.error(404, f"Invalid rev id: {revision}", "RevisionNotFound")
    elif found:
        found.forget_unreachable()
        self.json({})


def commits(self: Handler, repo: str, revision: str, **_: Any) -> None:
    """The commits of a revision, newest first."""
    last = self.commit_at(repo, revision)
    if last:
        known = {commit.oid: commit for commit in self.repos[repo].every}
        out, oid = [], last.oid
        while oid in known:
            words = {"title": known[oid].message, "message": ""}
            out.append({"id": oid, "authors": [], "date": "2026-01-01T00:00:00.000Z", **words})
            oid = known[oid].parent
        self.json(out)


def squash(self: Handler, repo: str, revision: str, body: bytes, **_: Any) -> None:
    """Leave one commit of main."""
    found = self.repo_of(repo, write=True)
    if found and revision != "main":
        self.error(400, "Invalid reference for a branch")
    elif found:
        found.squash(json.loads(body)["message"])
        self.json({})


def lfs_files(self: Handler, repo: str, **_: Any) -> None:
    """Every object that some commit of the repository has, or had."""
    found = self.repo_of(repo, write=True)
    if found:
        known: dict[str, dict[str, str | int]] = {
            oid_of(path, data): {"filename": path, "size": len(data)}
            for commit in found.every
            for path, data in commit.files.items()
            if is_lfs(path)
        }
        known |= {oid: entry for oid, entry in found.pushed.items() if oid not in known}
        ref, at = "refs/heads/main", "2026-01-01T00:00:00.000Z"
        self.json(
            [
                {"fileOid": oid, "oid": oid[::-1][:24], "pushedAt": at, "ref": ref, **entry}
                for oid, entry in sorted(known.items())
            ]
        )


def delete_lfs_files(self: Handler, repo: str, body: bytes, **_: Any) -> None:
    """Remove objects for good, and the files that are made of them from every commit."""
    found = self.repo_of(repo, write=True)
    if found:
        wanted = json.loads(body)["deletions"]
        for oid in wanted["sha"]:
            found.pushed.pop(oid, None)
            self.hub.blobs.pop(oid, None)
        if wanted.get("rewriteHistory"):
            found.drop_objects(set(wanted["sha"]))
        self.json({})


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


def preupload(self: Handler, repo: str, revision: str, body: bytes, **_: Any) -> None:
    """Say for each file whether it is an LFS object, and what the branch has under its name."""
    found = self.repo_of(repo, write=True)
    head = self.tip(found, revision) if found else None
    if not head:
        return
    have = head.files
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
    """Return whether an object arrived whole."""
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


def commit(self: Handler, repo: str, revision: str, body: bytes, **_: Any) -> None:
    """Make one commit of everything on a branch, or none."""
    found = self.repo_of(repo, write=True)
    if not found:
        return
    if self.hub.before_commit:
        self.hub.before_commit(found)
    head = self.tip(found, revision)
    if not head:
        return
    entries = [json.loads(line) for line in body.splitlines() if line]
    header = entries[0]["value"]
    if header.get("parentCommit", head.oid) != head.oid:
        self.error(412, "A commit has happened since. Please refresh and try again.")
        return
    files = dict(head.files)
    for entry in entries[1:]:
        problem = _apply(self, files, entry["key"], entry["value"])
        if problem:
            self.error(400, problem)
            return
    _keep_pushed(found, files)
    made = found.add(header["summary"], files, self.hub.clock(), revision)
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


_ID = r"(?P<repo>[^/]+/[^/]+?)"
_REV = r"(?P<revision>[^/]+)"
_API = rf"/api/(?P<kind>datasets|models)/{_ID}"
#: A model's pages have no folder of their own.
_PAGE = rf"/(?P<kind>datasets/)?{_ID}"

#: Method, path, kind (as faults and limits name it), endpoint.
ROUTES: list[tuple[str, str, str, Callable[..., None]]] = [
    ("POST", r"/api/repos/create", "create", create),
    ("POST", r"/api/validate-yaml", "validate-yaml", validate_yaml),
    ("POST", rf"{_API}/preupload/{_REV}", "preupload", preupload),
    ("POST", rf"{_PAGE}\.git/info/lfs/objects/batch", "batch", batch),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", "put", put),
    ("POST", r"/lfs/(?P<oid>[0-9a-f]{64})/verify", "verify", verify),
    ("GET", rf"{_API}/xet-(?P<how>write|read)-token/{_REV}", "xet-token", xet_token),
    ("POST", rf"{_API}/commit/{_REV}", "commit", commit),
    ("POST", rf"{_API}/branch/(?P<revision>.+)", "branch", branch),
    ("POST", rf"{_API}/tag/(?P<revision>.+)", "tag", tag),
    ("DELETE", rf"{_API}/tag/(?P<revision>.+)", "tag", untag),
    ("GET", rf"{_API}/refs", "refs", refs),
    ("PUT", rf"{_API}/settings", "settings", settings),
    ("POST", rf"{_API}/super-squash/{_REV}", "squash", squash),
    ("GET", rf"{_API}/lfs-files", "lfs-list", lfs_files),
    ("POST", rf"{_API}/lfs-files/batch", "lfs-delete", delete_lfs_files),
    ("GET", rf"{_API}/commits/{_REV}", "commits", commits),
    ("GET", rf"{_API}/revision/{_REV}", "info", info),
    ("GET", rf"{_API}/tree/{_REV}(?:/(?P<path>.*))?", "tree", tree),
    ("POST", rf"{_API}/paths-info/{_REV}", "tree", paths_info),
    ("GET", rf"{_API}/auth-check", "info", auth_check),
    ("GET", _API, "info", info),
    ("GET|HEAD", rf"{_PAGE}/resolve/{_REV}/(?P<path>.+)", "resolve", resolve),
]


class LoopbackHub(HubState):
    """The server; a context manager. What can be set on it is described in ``HubState``.

    Args:
        token: a token that may do everything.
        port: 0 takes a free one.
        xet: folder into which ``hf_xet`` writes; a temporary one by default.
    """

    def __init__(
        self,
        token: str = "hf_loopback",  # noqa: S107
        *,
        port: int = 0,
        xet: Path | None = None,
    ) -> None:
        self._own = None if xet else Path(tempfile.mkdtemp(prefix="hub-xet-"))
        super().__init__(token, XetFolder(xet or self._own or Path()))
        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.hub = self  # type: ignore[attr-defined]
        self._server.routes = ROUTES  # type: ignore[attr-defined]
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "LoopbackHub":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)
