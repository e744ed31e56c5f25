"""Which process owns an attempt, and whether it still runs.

Belongs here: identities of processes on this machine. Does not belong here: what is done
with what a dead process left (``replay.ledger``).
"""

import os
from pathlib import Path


def process_identity() -> str:
    """Return ``boot_id:pid:starttime``, which no later process can have."""
    return f"{_boot_id()}:{os.getpid()}:{_start_time(os.getpid())}"


def is_alive(owner: str) -> bool:
    """Say whether the process of an owner identity still runs on this machine."""
    boot, pid, started = owner.split(":")
    return boot == _boot_id() and _start_time(int(pid)) == started


def _boot_id() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else "unknown-boot"


def _start_time(pid: int) -> str:
    """Field 22 of /proc/PID/stat; without /proc, only whether the process exists."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            return "gone"
        # A zombie still has a stat file, but it will settle nothing any more.
        return "gone" if fields[0] in "ZX" else fields[19]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "gone"
    except PermissionError:
        pass
    return "running"
