"""A loopback Kubernetes API for Jobs that the real client talks to and that really runs them.

A command's ``python`` is this interpreter, in a folder that stands for the image's. A pod sees the
entries of the Secret that its container names, and of this process's variables only what a machine
always has. Right as on a cluster: no valid token is a 401, an unknown namespace's Secret leaves the
pod waiting, an unknown Job is a 404, a signal is 128 plus its number, a deleted Job takes its pod
along.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

#: Variables of this process that every pod has.
_MACHINE = ("PATH", "HOME", "LANG", "OMP_NUM_THREADS", "HF_HUB_OFFLINE", "PYTHONPATH")


@dataclass
class RunningJob:
    """A Job: its manifest and the process that is its pod; ``None`` where a Secret is missing."""

    manifest: dict[str, Any]
    process: subprocess.Popen[bytes] | None
    created: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
    deleted: bool = False


class LoopbackKubernetes:
    """The server; use it as a context, which ends every pod.

    Args:
        token: what the client must send.
        cwd: working folder of the pods.
        folder: for their output and the kubeconfig.
        secrets: entries of each Secret, by its name.
    """

    def __init__(
        self, *, token: str, cwd: Path, folder: Path, secrets: dict[str, dict[str, str]]
    ) -> None:
        self.token, self.cwd, self.folder, self.secrets = token, cwd, folder, secrets
        #: Everything that was ever created, by name.
        self.jobs: dict[str, RunningJob] = {}
        self.lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"cluster": self})
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
        for job in self.jobs.values():
            self._signal(job, signal.SIGKILL)
            if job.process is not None:
                job.process.wait()

    def kubeconfig(self, token: str | None = None) -> Path:
        """Write the file by which a client finds and enters this cluster; returns its path."""
        user = {"name": "us", "user": {"token": token or self.token}}
        text = {
            "apiVersion": "v1", "kind": "Config", "current-context": "here", "users": [user],
            "clusters": [{"name": "loopback", "cluster": {"server": self.endpoint}}],
            "contexts": [{"name": "here", "context": {"cluster": "loopback", "user": "us"}}],
        }  # fmt: skip
        path = self.folder / "kubeconfig.json"
        path.write_text(json.dumps(text))
        return path

    def start(self, namespace: str, manifest: dict[str, Any]) -> dict[str, Any]:
        """Start a Job's pod and return what the API says of the Job."""
        with self.lock:
            name = f"{manifest['metadata']['generateName']}{len(self.jobs):05d}"
            manifest["metadata"] |= {"name": name, "namespace": namespace}
            (container,) = manifest["spec"]["template"]["spec"]["containers"]
            names = [one["secretRef"]["name"] for one in container.get("envFrom", [])]
            process = None
            if all(one in self.secrets for one in names):
                env = {one: os.environ[one] for one in _MACHINE if one in os.environ}
                for one in names:
                    env |= self.secrets[one]
                python = {"python": sys.executable}
                with self.log(name).open("wb") as output:
                    process = subprocess.Popen(
                        [python.get(part, part) for part in container["command"]], cwd=self.cwd,
                        env=env, stdin=subprocess.DEVNULL, stdout=output,
                        stderr=subprocess.STDOUT, start_new_session=True,
                    )  # fmt: skip
            self.jobs[name] = RunningJob(manifest, process)
            return self.job(name)

    def job(self, name: str) -> dict[str, Any]:
        """Return a Job as the API shows it."""
        found = self.jobs[name]
        meta = {**found.manifest["metadata"], "creationTimestamp": found.created}
        code = found.process.poll() if found.process else None
        ended = {None: [], 0: ["SuccessCriteriaMet", "Complete"]}.get(code, ["Failed"])
        conditions = [{"type": kind, "status": "True"} for kind in ended]
        status = {"active": 1} if code is None else {"conditions": conditions}
        return {**found.manifest, "metadata": meta, "status": status}

    def pod(self, name: str) -> dict[str, Any]:
        """Return a Job's pod as the API shows it."""
        found = self.jobs[name]
        labels = found.manifest["spec"]["template"]["metadata"]["labels"]
        code = found.process.poll() if found.process else None
        state: dict[str, Any] = {"running": {}}
        if found.process is None:
            state = {"waiting": {"reason": "CreateContainerConfigError"}}
        elif code is not None:
            state = {"terminated": {"exitCode": code if code >= 0 else 128 - code}}
        container = {
            "name": "replica", "state": state, "image": "", "imageID": "", "ready": code is None,
            "restartCount": 0,
        }  # fmt: skip
        return {
            "metadata": {"name": f"{name}-pod", "labels": {**labels, "job-name": name}},
            "status": {"phase": "Running", "containerStatuses": [container]},
        }

    def listed(self, path: str, selector: str) -> list[dict[str, Any]]:
        """Return the Jobs or pods whose labels a selector of ``name=value`` names."""
        wanted = dict(pair.split("=", 1) for pair in selector.split(",") if pair)
        show = self.job if path == "jobs" else self.pod
        shown = [show(name) for name, job in self.jobs.items() if not job.deleted]
        return [one for one in shown if wanted.items() <= one["metadata"]["labels"].items()]

    def delete(self, name: str, number: int = signal.SIGTERM) -> None:
        """Take a Job and its pod away, as ``propagationPolicy: Background`` does."""
        self.jobs[name].deleted = True
        self._signal(self.jobs[name], number)

    def end(self, name: str) -> None:
        """End a Job's pod without grace, and leave the Job."""
        self._signal(self.jobs[name], signal.SIGKILL)

    def log(self, name: str) -> Path:
        """Return the file of a pod's output."""
        return self.folder / f"{name}.log"

    def _signal(self, job: RunningJob, number: int) -> None:
        if job.process is not None and job.process.poll() is None:
            os.killpg(job.process.pid, number)


