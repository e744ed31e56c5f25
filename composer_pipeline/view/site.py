"""The viewer's site: its pages by name, a loopback server, and a folder to send."""

import base64
import functools
import gzip
import html
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.files import replace
from composer_pipeline.lake.provenance import build_id, table_stamp
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake, check_outside, remember_exports
from composer_pipeline.redaction.scanning import Findings, Scanner
from composer_pipeline.report.write import render_report
from composer_pipeline.reports import Progress, Report
from composer_pipeline.view.pages import (
    DayPages,
    Page,
    evaluation_page,
    lake_page,
    money_page,
    runs_page,
    stale_page,
)
from composer_pipeline.view.rows import FACETS, PAGE, Rows

#: Files of the site besides its pages, and their types.
FILES = {"view.html": "text/html", "view.js": "text/javascript", "view.css": "text/css"}
#: What comes before a state's id in a URL of the site.
STATE = "view.html#/state/"
#: Seconds between two looks at whether the lake has changed.
_EVERY_S = 2.0
#: Sessions whose pages are kept.
_KEPT = 16
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'"
)
_GONE = "{} {} is not in this lake: it was withdrawn, or its day was parsed again, or never was"
_NO_REPORT = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>No report</title>
<main><h1>No report</h1><p>{}</p><p><a href="view.html">All states</a></p></main></html>
"""

#: The parameters of a request, each with its values.
Query = Mapping[str, Sequence[str]]


class Site:
    """The pages of a lake by name, of the lake as it is at each request.

    Args:
        lake: is only read.
        run_root: folder of training runs.
        ledger: path or URL of the ledger, if there is one.
    """

    def __init__(self, lake: Lake, run_root: Path, ledger: str | Path | None = None) -> None:
        self.lake, self._run_root, self._ledger = lake, run_root, ledger
        self.name = Path(lake.root).name
        self._lock, self._closed = threading.RLock(), False
        self._looked = float("-inf")
        self._stamp: tuple[str, ...] = ()
        self._rows: Rows | None = None
        self._day: DayPages | None = None
        self._sessions: OrderedDict[str, Page] = OrderedDict()
        self._report = ""

    def close(self) -> None:
        """Free the memory; pages that are asked for afterwards are refused."""
        with self._lock:
            self._closed = True
            if self._rows:
                self._rows.close()
            self._rows = None  # a browser's idle connection holds the site until the process ends

    def page(self, name: str, query: Query) -> Any:
        """Return a page by its name.

        The names are ``lake``, ``stale``, ``rows``, ``facets``, ``sessions``, ``session/ID``,
        ``state/ID``, ``money``, ``runs`` and ``evaluation/RUN``; ``query`` has filters, ``q`` and
        ``offset``.

        Raises:
            InputError: there is no such page; the sentence is for the reader.
            ComposerError: the lake cannot be read at the moment.
        """
        kind, _, which = name.partition("/")
        with self._lock:  # day tables are large: one request at a time reads them
            rows = self.rows()
            filters = {facet: query[facet] for facet in FACETS if facet in query}
            words = " ".join(query.get("q", ()))
            makers: dict[str, Callable[[], Any]] = {
                "lake": lambda: lake_page(self.name),
                "stale": lambda: stale_page(self.lake),
                "rows": lambda: self._list(rows, filters, words, query),
                "facets": lambda: rows.facets(filters, words),
                "sessions": rows.sessions,
                "session": lambda: self.session(which),
                "state": lambda: self._state(which, rows, filters, words),
                "money": lambda: money_page(self.lake, self._ledger),
                "runs": lambda: runs_page(self._run_root),
                "evaluation": lambda: evaluation_page(self._run_root, which),
            }
            if kind not in makers:
                raise InputError(f"the viewer has no page {name!r}")
            return makers[kind]()

    def report(self) -> str:
        """Return the first page: the report, or a page that says why there is none."""
        with self._lock:
            self.rows()
            if not self._report:
                try:
                    self._report = render_report(self.lake, run_root=self._run_root, links=STATE)
                except InputError as error:
                    self._report = _NO_REPORT.format(html.escape(str(error)))
            return self._report

    def rows(self) -> Rows:
        """Return the rows of the lake as it is now."""
        if self._closed:
            raise InputError("the viewer has ended")
        now = time.monotonic()
        if self._rows is None or now - self._looked > _EVERY_S:
            stamp = tuple(table_stamp(self.lake, table) for table in TABLES)
            if self._rows is None or stamp != self._stamp:
                rows = Rows(self.lake)
                if self._rows:
                    self._rows.close()
                self._rows, self._stamp, self._day, self._report = rows, stamp, None, ""
                self._sessions.clear()
            self._looked = now
        return self._rows

    def session(self, session_id: str) -> Page:
        """Return a session: its rows, and what is known of each of its states.

        Raises:
            InputError: the lake has no such session.
        """
        found = self._session(session_id)
        if not found["rows"]:
            raise InputError(_GONE.format("session", session_id))
        return found

    def _session(self, session_id: str) -> Page:
        if session_id not in self._sessions:
            listed = self.rows().of_session(session_id)
            states: list[Page] = []
            for day in sorted({row["day"] for row in listed}):
                if self._day is None or self._day.day != day:
                    self._day = DayPages(self.lake, day)
                states += self._day.states(session_id)
            there = {state["state_id"] for state in states}
            if len(there) < len(listed):  # the lake has changed since the rows were read
                self._looked = float("-inf")
            listed = [row for row in listed if row["state_id"] in there]
            page = {"session_id": session_id, "rows": listed, "states": states}
            self._sessions[session_id] = page
            while len(self._sessions) > _KEPT:
                self._sessions.popitem(last=False)
        return self._sessions[session_id]

    def _list(
        self, rows: Rows, filters: Mapping[str, Sequence[str]], words: str, query: Query
    ) -> Page:
        offset = "".join(query.get("offset", ["0"]))
        if not offset.isdecimal() or len(offset) > 9:
            raise InputError(f"offset must be a number of rows, not {offset!r}")
        return rows.page(filters, words, int(offset), PAGE)

    def _state(
        self, state_id: str, rows: Rows, filters: Mapping[str, Sequence[str]], words: str
    ) -> Page:
        session = self._session(rows.session_of(state_id))
        known = {state["state_id"]: state for state in session["states"]}
        if state_id not in known:
            raise InputError(_GONE.format("state", state_id))
        [row] = [row for row in session["rows"] if row["state_id"] == state_id]
        return {**row, **known[state_id], **self._around(state_id, rows, filters, words)}

    def _around(
        self, state_id: str, rows: Rows, filters: Mapping[str, Sequence[str]], words: str
    ) -> Page:
        """Return a state's place in the filtered list, and its neighbours."""
        position = rows.position(state_id, filters, words)
        around = [None, None]
        if position is not None:
            near = rows.page(filters, words, max(position - 1, 0), 3)["rows"]
            ids = [row["state_id"] for row in near]
            at = ids.index(state_id)
            around = [ids[at - 1] if at else None, ids[at + 1] if at + 1 < len(ids) else None]
        return {"position": position, "around": around}


