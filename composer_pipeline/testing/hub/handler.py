"""One request to the stand-in: how it finds its endpoint, and who may what.

Does not belong here: what an endpoint does (``repositories``, ``uploads``, ``reading``).
"""

import json
import re
import socket
import struct
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from composer_pipeline.testing.hub.repository import Commit, Repo
from composer_pipeline.testing.hub.state import HubState


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
        """Say whether the token may write; refuse where it may not."""
        if not self.role:
            self.error(401, "Invalid username or password.")
        elif self.role == "read":
            self.error(403, "Forbidden: this token may only read.")
        elif self.role == "pull-requests":
            said = "Forbidden: pass `create_pr=1` as a query parameter to create a Pull Request"
            self.error(403, said)
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

    def closed(self, found: Repo) -> bool:
        """Say whether the files are gated; refuse where they are."""
        if found.gated:
            self.error(403, "Access to this repository is restricted.", "GatedRepo")
        return found.gated