class _Handler(BaseHTTPRequestHandler):
    cluster: LoopbackKubernetes

    def do_GET(self) -> None:
        parts, query = self._parts()
        if not parts:
            return None
        _, kind, *rest = parts
        if not rest:
            items = self.cluster.listed(kind, query.get("labelSelector", [""])[0])
            return self._json(200, {"kind": "List", "items": items})
        name = rest[0].removesuffix("-pod") if kind == "pods" else rest[0]
        if name not in self.cluster.jobs or self.cluster.jobs[name].deleted:
            return self._json(404, {"kind": "Status", "reason": "NotFound"})
        if rest[1:] == ["log"]:
            lines = self.cluster.log(name).read_text(errors="replace").splitlines(keepends=True)
            tail = int(query.get("tailLines", ["1000000"])[0])
            return self._send(200, "".join(lines[-tail:]).encode(), "text/plain")
        return self._json(200, self.cluster.job(name) if kind == "jobs" else self.cluster.pod(name))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        parts, _ = self._parts()
        if parts:
            self._json(201, self.cluster.start(parts[0], body))

    def do_DELETE(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts, _ = self._parts()
        if not parts:
            return None
        _, kind, name = parts
        if name.removesuffix("-pod") not in self.cluster.jobs:
            return self._json(404, {"kind": "Status", "reason": "NotFound"})
        if kind == "pods":
            self.cluster.end(name.removesuffix("-pod"))
        else:
            self.cluster.delete(name)
        return self._json(200, {"kind": "Status", "status": "Success"})

    def _parts(self) -> tuple[list[str], dict[str, list[str]]]:
        """Return namespace, kind and what follows; answers itself where there is no such path."""
        url = urlsplit(self.path)
        if self.headers.get("Authorization") != f"Bearer {self.cluster.token}":
            self._json(401, {"kind": "Status", "reason": "Unauthorized"})
            return [], {}
        for root in ("/apis/batch/v1/namespaces/", "/api/v1/namespaces/"):
            if url.path.startswith(root):
                return url.path.removeprefix(root).split("/"), parse_qs(url.query)
        self._json(404, {"kind": "Status", "reason": "NotFound"})
        return [], {}

    def _json(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Be quiet."""
