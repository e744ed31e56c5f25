"""Starts the ranks of a replica: ``python -m trainers.trl.ranks.launch --processes N -- ARGS``.

Belongs here: the processes of one replica, which live and end together. Does not belong here:
what they do (``trainers.trl.replica``, which gets ARGS) and whether a replica is started again
(``diloco.supervisor``). Imports no torch.

The ranks meet in a file of a temporary folder, and talk over the loopback interface alone. As soon
as one ends badly the others are ended too, and the exit code is that of the one that began it: a
signal is a crash (1), which the supervisor may get past with another start. SIGTERM is passed on,
so that an upload that rank 0 has begun comes to its end.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from composer_pipeline.diloco.supervisor import (
    EXIT_BAD_INPUT,
    EXIT_WOULD_REPEAT,
    end_with_supervisor,
    supervised,
)
from composer_pipeline.training.devices import VISIBLE
from trainers.trl.ranks import RANK, RANKS, STORE

POLL_S = 0.1
#: For the ranks that a dead one takes along, before it is asked who was first.
SETTLE_S = 0.5
#: Between SIGTERM and SIGKILL, where a rank has died; asked to leave, rank 0 may take longer.
PATIENCE_S = 5.0
EXIT_ASKED = 143
_LOOPBACK = "lo" if sys.platform.startswith("linux") else "lo0"


class _Asked(Exception):
    """SIGTERM came."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ranks and return the replica's exit code."""
    parser = argparse.ArgumentParser(prog="trainers.trl.ranks.launch", description=__doc__)
    parser.add_argument("--processes", type=int, required=True, help="ranks of the replica")
    parser.add_argument("arguments", nargs="*", help="behind --: those of trainers.trl.replica")
    options = parser.parse_args(argv)
    if options.processes < 1:
        parser.error(f"--processes must be at least 1, got {options.processes}")
    end_with_supervisor()
    command = [sys.executable, "-m", "trainers.trl.replica", *options.arguments]
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        return launch(command, options.processes, Path(folder) / "store")


def launch(command: Sequence[str], size: int, store: Path) -> int:
    """Start ``size`` processes of a command and see them through; return an exit code."""

    def asked(*_: object) -> None:
        raise _Asked

    signal.signal(signal.SIGTERM, asked)
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(size):
            env = environment(os.environ, number, size, store)
            ranks.append(subprocess.Popen(list(command), env=env, stdin=subprocess.DEVNULL))
        while not any(rank.poll() for rank in ranks):
            if all(rank.poll() == 0 for rank in ranks):
                return 0
            time.sleep(POLL_S)
        time.sleep(SETTLE_S)
        codes = [rank.poll() for rank in ranks]
    except _Asked:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for rank in ranks:
            _send(rank, signal.SIGTERM)
        for rank in ranks:  # who asked kills what takes too long
            rank.wait()
        return EXIT_ASKED
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end(ranks)
    code, sentence = verdict(codes)
    if sentence:
        print(f"error: {sentence}", flush=True)
    return code


def environment(environ: Mapping[str, str], rank: int, size: int, store: Path) -> dict[str, str]:
    """Return a rank's variables: its place, its device, its parent."""
    own = {RANK: str(rank), RANKS: str(size), STORE: str(store), **supervised()}
    names = [name for name in environ.get(VISIBLE, "").split(",") if name.strip()]
    if len(names) >= size:
        own[VISIBLE] = names[rank]
    quiet = {"GLOO_SOCKET_IFNAME": _LOOPBACK, "NCCL_SOCKET_IFNAME": _LOOPBACK}
    return {**quiet, **environ, **own}


def verdict(codes: Sequence[int | None]) -> tuple[int, str]:
    """Return the replica's exit code, and a sentence where no rank has said one.

    Args:
        codes: of each rank; ``None`` for one that still ran when another had ended.
    """
    size = len(codes)
    for rank, code in enumerate(codes):
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            return 1, (
                f"rank {rank} of {size} was ended by {name}, and the replica with it"
                + (": was there enough memory?" if name == "SIGKILL" else "")
            )
    said = [code for code in codes if code]
    for code in (EXIT_BAD_INPUT, EXIT_WOULD_REPEAT):
        if code in said:
            return code, ""
    return said[0], ""


def end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what still runs, gently first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for rank in ranks:
            _send(rank, number)
        deadline = time.monotonic() + PATIENCE_S
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
            time.sleep(POLL_S / 2)
    for rank in ranks:
        rank.wait()


def _send(rank: subprocess.Popen[bytes], number: int) -> None:
    if rank.poll() is None:
        rank.send_signal(number)


if __name__ == "__main__":
    sys.exit(main())
