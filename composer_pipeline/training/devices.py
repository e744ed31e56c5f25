"""Which accelerators a run may use: found without loading torch.

Belongs here: counting devices, their memory, and giving one to each replica. Does not belong
here: what a recipe needs of them (``training.planning``).

Only NVIDIA devices are found. What ``CUDA_VISIBLE_DEVICES`` names is taken at its word; without
it ``nvidia-smi`` is asked. A torch built for the CPU uses none.
"""

import importlib.metadata
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from composer_pipeline.errors import InputError

VISIBLE = "CUDA_VISIBLE_DEVICES"
_QUERY = ("--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class Device:
    """One accelerator: its name for ``CUDA_VISIBLE_DEVICES``, and bytes where known."""

    name: str
    memory: int | None


def devices(environ: Mapping[str, str] | None = None) -> list[Device]:
    """Return the accelerators that this process may use, in torch's order; none on a CPU.

    Args:
        environ: in place of this process's environment.
    """
    environ = os.environ if environ is None else environ
    if _cpu_build():
        return []
    found = _listed()
    if VISIBLE not in environ:
        return [Device(index, memory) for index, _, memory in found]
    names = [name.strip() for name in environ[VISIBLE].split(",") if name.strip()]
    if "-1" in names:  # what follows it is invisible
        names = names[: names.index("-1")]
    memory = {name: size for index, uuid, size in found for name in (index, uuid)}
    return [Device(name, memory.get(name)) for name in names]


def device_of_each(
    replicas: int, available: list[Device], *, processes: int = 1
) -> list[dict[str, str]]:
    """Return the variables that give each replica devices of its own; empty ones on a CPU.

    Args:
        replicas: how many there are.
        available: as :func:`devices` returns them.
        processes: of each replica; every one needs a device.

    Raises:
        InputError: there are devices, but fewer than processes.
    """
    if not available:
        return [{} for _ in range(replicas)]
    needed = replicas * processes
    if needed > len(available):
        what, lower = f"{replicas} replicas need a device each", "diloco.replicas"
        if processes > 1:
            what = f"{replicas} x {processes} processes need a device each"
            lower = "ranks.processes or diloco.replicas"
        raise InputError(
            f"recipe field {'ranks.processes' if processes > 1 else 'diloco.replicas'}: {what}, and"
            f" {len(available)} {'is' if len(available) == 1 else 'are'} visible; lower"
            f" {lower} or hide the devices with CUDA_VISIBLE_DEVICES="
        )
    names = [device.name for device in available[:needed]]
    return [
        {VISIBLE: ",".join(names[start : start + processes])}
        for start in range(0, needed, processes)
    ]


def host_memory() -> int:
    """Return the bytes that processes may still take on this machine."""
    path = Path("/proc/meminfo")
    lines = path.read_text(encoding="ascii").splitlines() if path.is_file() else []
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise InputError("/proc/meminfo does not say how much memory is available; give --memory-gib")


def _cpu_build() -> bool:
    try:
        return importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return True


def _listed() -> list[tuple[str, str, int]]:
    """Return index, uuid and bytes of each device of ``nvidia-smi``; none where it is not there."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    answer = subprocess.run([program, *_QUERY], capture_output=True, text=True, check=False)
    rows = (
        [line.split(", ") for line in answer.stdout.splitlines()] if not answer.returncode else []
    )
    return [
        (row[0], row[1], int(row[2]) * 2**20)
        for row in rows
        if len(row) == 3 and row[2].strip().isdigit()
    ]
