"""Starting and killing the chaos test's processes."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORKER = Path(__file__).with_name("chaos_worker.py")


class Worker:
    """One process. ``code`` is ``None`` while it runs."""

    def __init__(self, place: int, pid: int, log: Path) -> None:
        self.place, self.pid, self.log = place, pid, log
        self.code: int | None = None

    def at_work(self) -> bool:
        """Whether it has come as far as replaying, and has not ended."""
        return self.code is None and self.log.exists() and self.log.stat().st_size > 0

    def report(self) -> dict[str, Any]:
        """Return the last line of an ended process; empty where it says nothing."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        try:
            value = json.loads(lines[-1]) if lines else {}
        except json.JSONDecodeError:
            value = {"error": lines[-1]}
        return value if isinstance(value, dict) else {}


class Fleet:
    """The processes of a round. Use as a context manager."""

    def __init__(self, env: Mapping[str, str], logs: Path) -> None:
        self.env, self.logs = env, logs
        self.started = 0
        self.all: dict[int, Worker] = {}
        self._pids: queue.Queue[int] = queue.Queue()

    def __enter__(self) -> "Fleet":
        self._forker = subprocess.Popen(
            [sys.executable, str(FORKER)],
            env=dict(self.env), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in list(self.all.values()):
            self.kill(worker)
        assert self._forker.stdin is not None
        self._forker.stdin.close()
        self._forker.wait(30)

    def start(self, place: int, options: Mapping[str, str]) -> Worker:
        """Start a process in a place."""
        self.started += 1
        log = self.logs / f"{self.started:04}-{place}.log"
        line = json.dumps({**options, "log": str(log)}) + "\n"
        assert self._forker.stdin is not None
        self._forker.stdin.write(line.encode())
        self._forker.stdin.flush()
        worker = Worker(place, self._pids.get(timeout=600), log)
        self.all[worker.pid] = worker
        return worker

    def kill(self, worker: Worker) -> bool:
        """End a process as a power cut does; say whether it had not ended before."""
        if worker.code is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended this moment
                os.kill(worker.pid, signal.SIGKILL)
        return self.wait(worker) == -signal.SIGKILL

    def wait(self, worker: Worker, timeout_s: float = 240.0) -> int:
        """Wait for the end of a process and return its code; kill it when it takes too long."""
        end = time.monotonic() + timeout_s
        while worker.code is None:
            if time.monotonic() > end:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
                end += 60
            time.sleep(0.005)
        return worker.code

    def _listen(self) -> None:
        assert self._forker.stdout is not None
        for line in self._forker.stdout:
            event = json.loads(line)
            if "code" not in event:
                self._pids.put(event["pid"])
                continue
            while event["pid"] not in self.all:  # it ended before start() had returned
                time.sleep(0.001)
            self.all[event["pid"]].code = event["code"]