def server_of(site: Site, port: int) -> ThreadingHTTPServer:
    """Return a server that listens on 127.0.0.1; 0 is any free port.

    Raises:
        InputError: the port is not free.
    """
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), functools.partial(_Handler, site))
    except OSError as error:
        raise InputError(
            f"cannot listen on 127.0.0.1:{port} ({error.strerror}); choose another --port"
        ) from error


class _Handler(BaseHTTPRequestHandler):
    """Answers GET; to no other site's pages, and with nothing that a cache would keep."""

    def __init__(self, site: Site, *given: Any) -> None:
        self._site = site
        super().__init__(*given)

    def do_GET(self) -> None:
        """Answer a request."""
        # Another site's name for this address would let its scripts read what is private.
        if self.headers.get("Host", "").partition(":")[0] not in ("127.0.0.1", "localhost"):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"not a page of this host\n")
            return
        url = urlsplit(self.path)
        name = unquote(url.path).lstrip("/")
        try:
            if name.startswith("api/"):
                found = self._site.page(name.removeprefix("api/"), parse_qs(url.query))
                self._send(HTTPStatus.OK, "application/json", _json(found))
            elif name in FILES:
                self._send(HTTPStatus.OK, FILES[name], _file(name))
            elif not name and not build_id(self._site.lake):
                self._send(HTTPStatus.FOUND, "text/plain", b"", Location="view.html")
            elif name in ("", "index.html"):
                self._send(HTTPStatus.OK, "text/html", self._site.report().encode())
            else:
                raise InputError(f"the viewer has no page {name!r}")
        except ComposerError as error:
            missing = isinstance(error, InputError)
            status = HTTPStatus.NOT_FOUND if missing else HTTPStatus.SERVICE_UNAVAILABLE
            self._send(status, "application/json", _json({"error": str(error)}))

    def _send(self, status: HTTPStatus, kind: str, data: bytes, **headers: str) -> None:
        more = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
                "Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer"}  # fmt: skip
        kind = kind if kind == "application/json" else f"{kind}; charset=utf-8"
        about = {"Content-Type": kind, "Content-Length": str(len(data)), **more, **headers}
        with suppress(ConnectionError):  # the reader has gone on to another page
            self.send_response(status)
            for name, value in about.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Print nothing: a URL may say what was searched for."""


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, default=str).encode()


def _file(name: str) -> bytes:
    return resources.files("composer_pipeline.view").joinpath("static", name).read_bytes()


@dataclass(frozen=True)
class BundleReport(Report):
    """Where a bundle is, what it shows, and its size in bytes."""

    folder: str
    states: int
    sessions: int
    files: int
    bytes: int


def write_bundle(site: Site, out: str | Path, *, progress: Progress | None = None) -> BundleReport:
    """Write the whole site to a folder, which a browser opens without a server.

    It is redacted as the lake is, and scanned before a file of it is written. ``forget`` removes
    the files that show a session that is forgotten.

    Args:
        site: the pages.
        out: a folder; it is made, and must be empty or hold an older bundle.
        progress: called after each session.

    Raises:
        InputError: the folder holds other things, or the lake has no state.
        ComposerError: something private was found; nothing is written.
        StorageError: the folder cannot be written.
    """
    folder = Path(out).expanduser()
    check_outside(site.lake, folder, "--bundle")
    old = _old_files(folder)
    findings = Findings(Scanner(site.lake))
    made: dict[Path, bytes] = {}
    for name, sessions, page in _pages(site, progress):
        data = _json(page)
        findings.file(f"{name}.json", data, f"page {name}")
        packed = base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()
        call = f"composer.put({json.dumps(name)}, {json.dumps(sessions)}, {json.dumps(packed)});\n"
        made[folder / "data" / f"{name}.js"] = call.encode()
    made[folder / "index.html"] = site.report().encode()
    findings.file("index.html", made[folder / "index.html"])
    findings.refuse()
    made |= {folder / name: _file(name) for name in FILES}
    shell = made[folder / "view.html"]
    made[folder / "view.html"] = shell.replace(b"<html ", b'<html data-bundle="yes" ')
    remember_exports(site.lake, made, "--bundle")
    for path, data in made.items():
        replace(path, data, f"--bundle {path}")
    for path in old - made.keys():
        path.unlink()
    listed = site.rows().sessions()
    states, size = sum(row["states"] for row in listed), sum(map(len, made.values()))
    return BundleReport(str(out), states, len(listed), len(made), size)


def _old_files(folder: Path) -> set[Path]:
    """Return the files of an older bundle in a folder that holds nothing else."""
    if folder.is_file():
        raise InputError(f"--bundle {folder} is a file; it must be a folder")
    found = {path for path in folder.rglob("*") if path.is_file()} if folder.is_dir() else set()
    if found and not {folder / name for name in FILES} <= found:
        raise InputError(f"--bundle {folder} holds other files; choose an empty folder")
    return found


def _pages(site: Site, progress: Progress | None) -> Iterator[tuple[str, list[str], Any]]:
    """Yield name, sessions and content of each page of a bundle."""
    sessions = site.rows().sessions()
    if not sessions:
        raise InputError(f"lake {site.lake.url} has no states; run ingest first")
    names = [row["session_id"] for row in sessions]
    listed: list[Page] = []
    for number, row in enumerate(sessions):
        page = site.session(row["session_id"])
        listed += page["rows"]
        yield f"session-{number}", [row["session_id"]], page
        if progress:
            progress("view", number + 1, len(sessions))
    files = {name: f"session-{number}" for number, name in enumerate(names)}
    yield "rows", names, {"rows": listed, "files": files}
    yield "sessions", names, sessions
    yield "lake", [], site.page("lake", {})
    yield "stale", [], site.page("stale", {})
    yield "money", [], site.page("money", {})
    runs = site.page("runs", {})
    yield "runs", [], runs
    for run in runs["runs"]:
        if run["evaluated"]:
            found = site.page(f"evaluation/{run['name']}", {})
            about = sorted({state["session_id"] for state in found["changed"]})
            yield f"evaluation-{run['name']}", about, found
