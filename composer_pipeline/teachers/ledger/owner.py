"""Which process owns an attempt, and whether it still runs.

Belongs here: identities of ledger users and what /proc says about them. Does not belong
here: heartbeats and what is done with what a dead owner left (``replay.ledger.rules``).

An identity is ``boot:pid:starttime:instance``. ``boot`` is the kernel's boot id and the PID
namespace, so that two containers on one machine, where a PID means different processes,
count as two machines.
"""

import os
import platform
import uuid
from pathlib import Path

#: An owner on another machine is dead when its heartbeat is older than so many seconds.
STALE_S = 60
_instances: set[str] = set()


def process_identity() -> str:
    """Return ``boot:pid:starttime``, which no later process can have."""
    return f"{_boot()}:{os.getpid()}:{_start_time(os.getpid())}"


def new_owner() -> str:
    """Return an identity for one user of a ledger in this process, alive until retired."""
    instance = uuid.uuid4().hex[:12]
    _instances.add(instance)
    return f"{process_identity()}:{instance}"


def retire(owner: str) -> None:
    """Count an owner of this process as dead from now on."""
    _instances.discard(owner.rpartition(":")[2])


def lives(owner: str) -> bool | None:
    """Say whether an owner lives; ``None`` where it is on another machine or boot."""
    boot, pid, started, instance = owner.split(":")
    if boot != _boot():
        return None
    if _start_time(int(pid)) != started:
        return False
    return int(pid) != os.getpid() or instance in _instances


def _boot() -> str:
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())  # pid:[4026531836]
    except OSError:
        return _boot_id()
    return f"{_boot_id()}@{namespace.strip('pid:[]')}"


def _boot_id() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    if path.exists():
        return path.read_text().strip()
    return f"unknown-boot-of-{platform.node()}".replace(":", "-")


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
