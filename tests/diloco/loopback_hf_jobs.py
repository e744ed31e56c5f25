"""A loopback Hugging Face Jobs that the real client talks to and that really runs the command.

A command's ``python`` is this interpreter, in a folder that stands for the image's. A job sees its
own environment and secrets, and of this process's only what a machine always has. Right as on the
service: no token is a 401, an unknown job a 404, a job that ends with another code than 0 is
``ERROR``, a cancelled one ``CANCELED``. How the service words an exit code is not verified.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

#: Variables of this process that every job has.
_MACHINE = ("PATH", "HOME", "LANG", "OMP_NUM_THREADS", "HF_HUB_OFFLINE", "PYTHONPATH")


class LoopbackHfJobs:
    """The server; use it as a context, which ends every job.

    Args:
        token: what the client must send.
        cwd: working folder of the jobs.
        folder: for their output.
    """

    def __init__(self, *, token: str, cwd: Path, folder: Path) -> None:
        self.token, self.cwd, self.folder = token, cwd, folder
        #: What was asked for, by job id.
        self.specs: dict[str, dict[str, Any]] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.cancelled: set[str] = set()
        self.lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"jobs": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def start(self, namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Start a job and return what the service says of it."""
        with self.lock:
            job_id = f"job-{len(self.specs):04d}"
            self.specs[job_id] = {**spec, "namespace": namespace}
            command = [sys.executable if part == "python" else part for part in spec["command"]]
            machine = {name: os.environ[name] for name in _MACHINE if name in os.environ}
            env = {**machine, **spec.get("environment", {}), **spec.get("secrets", {})}
            with self.log(job_id).open("wb") as output:
                self.processes[job_id] = subprocess.Popen(
                    command, cwd=self.cwd, env=env, stdin=subprocess.DEVNULL, stdout=output,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
        return self.info(job_id)

    def info(self, job_id: str) -> dict[str, Any]:
        """Return what the service says of a job; secrets are not among it."""
        spec, code = self.specs[job_id], self.processes[job_id].poll()
        stage, message = "RUNNING", None
        if code is not None and job_id in self.cancelled:
            stage = "CANCELED"
        elif code is not None:
            stage = "COMPLETED" if code == 0 else "ERROR"
            message = None if code == 0 else f"Job failed with exit code: {code % 256}"
        return {
            "id": job_id, "createdAt": _now(), "command": spec["command"],
            "dockerImage": spec.get("dockerImage"), "flavor": spec.get("flavor"),
            "labels": spec.get("labels"), "status": {"stage": stage, "message": message},
            "owner": {"id": "1", "name": spec["namespace"], "type": "user"},
        }  # fmt: skip

    def cancel(self, job_id: str) -> None:
        """End a job as the service does: gently."""
        self.cancelled.add(job_id)
        if self.processes[job_id].poll() is None:
            os.killpg(self.processes[job_id].pid, signal.SIGTERM)

    def log(self, job_id: str) -> Path:
        """Return the file of a job's output."""
        return self.folder / f"{job_id}.log"


class _Handler(BaseHTTPRequestHandler):
    jobs: LoopbackHfJobs

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        self._answer(json.loads(self.rfile.read(size) or b"{}"))

    def _answer(self, body: dict[str, Any] | None) -> None:
        url = urlsplit(self.path)
        if self.headers.get("Authorization") != f"Bearer {self.jobs.token}":
            return self._json(401, {"error": "Invalid credentials"})
        parts = url.path.strip("/").split("/")
        if parts[:2] != ["api", "jobs"] or len(parts) < 3:
            return self._json(404, {"error": "no such path"})
        namespace, rest = parts[2], parts[3:]
        if not rest:
            if body is not None:
                return self._json(200, self.jobs.start(namespace, body))
            wanted = dict(pair.split("=", 1) for pair in parse_qs(url.query).get("label", []))
            found = [
                self.jobs.info(job_id)
                for job_id, spec in self.jobs.specs.items()
                if wanted.items() <= spec.get("labels", {}).items()
            ]
            return self._json(200, found)
        if rest[0] not in self.jobs.specs:
            return self._json(404, {"error": "Job not found"})
        if rest[1:] == ["cancel"]:
            self.jobs.cancel(rest[0])
        elif rest[1:] == ["logs"]:
            return self._events(rest[0])
        return self._json(200, self.jobs.info(rest[0]))

    def _json(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _events(self, job_id: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for line in self.jobs.log(job_id).read_text(errors="replace").splitlines():
            event = json.dumps({"data": line, "timestamp": _now()})
            self.wfile.write(f"data: {event}\n\n".encode())

    def log_message(self, *_: Any) -> None:
        """Be quiet."""


def _now() -> str:
    """Return the time as the service writes it."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
