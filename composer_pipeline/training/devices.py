"""The accelerators that a run may use, found without loading torch.

Only NVIDIA devices are found, from ``CUDA_VISIBLE_DEVICES`` (taken at its word) or, without it,
from ``nvidia-smi``. A CPU build of torch uses none.
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
    """One accelerator: its name in ``CUDA_VISIBLE_DEVICES``, and its memory in bytes if known."""

    name: str
    memory: int | None


def devices(environ: Mapping[str, str] | None = None) -> list[Device]:
    """Return the accelerators that this process may use, in torch's order; none on a CPU."""
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
    """Return the environment of each replica, which selects its devices; empty on a CPU."""
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
    """Return the bytes of memory available on this machine."""
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
    # Index, uuid and bytes of each device; none without nvidia-smi.
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
