"""Is there room for another ``make dev``? One port, and one daemon on one storage.

Two daemons on one storage would start each schedule's runs twice.
"""

import fcntl
import json
import os
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from composer_pipeline.errors import InputError

#: Dagster's daemons give a sign of life every 30 s; some more for a busy machine.
PATIENCE_S = 45


@contextmanager
def claim(folder: Path, port: int) -> Iterator[int]:
    """Hold the storage below ``folder`` and see that ``port`` is free; yield its lock."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / "dev.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _hold(lock, folder)
        _free(port)
        _no_daemon(folder, float(_noted(lock).get("ended", 0)))
        _note(lock, process=os.getpid(), port=port)
        yield lock
        _note(lock, ended=time.time())
    finally:
        os.close(lock)


def _hold(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        found = _noted(lock)
        raise InputError(
            f"it already runs on {folder} (process {found.get('process', 'unknown')}): open"
            f" http://127.0.0.1:{found.get('port', '')}, or end that one first"
        ) from error


def _note(lock: int, **what: float) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps(what).encode(), 0)


def _noted(lock: int) -> dict[str, float]:
    try:
        return dict(json.loads(os.pread(lock, 1000, 0)))
    except ValueError:  # empty, or cut short by a kill
        return {}


def _free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InputError(
                f"port {port} of 127.0.0.1 cannot be used ({error.strerror}); PORT=3001 make dev"
                " takes another one"
            ) from error


def _no_daemon(folder: Path, ended: float) -> None:
    """Wait for a second sign of life of a daemon that was not started by ``make dev``."""
    last = _heartbeat(folder)
    if last <= ended or time.time() - last > PATIENCE_S:
        return
    print("A Dagster daemon was here just now; waiting for another sign of it.", flush=True)
    while time.time() - last <= PATIENCE_S:
        if _heartbeat(folder) > last:
            raise InputError(
                f"a Dagster daemon works on {folder} already; two would start each schedule's"
                " runs twice, so end that one first"
            )
        time.sleep(1)


def _heartbeat(folder: Path) -> float:
    """Return when a daemon last gave a sign of life, in seconds since 1970; 0 for never."""
    file = folder / "storage" / "history" / "runs.db"
    if not file.exists():
        return 0.0
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=30)) as con:
        try:
            row = con.execute("SELECT max(strftime('%s', timestamp)) FROM daemon_heartbeats")
            return float(row.fetchone()[0] or 0)
        except sqlite3.OperationalError:  # no table yet
            return 0.0
